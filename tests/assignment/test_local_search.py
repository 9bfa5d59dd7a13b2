"""Local search ends where no transfer and no exchange helps, and close to the optimum of small instances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment import local_search
from hflray.assignment import search as searches
from hflray.assignment.bounds import brute_force
from hflray.assignment.objective import all_costs, round_problem, totals_of
from hflray.assignment.search import AT_ONCE, SHORTLIST, best_exchange, best_move, swap_value
from hflray.assignment.state import ALONE, STAMP, blank_state, make_move, restart
from tests.assignment.rounds import WORK, assign, neighbours, objective, random_round


@pytest.mark.parametrize("hop", [True, False])
@pytest.mark.parametrize("start", ["best_gain", "geographic", "random"])
def test_no_single_move_is_better(start, hop):
    work = dataclasses.replace(WORK, cloud_hop=hop)
    for seed in range(3):
        fleet, devices = random_round(seed, scheduled=16, num_edges=4)
        result = assign("local_search", fleet, devices, seed, work, start=start)
        value = objective(fleet, devices, result, work)
        for _, moved in neighbours(result, 4):
            assert objective(fleet, devices, moved, work) >= value * (1 - 3e-6)


def test_the_tables_hold_the_costs_of_moves_even_after_many_moves():
    fleet, devices = random_round(5, scheduled=20)
    problem, _ = round_problem(fleet, WORK, devices)
    state = blank_state(problem, ALONE, True)
    restart(problem, state, np.random.default_rng(0).integers(5, size=20))
    no_group, all_stay, all_links = np.zeros(20, dtype=int), np.ones(20, dtype=bool), np.ones((20, 5), dtype=bool)
    for _ in range(6):
        values = {move: objective(fleet, devices, moved) for move, moved in neighbours(state.assignment.copy(), 5)}
        value, *move = best_move(problem, state, all_links, no_group, all_stay)
        assert value == pytest.approx(values[tuple(move)], rel=1e-5)
        assert value == pytest.approx(min(v for (a, b, _), v in values.items() if a == b), rel=1e-5)
        value, _, _, _ = best_exchange(problem, state, 8, -np.inf, 10**9)  # -inf: all are solved
        assert value == pytest.approx(min(v for (a, b, _), v in values.items() if a != b), rel=1e-5)
        assert make_move(problem, state, *move) == pytest.approx(values[tuple(move)], rel=1e-8)


def test_an_exchange_is_priced_as_the_whole_objective_also_of_the_mean():
    for seed in range(6):
        fleet, devices = random_round(seed, 5, 3, 5)
        work = dataclasses.replace(WORK, minimise="mean_edge", delay_weight=10.0 ** (seed % 3 - 1))
        problem, _ = round_problem(fleet, work, devices)
        start = np.array([0, 0, 1, 1, 1])  # edge 2 is empty
        state = blank_state(problem, ALONE, True)
        restart(problem, state, start)
        totals = totals_of(state.energy, state.delay, state.solved.size)
        for (a, b, _), moved in neighbours(start, 3):
            if a != b:
                value = swap_value(problem, state, a, b, totals, scratch_with_list(8))
                assert value == pytest.approx(all_costs(problem, moved, *np.empty((2, 3))), rel=1e-6)


def test_small_instances_come_close_to_brute_force():
    excess = []
    for seed in range(200):
        fleet, devices = random_round(seed, num_devices=8, num_edges=3, scheduled=8)
        _, value = brute_force(fleet, WORK, devices)
        result = assign("local_search", fleet, devices, seed)
        excess.append(objective(fleet, devices, result) / value - 1)
        assert excess[-1] >= -1e-8
    assert np.mean(excess) <= 0.005


def test_local_search_is_well_below_hfel_300():
    ratios = []
    for seed in range(20):
        fleet, devices = random_round(seed)
        hfel, result = (
            objective(fleet, devices, assign(name, fleet, devices, seed)) for name in ("hfel", "local_search")
        )
        ratios.append(result / hfel)
    assert np.mean(ratios) < 0.93


def test_restarts_never_hurt_and_follow_the_generator():
    fleet, devices = random_round(2, scheduled=20)
    values = []
    for restarts in (0, 3, 10):
        runs = [assign("local_search", fleet, devices, 1, restarts=restarts) for _ in range(2)]
        np.testing.assert_array_equal(*runs)
        values.append(objective(fleet, devices, runs[0]))
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
        monkeypatch.setattr(searches, "best_move", self.transfer)
        monkeypatch.setattr(searches, "best_exchange", self.exchange)

    def perf_counter(self) -> float:
        return self.moves * 1e-6

    def transfer(self, problem, state, allowed, *groups):
        self.moves += int(allowed.sum())
        self.answers.append("transfer")
        return best_move(problem, state, allowed, *groups)

    def exchange(self, problem, state, *limits):
        before = state.tables.swapped[..., STAMP].copy()
        result = best_exchange(problem, state, *limits)
        # Exchanges with a valid entry are not solved again.
        changed = state.tables.swapped[..., STAMP] != before
        self.moves += int(np.triu(changed | changed.T).sum())
        self.answers.append("exchange")
        return result


@pytest.mark.parametrize("budget_ms", [1, 7, 30, 60])
def test_the_search_keeps_its_budget_and_never_worsens_the_start(monkeypatch, budget_ms):
    h, m = 250, 3
    fleet, devices = random_round(2, num_devices=300, scheduled=h, num_edges=m)
    clock = MoveClock(monkeypatch)
    result = assign("local_search", fleet, devices, budget_ms=budget_ms)
    # The last step may exceed the budget by twice all transfers, the shortlist, and the exchanges between two checks.
    largest = 2 * h * m + SHORTLIST + AT_ONCE
    assert budget_ms * 1000 <= clock.moves < budget_ms * 1000 + largest
    gain = fleet.gain[devices].argmax(axis=1)
    assert objective(fleet, devices, result) <= objective(fleet, devices, gain) * (1 + 1e-9)


def test_a_larger_budget_is_no_worse_and_continues_after_a_local_optimum(monkeypatch):
    fleet, devices = random_round(2, scheduled=30)
    values, exchanges = [], []
    for budget_ms in (1, 10, 100):
        with monkeypatch.context() as patch:
            clock = MoveClock(patch)
            result = assign("local_search", fleet, devices, budget_ms=budget_ms)
        assert budget_ms * 1000 <= clock.moves < budget_ms * 1000 + 2 * 150 + 30 * 29 // 2
        values.append(objective(fleet, devices, result))
        exchanges.append(clock.answers.count("exchange"))
    assert values[0] >= values[1] >= values[2]
    assert values[2] < values[0]
    assert exchanges[2] > exchanges[1]
