"""One deadline for all edges: the bounds hold, and moves are judged as by the exact solver."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.joint_round import begin_joint, between, meet, move_prices, solve_from_nothing, try_move
from hflray.assignment.objective import round_problem
from hflray.assignment.state import WEIGHT, blank_state, list_members, solve_members
from hflray.cost import Workload, cloud_hop, round_cost
from hflray.fleet import FleetConfig, sample_fleet

BITS = 448 * 8192


def scene(seed, num_devices=100, num_edges=5, scheduled=50):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=num_devices, num_edges=num_edges), rng)
    return fleet, np.sort(rng.choice(num_devices, scheduled, replace=False))


def objective(fleet, work, devices, assignment):
    """The joint objective by the exact solver, J."""
    allocation = allocate_round(fleet, work, devices, assignment, coupling="joint")
    return round_cost(fleet, work, devices, assignment, allocation).objective


def states(problem, count):
    nowhere = np.zeros(count, dtype=np.intp)
    return blank_state(problem, nowhere, False, 4), blank_state(problem, nowhere, False, 0)


SIZES = [(100, 5, 50), (8, 3, 4), (30, 12, 10), (20, 2, 9), (6, 1, 6)]


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("hop", [True, False])
def test_the_objective_is_that_of_the_joint_allocation(sizes, hop):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        fleet, devices = scene(seed, *sizes)
        work = Workload(model_bits=BITS, cloud_hop=hop, delay_weight=10 ** rng.uniform(-3, 3))
        assignment = rng.integers(sizes[1], size=sizes[2])
        problem, _ = round_problem(fleet, work, devices)
        state, _ = states(problem, sizes[2])
        found = begin_joint(problem, state, assignment)
        assert found == pytest.approx(objective(fleet, work, devices, assignment), rel=1e-9)
        prices = allocate_round(fleet, work, devices, assignment, coupling="joint").edge_price
        used = np.unique(assignment)
        np.testing.assert_allclose(
            state.solved.edge[WEIGHT, used], prices[used], rtol=1e-3, atol=1e-6 * work.delay_weight
        )


def test_any_prices_give_a_bound_on_either_side():
    for seed in range(30):
        rng = np.random.default_rng(seed)
        fleet, devices = scene(seed, 30, 4, 12)
        work = Workload(model_bits=BITS, cloud_hop=bool(seed % 2), delay_weight=10 ** rng.uniform(-2, 2))
        assignment = rng.integers(3, size=12)  # edge 3 stays empty
        problem, _ = round_problem(fleet, work, devices)
        state, _ = states(problem, 12)
        begin_joint(problem, state, assignment)
        exact = objective(fleet, work, devices, assignment)
        for _ in range(5):
            share = rng.dirichlet(np.ones(4))  # the fourth part is left over
            for m in range(3):
                state.solved.edge[WEIGHT, m] = work.delay_weight * max(share[m], 1e-6) / 1.00001
                solve_members(problem, state, m, False, 1e-10)
            lower, upper = between(problem, state)
            assert lower <= exact * (1 + 1e-9)
            assert upper >= exact * (1 - 1e-9)
            assert lower < exact * (1 - 1e-6) < upper  # far from the optimum, neither is it
        state.solved.edge[WEIGHT][:3] *= 1.1 * work.delay_weight / state.solved.edge[WEIGHT][:3].sum()
        assert between(problem, state)[0] == -np.inf  # prices of more than λ bound nothing


@pytest.mark.parametrize("sizes", SIZES[:4])
def test_moves_are_judged_as_by_the_exact_solver(sizes):
    made = refused = 0
    _, num_edges, count = sizes
    for seed in range(4):
        rng = np.random.default_rng(seed)
        fleet, devices = scene(seed, *sizes)
        work = Workload(model_bits=BITS, cloud_hop=bool(seed % 2), delay_weight=(1.0, 300.0, 0.01, 1.0)[seed])
        problem, _ = round_problem(fleet, work, devices)
        state, trial = states(problem, count)
        best = begin_joint(problem, state, rng.integers(num_edges, size=count))
        for i in range(40):
            a, b, exchange = int(rng.integers(count)), int(rng.integers(count if i % 2 else num_edges)), bool(i % 2)
            before = state.assignment.copy()
            if (before[b] if exchange else b) == before[a]:
                continue
            after = before.copy()
            after[a] = before[b] if exchange else b
            if exchange:
                after[b] = before[a]
            found, exact = try_move(problem, state, trial, a, b, exchange, best), objective(fleet, work, devices, after)
            if found < np.inf:
                made += 1
                assert found < best
                assert found == pytest.approx(exact, rel=1e-9)
                np.testing.assert_array_equal(state.assignment, after)
                best = found
            else:
                refused += 1
                assert exact > best * (1 - 1e-9)
                np.testing.assert_array_equal(state.assignment, before)
    assert made > 10
    assert refused > 10


def test_the_hop_of_an_empty_edge_can_be_the_deadline():
    fleet, devices = scene(0, 20, 3, 9)
    fleet = dataclasses.replace(fleet, cloud_gain=fleet.cloud_gain * np.array([1.0, 1.0, 1e-7]))
    work = Workload(model_bits=BITS)
    assignment = np.arange(9) % 2
    longest = cloud_hop(fleet, work.model_bits)[0][2]
    allocation = allocate_round(fleet, work, devices, assignment, coupling="joint")
    cost = round_cost(fleet, work, devices, assignment, allocation)
    assert cost.delay_s == pytest.approx(longest)  # the case is what it is meant to be
    problem, _ = round_problem(fleet, work, devices)
    state, trial = states(problem, 9)
    value = begin_joint(problem, state, assignment)
    assert value == pytest.approx(cost.objective, rel=1e-9)
    assert state.solved.edge[WEIGHT][:2].sum() < work.delay_weight
    for a, b in ((0, 1), (1, 0), (2, 1)):  # with prices that leave a part of λ to the empty edge
        after = state.assignment.copy()
        after[a] = b
        exact = objective(fleet, work, devices, after)
        found = try_move(problem, state, trial, a, b, False, value)
        assert (found < np.inf) == (exact < value)
        value = min(value, found)


def test_where_the_prices_run_in_circles_the_bracketed_search_answers():
    # All frequencies at their caps at most edges: no power law says what the prices do. Seed and λ were searched for.
    rng = np.random.default_rng(1)
    fleet = sample_fleet(FleetConfig(num_devices=100, num_edges=5), rng)
    devices = np.sort(rng.choice(100, 50, replace=False))
    work = Workload(model_bits=BITS, delay_weight=10 ** rng.uniform(-3, 3))
    assignment = rng.integers(5, size=50)
    problem, _ = round_problem(fleet, work, devices)
    state, _ = states(problem, 50)
    state.assignment[:], state.solved.edge[WEIGHT] = assignment, work.delay_weight / 5
    for m in range(5):
        list_members(state, m)
        solve_members(problem, state, m, False, 1e-10)
    for _ in range(15):
        move_prices(problem, state)
        for m in range(5):
            solve_members(problem, state, m, True, 1e-10)
    lower, upper = between(problem, state)
    assert upper - lower > 1e-6 * upper
    exact = objective(fleet, work, devices, assignment)
    assert lower <= exact <= upper
    solve_from_nothing(problem, state)
    assert between(problem, state)[1] == pytest.approx(exact, rel=1e-9)
    assert meet(problem, state, -np.inf)[1] == pytest.approx(exact, rel=1e-9)
