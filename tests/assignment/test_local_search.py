"""Local search ends where no transfer and no exchange helps, and close to the optimum of small instances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hflray.assignment.neighbours import best_exchange, best_transfer

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner, local_search, neighbours
from hflray.assignment import search as searches
from hflray.assignment.bounds import brute_force
from hflray.assignment.local_search import PerEdgeSearch
from hflray.assignment.objective import round_problem
from hflray.assignment.state import new_state, state_objective
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def random_round(seed, num_devices=100, num_edges=5, scheduled=50):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=num_devices, num_edges=num_edges), rng)
    return fleet, np.sort(rng.choice(num_devices, scheduled, replace=False))


def objective(fleet, work, devices, assignment):
    return round_cost(fleet, work, devices, assignment, allocate_round(fleet, work, devices, assignment)).objective


@pytest.mark.parametrize("hop", [True, False])
@pytest.mark.parametrize("start", ["best_gain", "geographic", "random"])
def test_no_single_move_is_better(start, hop):
    work = dataclasses.replace(WORK, cloud_hop=hop)
    for seed in range(3):
        fleet, devices = random_round(seed, scheduled=16, num_edges=4)
        result = build_assigner("local_search", start=start).assign(fleet, work, devices, np.random.default_rng(seed))
        value = objective(fleet, work, devices, result)
        for a in range(16):
            for edge in range(4):
                moved = result.copy()
                moved[a] = edge
                assert objective(fleet, work, devices, moved) >= value * (1 - 3e-6)
            for b in range(a):
                moved = result.copy()
                moved[[a, b]] = result[[b, a]]
                assert objective(fleet, work, devices, moved) >= value * (1 - 3e-6)


def test_the_tables_hold_the_costs_of_moves_even_after_many_moves():
    fleet, devices = random_round(5, scheduled=20)
    problem, _ = round_problem(fleet, WORK, devices)
    state = new_state(problem, np.random.default_rng(0).integers(5, size=20), exchanges=True)
    for _ in range(6):
        before = state.assignment.copy()
        value, device, edge = best_transfer(problem, state, np.ones((20, 5), dtype=bool))
        moved = before.copy()
        moved[device] = edge
        assert value == pytest.approx(objective(fleet, WORK, devices, moved), rel=1e-5)
        objectives = [
            objective(fleet, WORK, devices, np.where(np.arange(20) == h, m, before))
            for h in range(20)
            for m in range(5)
            if m != before[h]
        ]
        assert value == pytest.approx(min(objectives), rel=1e-5)
        value, _, _, _ = best_exchange(problem, state, 8, -np.inf, 10**9)  # -inf: all are solved
        swaps = []
        for i in range(20):
            for j in range(i):
                swapped = before.copy()
                swapped[[i, j]] = before[[j, i]]
                swaps.append(objective(fleet, WORK, devices, swapped))
        assert value == pytest.approx(min(swaps), rel=1e-5)
        descend_one_step(problem, state, device, edge)
        assert state_objective(problem, state) == pytest.approx(objective(fleet, WORK, devices, moved), rel=1e-8)


def descend_one_step(problem, state, device, edge):
    from hflray.assignment.state import settle

    old = int(state.assignment[device])
    state.assignment[device] = edge
    settle(problem, state, old)
    settle(problem, state, edge)


def test_small_instances_come_close_to_brute_force():
    excess = []
    for seed in range(200):
        fleet, devices = random_round(seed, num_devices=8, num_edges=3, scheduled=8)
        _, value = brute_force(fleet, WORK, devices)
        result = build_assigner("local_search").assign(fleet, WORK, devices, np.random.default_rng(seed))
        excess.append(objective(fleet, WORK, devices, result) / value - 1)
        assert excess[-1] >= -1e-8
    assert np.mean(excess) <= 0.005


def test_local_search_is_well_below_hfel_300():
    ratios = []
    for seed in range(20):
        fleet, devices = random_round(seed)
        hfel, result = (
            objective(
                fleet, WORK, devices, build_assigner(name).assign(fleet, WORK, devices, np.random.default_rng(seed))
            )
            for name in ("hfel", "local_search")
        )
        ratios.append(result / hfel)
    assert np.mean(ratios) < 0.93


def test_restarts_never_hurt_and_follow_the_generator():
    fleet, devices = random_round(2, scheduled=20)
    values = []
    for restarts in (0, 3, 10):
        runs = [
            build_assigner("local_search", restarts=restarts).assign(fleet, WORK, devices, np.random.default_rng(1))
            for _ in range(2)
        ]
        np.testing.assert_array_equal(*runs)
        values.append(objective(fleet, WORK, devices, runs[0]))
    assert values[2] <= values[1] <= values[0]


class MoveClock:
    """A clock on which each transfer or exchange that is solved takes a microsecond, and all else takes no time.

    Attributes:
        moves: number of moves solved.
        answers: "transfer" or "exchange" for each result that the search got.
    """

    def __init__(self, monkeypatch) -> None:
        self.moves, self.answers = 0, []
        for module in (local_search, searches):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(local_search, "best_transfer", self.transfer)
        monkeypatch.setattr(local_search, "best_exchange", self.exchange)

    def perf_counter(self) -> float:
        return self.moves * 1e-6

    def transfer(self, problem, state, allowed):
        self.moves += int(allowed.sum())
        self.answers.append("transfer")
        return best_transfer(problem, state, allowed)

    def exchange(self, problem, state, *limits):
        before = state.tables.swap_stamp.copy()
        result = best_exchange(problem, state, *limits)
        # Exchanges with a valid entry are not solved again.
        self.moves += int(np.triu((state.tables.swap_stamp != before) | (state.tables.swap_stamp != before).T).sum())
        self.answers.append("exchange")
        return result


@pytest.mark.parametrize("budget_ms", [1, 7, 30, 60])
def test_the_search_keeps_its_budget_and_never_worsens_the_start(monkeypatch, budget_ms):
    h, m = 250, 3
    fleet, devices = random_round(2, num_devices=300, scheduled=h, num_edges=m)
    clock = MoveClock(monkeypatch)
    result = build_assigner("local_search", budget_ms=budget_ms).assign(fleet, WORK, devices, np.random.default_rng(0))
    # The last step may exceed the budget by twice all transfers, the shortlist, and the exchanges between two checks.
    largest = 2 * h * m + neighbours.SHORTLIST + neighbours.AT_ONCE
    assert budget_ms * 1000 <= clock.moves < budget_ms * 1000 + largest
    gain = fleet.gain[devices].argmax(axis=1)
    assert objective(fleet, WORK, devices, result) <= objective(fleet, WORK, devices, gain) * (1 + 1e-9)


def test_a_larger_budget_is_no_worse_and_continues_after_a_local_optimum(monkeypatch):
    fleet, devices = random_round(2, scheduled=30)
    values, exchanges = [], []
    for budget_ms in (1, 10, 100):
        with monkeypatch.context() as patch:
            clock = MoveClock(patch)
            assigner = build_assigner("local_search", budget_ms=budget_ms)
            result = assigner.assign(fleet, WORK, devices, np.random.default_rng(0))
        assert budget_ms * 1000 <= clock.moves < budget_ms * 1000 + 2 * 150 + 30 * 29 // 2
        values.append(objective(fleet, WORK, devices, result))
        exchanges.append(clock.answers.count("exchange"))
    assert values[0] >= values[1] >= values[2]
    assert values[2] < values[0]
    assert exchanges[2] > exchanges[1]


@pytest.mark.parametrize("num_edges, scheduled", [(1, 10), (5, 1), (1, 1), (2, 2)])
def test_one_edge_or_one_device_is_assigned(num_edges, scheduled):
    fleet, devices = random_round(2, num_edges=num_edges, scheduled=scheduled)
    for options in ({}, {"restarts": 2}, {"budget_ms": 1}):
        edges = build_assigner("local_search", **options).assign(fleet, WORK, devices, np.random.default_rng(0))
        assert ((edges >= 0) & (edges < num_edges)).all()


def test_a_second_descent_changes_nothing():
    fleet, devices = random_round(6)
    problem, _ = round_problem(fleet, WORK, devices)
    search = PerEdgeSearch(problem, exchanges=True)
    value = search.run(fleet.gain[devices].argmax(axis=1))
    final = search.assignment.copy()
    assert search.run(final) == value
    np.testing.assert_array_equal(search.assignment, final)


@pytest.mark.parametrize(
    "options, text",
    [
        ({"restarts": -1}, "restarts"),
        ({"kick": 0}, "kick"),
        ({"budget_ms": 0}, "budget_ms"),
        ({"start": "here"}, "start.*here.*best_gain"),
    ],
)
def test_bad_options_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        build_assigner("local_search", **options)
