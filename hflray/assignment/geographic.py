"""Geographic assignment: every device talks to its nearest edge. A benchmark of the paper's section VI."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment
from hflray.fleet import Fleet


class Geographic:
    """The nearest edge by distance, the lower index where two are equally near. Shadowing plays no part."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index not of the fleet."""
        chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return fleet.nearest_edges(chosen)[:, 0]
