"""Local search ends where no transfer and no exchange helps, and close to the optimum of small instances."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.assignment import local_search
from hflray.assignment import search as searches
from hflray.assignment.objective import round_problem
from hflray.assignment.search import AT_ONCE, SHORTLIST, best_exchange, best_move
from hflray.assignment.state import ALONE, STAMP, blank_state, make_move, restart
from tests.assignment.brute import brute_force
from tests.assignment.rounds import WORK, assign, neighbours, objective, random_round


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
@pytest.mark.parametrize("start, hop", [("best_gain", True), ("geographic", False), ("random", True)])
@pytest.mark.parametrize("sizes", [(100, 4, 16), (20, 8, 6)])
def test_no_single_move_is_better(sizes, start, hop, coupling):
    work = dataclasses.replace(WORK, cloud_hop=hop)
    for seed in range(2):
        fleet, devices = random_round(seed, *sizes)
        result = assign("local_search", fleet, devices, seed, work, start=start, coupling=coupling)
        value = objective(fleet, devices, result, work, coupling)
        for _, moved in neighbours(result, sizes[1]):
            assert objective(fleet, devices, moved, work, coupling) >= value * (1 - 3e-6)


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
