"""The objective of a round is what the cost module bills, for the slowest edge and for the mean over edges."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.objective import RoundProblem, round_problem
from hflray.assignment.search import transfer_objectives
from hflray.assignment.state import assigned_objective, blank_state, restart
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from tests.assignment.brute import brute_force
from tests.assignment.rounds import WORK, assign, random_round


def mean_problem(seed: int, h: int = 6, m: int = 3) -> tuple[RoundProblem, Fleet, Workload]:
    """Return a small round whose delay is the mean over edges with devices, with its fleet and its work."""
    work = dataclasses.replace(WORK, minimise="mean_edge", delay_weight=10.0 ** (seed % 3 - 1))
    fleet, devices = random_round(seed, h, m, h)
    return round_problem(fleet, work, devices)[0], fleet, work


@pytest.mark.parametrize("hop", [True, False])
def test_the_kernel_objective_is_the_cost_modules(hop: bool) -> None:
    fleet, devices = random_round(0)
    work = dataclasses.replace(WORK, delay_weight=0.7, cloud_hop=hop)
    problem, scheduled = round_problem(fleet, work, devices)
    for edges in (fleet.distance_m[scheduled].argmin(axis=1), np.full(50, 2)):
        state = blank_state(problem, 0, False)
        value = restart(problem, state, edges)
        cost = round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges))
        assert value == pytest.approx(cost.objective, rel=1e-8)
        np.testing.assert_allclose(state.energy, cost.edge_energy_j, rtol=1e-8)
        np.testing.assert_allclose(state.delay, cost.edge_delay_s, rtol=1e-8)


@pytest.mark.parametrize("edges", [[0, 0, 1, 1, 2, 2], [0, 0, 0, 1, 1, 1], [2] * 6])
def test_the_mean_is_over_edges_with_devices_and_agrees_with_the_bill(edges: list[int]) -> None:
    problem, fleet, work = mean_problem(3)
    cost = round_cost(fleet, work, range(6), edges, allocate_round(fleet, work, range(6), edges))
    expected = cost.energy_j + work.delay_weight * cost.edge_delay_s[sorted(set(edges))].mean()
    assert assigned_objective(problem, edges) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("seed", range(12))
def test_local_search_finds_the_optimum_of_the_mean(seed: int) -> None:
    problem, fleet, work = mean_problem(seed)
    _, best = brute_force(fleet, work, np.arange(6))
    found = assign("local_search", fleet, np.arange(6), work=work, restarts=30)
    assert assigned_objective(problem, found) == pytest.approx(best, rel=1e-6)


@pytest.mark.parametrize("options", [{"candidates": 3}, {"restarts": 1}])
def test_minimising_the_mean_gives_a_lower_mean(options) -> None:
    """Each search is better by the objective that it minimises; large searches use candidate edges."""
    fleet, devices = random_round(5, 40, 5, 40)
    values = {}
    for minimise in ("round", "mean_edge"):
        found = assign("local_search", fleet, devices, work=dataclasses.replace(WORK, minimise=minimise), **options)
        for judge in ("round", "mean_edge"):
            problem, _ = round_problem(fleet, dataclasses.replace(WORK, minimise=judge), devices)
            values[minimise, judge] = assigned_objective(problem, found)
    assert values["mean_edge", "mean_edge"] < values["round", "mean_edge"]
    assert values["round", "round"] < values["mean_edge", "round"]


def test_hfel_lowers_the_mean() -> None:
    problem, fleet, work = mean_problem(2)
    found = assign("hfel", fleet, np.arange(6), work=work, transfers=10, exchanges=10)
    assert assigned_objective(problem, found) < assigned_objective(problem, fleet.nearest_edges(np.arange(6))[:, 0])


def test_another_word_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="minimise: got 'all'; accepted: round, mean_edge"):
        Workload(model_bits=1.0, minimise="all")


@pytest.mark.parametrize("scheduled, edges", [(12, 3), (1, 2), (3, 1), (5, 7)])
@pytest.mark.parametrize("minimise", ["round", "mean_edge"])
def test_the_table_of_single_transfers_holds_the_objective_after_each(scheduled, edges, minimise) -> None:
    fleet, devices = random_round(scheduled, 20, edges, scheduled)
    problem, _ = round_problem(fleet, dataclasses.replace(WORK, minimise=minimise), devices)
    start = np.random.default_rng(scheduled).integers(edges, size=scheduled)
    value, table = transfer_objectives(problem, start)
    assert table.shape == (scheduled, edges)
    assert value == pytest.approx(assigned_objective(problem, start), rel=1e-8)
    for h in range(scheduled):
        for m in range(edges):
            moved = np.where(np.arange(scheduled) == h, m, start)
            assert table[h, m] == pytest.approx(assigned_objective(problem, moved), rel=1e-4)
