"""Geographic assignment, a benchmark of the paper's section VI: every device uploads to its nearest edge."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment
from hflray.fleet import Fleet


class Geographic:
    """An assigner of the nearest edge, without regard to shadowing; of equal distances the lower index wins."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return fleet.nearest_edges(scheduled)[:, 0]
