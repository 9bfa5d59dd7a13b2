"""What the tests of both searches over devices and edges share: fleets, bills, all moves, and all choices."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.objective import round_problem
from hflray.assignment.search import NOWHERE
from hflray.cost import Workload, round_cost
from hflray.fleet import Fleet, FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def fleet_of(seed: int, devices: int, edges: int) -> Fleet:
    return sample_fleet(FleetConfig(num_devices=devices, num_edges=edges), np.random.default_rng(seed))


@dataclass(frozen=True)
class Choosing:
    """A search, and the coupling of the deadlines in the objective that it minimises."""

    search: Callable[..., tuple[np.ndarray, float]]
    coupling: Any

    def objective(self, fleet: Fleet, edge: np.ndarray) -> float:
        """Return what a round is billed, J."""
        devices = np.flatnonzero(edge != NOWHERE)
        allocation = allocate_round(fleet, WORK, devices, edge[devices], coupling=self.coupling)
        return round_cost(fleet, WORK, devices, edge[devices], allocation).objective

    def searched(
        self, fleet: Fleet, group: np.ndarray, start: np.ndarray, stays: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the choice that the search finds, whose value must be its bill."""
        problem, _ = round_problem(fleet, WORK, np.arange(fleet.num_devices))
        stays = np.zeros(fleet.num_devices, dtype=bool) if stays is None else stays
        edge, value = self.search(problem, group, stays, start, np.ones(fleet.num_edges, dtype=bool))
        assert value == pytest.approx(self.objective(fleet, edge), rel=1e-6)
        return edge

    def check_no_move_is_better(self, fleet: Fleet, group: np.ndarray, edge: np.ndarray) -> None:
        """Assert that no replacement and no transfer lowers the bill of a choice on 3 edges."""
        value = self.objective(fleet, edge)
        for a in np.flatnonzero(edge != NOWHERE):
            for b in [a, *np.flatnonzero((edge == NOWHERE) & (group == group[a]))]:
                for m in range(3):
                    moved = edge.copy()
                    moved[a] = NOWHERE
                    moved[b] = m
                    assert self.objective(fleet, moved) >= value * (1 - 3e-6)

    def check_numbers_of_groups(self) -> None:
        """Assert that every group keeps its number, and that devices that stay are scheduled."""
        fleet, group = fleet_of(4, 30, 4), np.arange(30) % 3
        start = np.where(np.arange(30) < 12, 0, NOWHERE)
        stays = np.isin(np.arange(30), [1, 5])
        edge = self.searched(fleet, group, start, stays)
        assert np.bincount(group[edge != NOWHERE]).tolist() == [4, 4, 4]
        assert (edge[[1, 5]] != NOWHERE).all()
        assert set(np.flatnonzero(edge != NOWHERE)) != set(range(12))

    def check_an_edge_that_is_down(self) -> None:
        """Assert that it gets no device and costs nothing."""
        fleet = fleet_of(0, 16, 3)
        problem, _ = round_problem(fleet, WORK, np.arange(16))
        start = np.where(np.arange(16) < 8, 0, NOWHERE)
        up = np.array([True, False, True])
        edge, value = self.search(problem, np.zeros(16, dtype=np.intp), np.zeros(16, dtype=bool), start, up)
        assert set(edge[edge != NOWHERE]) == {0, 2}
        hop = problem.hop.energy[1]
        # The hop of the edge that is down is not the slowest.
        assert value == pytest.approx(self.objective(fleet, edge) - hop, rel=1e-6)

    def small_rounds(self) -> Iterator[tuple[Fleet, np.ndarray, np.ndarray, float]]:
        """Yield 12 fleets of 7 devices in two groups, with the groups, a start and the least bill of all choices.

        3 of 4 and 1 of 3 devices on 2 edges are 192 choices.
        """
        for seed in range(12):
            fleet, group = fleet_of(seed, 7, 2), np.array([0, 0, 0, 0, 1, 1, 1])
            values = []
            for first in itertools.combinations(range(4), 3):
                for second in range(4, 7):
                    for edges in itertools.product(range(2), repeat=4):
                        choice = np.full(7, NOWHERE)
                        choice[[*first, second]] = edges
                        values.append(self.objective(fleet, choice))
            yield fleet, group, np.array([0, 0, 0, NOWHERE, 0, NOWHERE, NOWHERE]), min(values)
