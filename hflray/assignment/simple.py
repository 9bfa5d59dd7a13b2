"""Simple assigners that are not in the paper: a random edge, the strongest link, the strongest with room, and the home.

`BestGain` is also a start for HFEL (docs/design.md, D8).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.cost import Workload, check_assignment
from hflray.data.partition import home_edges
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


class EvenGain:
    """An assigner that gives all edges equally many devices, or one more, as robust aggregators need it.

    Devices come in order of their strongest link, strongest first, and each goes to the edge of its strongest link that
    still has room. Of equal links the lower index wins.
    """

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, edges = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        size, one_more = divmod(len(scheduled), fleet.num_edges)
        order = fleet.strongest_edges(scheduled, fleet.num_edges)
        strongest = fleet.gain[scheduled, order[:, 0]]
        counts = np.zeros(fleet.num_edges, dtype=np.intp)
        for position in np.argsort(-strongest, kind="stable"):
            room = counts < size if one_more == 0 else counts <= size
            edge = order[position][room[order[position]]][0]
            one_more -= int(counts[edge] == size)
            counts[edge] += 1
            edges[position] = edge
        return edges


class Home:
    """An assigner that keeps each device at its home edge, the one for which a partition by edges has dealt its data.

    The home of device n is the edge ⌊n·M/N⌋ (`hflray.data.partition.home_edges`), wherever the device stands.
    """

    keeps_edges = True

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return home_edges(fleet.num_devices, fleet.num_edges)[scheduled]
