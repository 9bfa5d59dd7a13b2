"""Two simple baselines that are not in the paper: a random edge, and the edge with the strongest link.

`BestGain` is also a start for HFEL (docs/design.md, D8).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment
from hflray.fleet import Fleet


class Random:
    """An assigner that draws an edge for each device, uniformly and independently; an edge may stay empty."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return rng.integers(fleet.num_edges, size=len(scheduled), dtype=np.intp)


class BestGain:
    """An assigner of the edge with the strongest link ḡ_n^m, with shadowing; of equal links the lower index wins."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return fleet.strongest_edges(scheduled)[:, 0]
