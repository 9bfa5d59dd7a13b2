"""Two baselines that look at nothing but chance, or at nothing but the links; the paper has neither.

`BestGain` is also a start for HFEL (design, decision 5.8).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment
from hflray.fleet import Fleet


class Random:
    """An edge for each device, uniformly and independently; an edge may stay empty."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index not of the fleet."""
        chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return rng.integers(fleet.num_edges, size=len(chosen), dtype=np.intp)


class BestGain:
    """The edge with the strongest link ḡ_n^m (shadowing included), the lower index where two are equal."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index not of the fleet."""
        chosen, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return fleet.strongest_edges(chosen)[:, 0]
