"""The search on the joint objective ends where no replacement and no transfer helps, and close to the best choice."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.choice import NOWHERE, search_choice
from hflray.assignment.joint_choice import search_joint_choice
from hflray.assignment.objective import round_problem
from hflray.cost import Workload, round_cost
from hflray.fleet import Fleet, FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def fleet_of(seed: int, devices: int, edges: int) -> Fleet:
    return sample_fleet(FleetConfig(num_devices=devices, num_edges=edges), np.random.default_rng(seed))


def objective(fleet: Fleet, edge: np.ndarray) -> float:
    """Return what a round with a joint deadline is billed, J."""
    devices = np.flatnonzero(edge != NOWHERE)
    allocation = allocate_round(fleet, WORK, devices, edge[devices], coupling="joint")
    return round_cost(fleet, WORK, devices, edge[devices], allocation).objective


def searched(fleet: Fleet, group: np.ndarray, start: np.ndarray, stays: np.ndarray | None = None) -> np.ndarray:
    problem, _ = round_problem(fleet, WORK, np.arange(fleet.num_devices))
    stays = np.zeros(fleet.num_devices, dtype=bool) if stays is None else stays
    edge, value = search_joint_choice(problem, group, stays, start, np.ones(fleet.num_edges, dtype=bool))
    assert value == pytest.approx(objective(fleet, edge), rel=1e-6)
    return edge


def test_no_move_is_better() -> None:
    lower = 0
    for seed in range(3):
        fleet, group = fleet_of(seed, 16, 3), np.arange(16) % 4
        start = np.where(np.arange(16) < 8, np.arange(16) % 3, NOWHERE)
        edge = searched(fleet, group, start)
        value = objective(fleet, edge)
        problem, _ = round_problem(fleet, WORK, np.arange(16))
        per_edge, _ = search_choice(problem, group, np.zeros(16, dtype=bool), start, np.ones(3, dtype=bool))
        assert value <= objective(fleet, per_edge) * (1 + 1e-9)
        lower += value < objective(fleet, per_edge) * (1 - 1e-6)
        for a in np.flatnonzero(edge != NOWHERE):
            for b in [a, *np.flatnonzero((edge == NOWHERE) & (group == group[a]))]:
                for m in range(3):
                    moved = edge.copy()
                    moved[a] = NOWHERE
                    moved[b] = m
                    assert objective(fleet, moved) >= value * (1 - 3e-6)
    assert lower > 0  # the choice of the lowest per-edge objective is not always a local optimum of this one


def test_every_group_keeps_its_number_and_devices_that_stay_are_scheduled() -> None:
    fleet, group = fleet_of(4, 30, 4), np.arange(30) % 3
    start = np.where(np.arange(30) < 12, 0, NOWHERE)
    stays = np.isin(np.arange(30), [1, 5])
    edge = searched(fleet, group, start, stays)
    assert np.bincount(group[edge != NOWHERE]).tolist() == [4, 4, 4]
    assert (edge[[1, 5]] != NOWHERE).all()
    assert set(np.flatnonzero(edge != NOWHERE)) != set(range(12))


def test_an_edge_that_is_down_gets_no_device_and_costs_nothing() -> None:
    fleet = fleet_of(0, 16, 3)
    problem, _ = round_problem(fleet, WORK, np.arange(16))
    start = np.where(np.arange(16) < 8, 0, NOWHERE)
    up = np.array([True, False, True])
    edge, value = search_joint_choice(problem, np.zeros(16, dtype=np.intp), np.zeros(16, dtype=bool), start, up)
    assert set(edge[edge != NOWHERE]) == {0, 2}
    hop = problem.hop.energy[1]
    assert value == pytest.approx(objective(fleet, edge) - hop, rel=1e-6)  # the down edge's hop is not the slowest


def test_near_the_best_of_all_choices() -> None:
    """7 devices in two groups, 3 of 4 and 1 of 3 on 2 edges: 192 choices."""
    gaps, per_edge_gaps = [], []
    for seed in range(12):
        fleet, group = fleet_of(seed, 7, 2), np.array([0, 0, 0, 0, 1, 1, 1])
        values = []
        for first in itertools.combinations(range(4), 3):
            for second in range(4, 7):
                for edges in itertools.product(range(2), repeat=4):
                    choice = np.full(7, NOWHERE)
                    choice[[*first, second]] = edges
                    values.append(objective(fleet, choice))
        start = np.array([0, 0, 0, NOWHERE, 0, NOWHERE, NOWHERE])
        gaps.append(objective(fleet, searched(fleet, group, start)) / min(values) - 1)
        problem, _ = round_problem(fleet, WORK, np.arange(7))
        per_edge, _ = search_choice(problem, group, np.zeros(7, dtype=bool), start, np.ones(2, dtype=bool))
        per_edge_gaps.append(objective(fleet, per_edge) / min(values) - 1)
    assert min(gaps) > -1e-6
    assert np.median(gaps) < 1e-6
    assert max(gaps) < 0.005
    assert max(per_edge_gaps) > 0.01  # a choice by the per-edge objective misses more
