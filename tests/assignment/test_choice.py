"""The search over devices and edges ends where no replacement or transfer helps, and close to the best choice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hflray.assignment import assign_the_rest, reachable
from hflray.assignment.choice import search_choice
from hflray.assignment.objective import round_problem
from hflray.assignment.state import NOWHERE
from hflray.experiment import Experiment
from hflray.fleet import Fleet
from hflray.support import checkpoint
from tests.assignment.rounds import WORK, objective, random_round
from tests.conftest import small_config
from tests.world.living import living, results


def bill(fleet: Fleet, edge: Any, coupling: str) -> float:
    return objective(fleet, np.arange(fleet.num_devices), edge, coupling=coupling)


def searched(fleet: Fleet, group: Any, start: Any, coupling: str, stays: Any = None) -> np.ndarray:
    """Return the choice that the search finds, whose value must be its bill."""
    problem, _ = round_problem(fleet, WORK, np.arange(fleet.num_devices))
    stays = np.zeros(fleet.num_devices, dtype=bool) if stays is None else stays
    edge, value = search_choice(problem, group, stays, start, np.ones(fleet.num_edges, dtype=bool), coupling)
    assert value == pytest.approx(bill(fleet, edge, coupling), rel=1e-6)
    return edge


@pytest.mark.parametrize("coupling, devices, scheduled", [("per_edge", 20, 12), ("joint", 16, 8)])
def test_no_replacement_and_no_transfer_is_better(coupling: str, devices: int, scheduled: int) -> None:
    lower = 0
    for seed in range(3):
        fleet, group = random_round(seed, devices, 3, devices)[0], np.arange(devices) % 4
        start = np.where(np.arange(devices) < scheduled, np.arange(devices) % 3, NOWHERE)
        edge, per_edge = (searched(fleet, group, start, c) for c in (coupling, "per_edge"))
        value = bill(fleet, edge, coupling)
        assert value < bill(fleet, start, coupling)
        assert value <= bill(fleet, per_edge, coupling) * (1 + 1e-9)
        lower += value < bill(fleet, per_edge, coupling) * (1 - 1e-6)
        for a in np.flatnonzero(edge != NOWHERE):
            for b in [a, *np.flatnonzero((edge == NOWHERE) & (group == group[a]))]:
                for m in range(3):
                    moved = edge.copy()
                    moved[a], moved[b] = NOWHERE, m
                    assert bill(fleet, moved, coupling) >= value * (1 - 3e-6)
    # The choice of the lowest per-edge objective is not always a local optimum of the joint one.
    assert (lower > 0) == (coupling == "joint")


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_every_group_keeps_its_number_and_devices_that_stay_are_scheduled(coupling: str) -> None:
    fleet, group = random_round(4, 30, 4, 30)[0], np.arange(30) % 3
    start = np.where(np.arange(30) < 12, 0, NOWHERE)
    edge = searched(fleet, group, start, coupling, np.isin(np.arange(30), [1, 5]))
    assert np.bincount(group[edge != NOWHERE]).tolist() == [4, 4, 4]
    assert (edge[[1, 5]] != NOWHERE).all()
    assert set(np.flatnonzero(edge != NOWHERE)) != set(range(12))


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_an_edge_that_is_down_gets_no_device_and_costs_nothing(coupling: str) -> None:
    fleet, _ = random_round(0, 16, 3, 16)
    problem, _ = round_problem(fleet, WORK, np.arange(16))
    start, up = np.where(np.arange(16) < 8, 0, NOWHERE), np.array([True, False, True])
    edge, value = search_choice(problem, np.zeros(16, dtype=int), np.zeros(16, dtype=bool), start, up, coupling)
    assert set(edge[edge != NOWHERE]) == {0, 2}
    # The hop of the edge that is down is not the slowest.
    assert value == pytest.approx(bill(fleet, edge, coupling) - problem.hop.energy[1], rel=1e-6)


def test_it_is_near_the_best_of_all_choices() -> None:
    """3 of 4 and 1 of 3 devices on 2 edges are 192 choices."""
    choices = []
    for first in itertools.combinations(range(4), 3):
        for second, edges in itertools.product(range(4, 7), itertools.product(range(2), repeat=4)):
            choice = np.full(7, NOWHERE)
            choice[[*first, second]] = edges
            choices.append(choice)
    group, start = np.array([0, 0, 0, 0, 1, 1, 1]), np.array([0, 0, 0, NOWHERE, 0, NOWHERE, NOWHERE])
    gaps: dict[tuple[str, str], list[float]] = {}
    for seed in range(12):
        fleet, _ = random_round(seed, 7, 2, 7)
        found = {coupling: searched(fleet, group, start, coupling) for coupling in ("per_edge", "joint")}
        for judge in found:
            least = min(bill(fleet, choice, judge) for choice in choices)
            for coupling, edge in found.items():
                gaps.setdefault((judge, coupling), []).append(bill(fleet, edge, judge) / least - 1)
    for coupling, largest in (("per_edge", 0.15), ("joint", 0.005)):
        assert min(gaps[coupling, coupling]) > -1e-6
        assert np.median(gaps[coupling, coupling]) < 1e-6
        assert max(gaps[coupling, coupling]) < largest
    assert max(gaps["joint", "per_edge"]) > 0.01  # a choice by the per-edge objective misses more


# Devices that keep their first edge (`assignment.once`).


MOVING = (
    "scheduling.name=fedavg", "scheduling.num_scheduled=9", "assignment.name=best_gain", "max_rounds=5",
    "world.mobility={name: gauss_markov, options: {speed_m_per_s: 200}, slot_s: 0.1}",
)  # fmt: skip
FAILING = ("world.edge_failure={mtbf_s: 6, mttr_s: 6}", "world.wait_s=1", "max_rounds=12")
ONCE = "assignment.once=true"


def test_the_assigner_answers_for_those_that_keep_no_edge() -> None:
    assert assign_the_rest(np.array([2, -1, 0, -1]), lambda: np.array([0, 1, 1, 2])).tolist() == [2, 1, 0, 2]
    kept = np.array([2, 0])
    own = assign_the_rest(kept, lambda: pytest.fail("all devices keep theirs"))
    assert own.tolist() == [2, 0]
    assert own is not kept


def test_a_device_is_reachable_if_its_edge_is_up() -> None:
    assert reachable(np.array([-1, 0, 1, 0]), np.array([False, True])).tolist() == [True, False, True, False]


@pytest.mark.parametrize("once", [True, False])
def test_a_device_that_moves_keeps_its_edge_or_is_assigned_anew(once: bool) -> None:
    edges: dict[int, set[int]] = {}
    with living(*MOVING, f"assignment.once={once}") as experiment:
        for record in experiment:
            for device, edge in zip(record.devices.tolist(), record.assignment.tolist(), strict=True):
                edges.setdefault(device, set()).add(edge)
    assert (max(map(len, edges.values())) == 1) == once


def test_devices_of_an_edge_that_is_down_are_not_scheduled() -> None:
    idle = 0
    with living(*MOVING, *FAILING, ONCE) as experiment:
        while not experiment.finished:
            kept = experiment.history.edge_of
            record = experiment.run_round()
            mine = kept[record.devices]
            assert ((mine < 0) | (mine == record.assignment)).all()
            idle += len(record.devices) < 9
    assert idle > 0


def test_a_resumed_run_keeps_the_edges(tmp_path) -> None:
    settings = (*MOVING, "world.edge_failure={mtbf_s: 20, mttr_s: 5}", "world.wait_s=1", ONCE)
    expected = results(living(*settings))
    first = living(*settings)
    for _ in range(2):
        first.run_round()
    checkpoint.save(tmp_path / "state", first.state_dict())
    resumed = living(*settings)
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert results(resumed) == expected[2:]


def test_without_it_nothing_is_remembered() -> None:
    with Experiment(small_config("scheduling.name=fedavg")) as experiment:
        experiment.run_round()
        assert "history" not in experiment.state_dict()
