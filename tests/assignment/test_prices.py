"""One deadline for all edges: the bounds hold, and moves are accepted as by the exact solver."""

from __future__ import annotations

import dataclasses
from functools import partial

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.objective import round_problem
from hflray.assignment.prices import begin_joint, move_prices, objective_bounds, solve_cold, tighten, try_move
from hflray.assignment.state import WEIGHT, blank_state, list_members, solve_members
from hflray.cost import Workload, cloud_hop, round_cost
from hflray.fleet import FleetConfig, sample_fleet
from tests.assignment.rounds import objective, random_round

BITS = 448 * 8192
joint_objective = partial(objective, coupling="joint")


def blank_states(problem):
    return tuple(blank_state(problem, 0, False) for _ in range(2))


SIZES = [(100, 5, 50), (8, 3, 4), (30, 12, 10), (20, 2, 9), (6, 1, 6)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("hop", [True, False])
def test_the_objective_is_that_of_the_joint_allocation(sizes, hop):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        fleet, devices = random_round(seed, *sizes)
        work = Workload(model_bits=BITS, cloud_hop=hop, delay_weight=10 ** rng.uniform(-3, 3))
        assignment = rng.integers(sizes[1], size=sizes[2])
        problem, _ = round_problem(fleet, work, devices)
        state, _ = blank_states(problem)
        result = begin_joint(problem, state, assignment)
        assert result == pytest.approx(joint_objective(fleet, devices, assignment, work), rel=1e-9)
        prices = allocate_round(fleet, work, devices, assignment, coupling="joint").edge_price
        used = np.unique(assignment)
        np.testing.assert_allclose(
            state.solved.edge[WEIGHT, used], prices[used], rtol=1e-3, atol=1e-6 * work.delay_weight
        )


def test_any_prices_give_a_lower_and_an_upper_bound():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        fleet, devices = random_round(seed, 30, 4, 12)
        work = Workload(model_bits=BITS, cloud_hop=bool(seed % 2), delay_weight=10 ** rng.uniform(-2, 2))
        assignment = rng.integers(3, size=12)  # edge 3 stays empty
        problem, _ = round_problem(fleet, work, devices)
        state, _ = blank_states(problem)
        begin_joint(problem, state, assignment)
        exact = joint_objective(fleet, devices, assignment, work)
        for _ in range(5):
            share = rng.dirichlet(np.ones(4))  # the fourth share has no edge
            for m in range(3):
                state.solved.edge[WEIGHT, m] = work.delay_weight * max(share[m], 1e-6) / 1.00001
                solve_members(problem, state, m, False, 1e-10)
            lower, upper = objective_bounds(problem, state)
            assert lower <= exact * (1 + 1e-9)
            assert upper >= exact * (1 - 1e-9)
            assert lower < exact * (1 - 1e-6) < upper  # far from the optimum neither bound is tight
        state.solved.edge[WEIGHT][:3] *= 1.1 * work.delay_weight / state.solved.edge[WEIGHT][:3].sum()
        assert objective_bounds(problem, state)[0] == -np.inf  # prices above λ in total give no bound


def test_the_hop_of_an_empty_edge_can_be_the_deadline():
    fleet, devices = random_round(0, 20, 3, 9)
    fleet = dataclasses.replace(fleet, cloud_gain=fleet.cloud_gain * np.array([1.0, 1.0, 1e-7]))
    work = Workload(model_bits=BITS)
    assignment = np.arange(9) % 2
    longest = cloud_hop(fleet, work.model_bits)[0][2]
    allocation = allocate_round(fleet, work, devices, assignment, coupling="joint")
    cost = round_cost(fleet, work, devices, assignment, allocation)
    assert cost.delay_s == pytest.approx(longest)  # the empty edge's hop is the deadline
    problem, _ = round_problem(fleet, work, devices)
    state, trial = blank_states(problem)
    value = begin_joint(problem, state, assignment)
    assert value == pytest.approx(cost.objective, rel=1e-9)
    assert state.solved.edge[WEIGHT][:2].sum() < work.delay_weight
    for a, b in ((0, 1), (1, 0), (2, 1)):  # the empty edge carries a part of λ
        after = state.assignment.copy()
        after[a] = b
        exact = joint_objective(fleet, devices, after, work)
        result = try_move(problem, state, trial, a, a, b, value)
        assert (result < np.inf) == (exact < value)
        value = min(value, result)


def test_the_search_in_brackets_solves_it_if_the_prices_do_not_converge():
    # At most edges all frequencies are at their caps, so no power law holds. Seed and λ were searched for such a case.
    rng = np.random.default_rng(1)
    fleet = sample_fleet(FleetConfig(num_devices=100, num_edges=5), rng)
    devices = np.sort(rng.choice(100, 50, replace=False))
    work = Workload(model_bits=BITS, delay_weight=10 ** rng.uniform(-3, 3))
    assignment = rng.integers(5, size=50)
    problem, _ = round_problem(fleet, work, devices)
    state, _ = blank_states(problem)
    state.assignment[:], state.solved.edge[WEIGHT] = assignment, work.delay_weight / 5
    for m in range(5):
        list_members(state, m)
        solve_members(problem, state, m, False, 1e-10)
    for _ in range(15):
        move_prices(problem, state)
        for m in range(5):
            solve_members(problem, state, m, True, 1e-10)
    lower, upper = objective_bounds(problem, state)
    assert upper - lower > 1e-6 * upper
    exact = joint_objective(fleet, devices, assignment, work)
    assert lower <= exact <= upper
    solve_cold(problem, state)
    assert objective_bounds(problem, state)[1] == pytest.approx(exact, rel=1e-9)
    assert tighten(problem, state, -np.inf)[1] == pytest.approx(exact, rel=1e-9)
