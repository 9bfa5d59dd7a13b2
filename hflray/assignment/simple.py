"""Assigners by one rule each: the nearest edge, the strongest link, with room or with balanced load, random, and home.

``geographic`` is a benchmark of the paper's section VI; the others are not in the paper. ``best_gain`` is also a start
for HFEL (docs/design.md, D8).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from hflray.cost import Workload, check_assignment
from hflray.data.partition import home_edges
from hflray.fleet import Fleet
from hflray.support.arrays import IntArray


class RuleAssigner(ABC):
    """An assigner by a rule that sees checked devices."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices. Raises ConfigError for an index outside the fleet."""
        scheduled, _ = check_assignment(fleet, devices, np.zeros(np.shape(devices), dtype=np.intp))
        return self.edges(fleet, work, scheduled, rng)

    @abstractmethod
    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of the devices `scheduled`, (H,)."""


class Geographic(RuleAssigner):
    """An assigner of the nearest edge, without regard to shadowing; of equal distances the lower index wins."""

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        return fleet.nearest_edges(scheduled)[:, 0]


class Random(RuleAssigner):
    """An assigner that draws an edge for each device, uniformly and independently; an edge may stay empty."""

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        return rng.integers(fleet.num_edges, size=len(scheduled), dtype=np.intp)


class BestGain(RuleAssigner):
    """An assigner of the edge with the strongest link (`Fleet.strength`); of equal links the lower index wins."""

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        return fleet.strongest_edges(scheduled)[:, 0]


class EvenGain(RuleAssigner):
    """An assigner that gives all edges equally many devices, or one more, as robust aggregators need it.

    Devices come in order of their strongest link, strongest first, and each goes to the edge of its strongest link that
    still has room. Of equal links the lower index wins.
    """

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        size, one_more = divmod(len(scheduled), fleet.num_edges)
        order = fleet.strongest_edges(scheduled, fleet.num_edges)
        strongest = np.asarray(fleet.strength[scheduled, order[:, 0]])
        edges, counts = np.empty(len(scheduled), dtype=np.intp), np.zeros(fleet.num_edges, dtype=np.intp)
        for position in np.argsort(-strongest, kind="stable"):
            room = counts < size if one_more == 0 else counts <= size
            edge = order[position][room[order[position]]][0]
            one_more -= int(counts[edge] == size)
            counts[edge] += 1
            edges[position] = edge
        return edges


class LoadBalanced(RuleAssigner):
    """An assigner that balances the airtime of the edges, so that no channel is busy for much longer than another.

    The load of an edge is the airtime of its devices: the seconds for which their uploads would occupy its whole
    bandwidth one after the other. Devices come in order of their shortest airtime, longest first, and each goes to the
    edge whose load is then the smallest; of equal loads the lower index wins.

    Source: longest-first list scheduling, R. L. Graham: "Bounds on multiprocessing timing anomalies", SIAM Journal on
    Applied Mathematics 17 (1969). Graham's machines are equal, so his bound does not hold here, where a device's
    airtime differs from edge to edge.
    """

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        shape = len(scheduled), fleet.num_edges
        links = fleet.uplinks(np.repeat(scheduled, shape[1]), np.tile(np.arange(shape[1]), shape[0]))
        airtime_s = fleet.access.upload(np.ones(len(links.gain)), links, work.device_bits)[0].reshape(shape)
        edges, load_s = np.empty(len(scheduled), dtype=np.intp), np.zeros(fleet.num_edges)
        for row in np.argsort(-airtime_s.min(axis=1), kind="stable"):
            edges[row] = np.argmin(load_s + airtime_s[row])
            load_s[edges[row]] += airtime_s[row, edges[row]]
        return edges


class Home(RuleAssigner):
    """An assigner that keeps each device at its home edge, the one for which a partition by edges has dealt its data.

    The home of device n is the edge ⌊n·M/N⌋ (`hflray.data.partition.home_edges`), wherever the device stands.
    """

    keeps_edges = True

    def edges(self, fleet: Fleet, work: Workload, scheduled: IntArray, rng: np.random.Generator) -> IntArray:
        """See `RuleAssigner`."""
        return home_edges(fleet.num_devices, fleet.num_edges)[scheduled]
