"""Estimates and bounds of moves under one deadline, compared with the exact joint solution of each move."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment.joint_search import fill_transfers, optimum_of, rank_transfers, solve_exchanges, value_of_move
from hflray.assignment.objective import round_problem
from hflray.assignment.prices import begin_joint
from hflray.assignment.state import PRICED, blank_state
from hflray.cost import Workload, round_cost
from hflray.fleet import FleetConfig, sample_fleet


def setting(seed, num_edges=4, count=12, hop=True):
    """Return a round's problem, a solved state, its objective, J, and a function that gives the exact one, J."""
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=count, num_edges=num_edges), rng)
    work = Workload(model_bits=448 * 8192, cloud_hop=hop)
    devices = np.arange(count)
    problem, _ = round_problem(fleet, work, devices)
    assignment = fleet.strongest_edges(devices, 2)[devices, rng.integers(4, size=count) // 3]
    state = blank_state(problem, PRICED, True)
    value = begin_joint(problem, state, assignment)

    def exact(moved):
        allocation = allocate_round(fleet, work, devices, moved, coupling="joint")
        return round_cost(fleet, work, devices, moved, allocation).objective

    return problem, state, value, exact


def transfers(state, num_edges):
    """Yield every transfer and the assignment after it."""
    for h, m in enumerate(state.assignment.tolist()):
        for k in range(num_edges):
            if k != m:
                moved = state.assignment.copy()
                moved[h] = k
                yield h, k, moved


def assert_small(errors):
    """Assert that most estimates are right, and those of moves near the objective to a few per cent."""
    error, ratio = np.array(errors).T
    assert np.median(error) < 2e-3
    assert np.quantile(error[ratio < 1.05], 0.9) < 0.03


@pytest.mark.parametrize("hop", [True, False])
def test_bounds_of_transfers_hold_and_estimates_are_close(hop):
    errors, unbounded, moved_far = [], 0, 0
    for seed in range(8):
        sizes = (4, 12) if seed % 2 else (6, 8)  # some of 6 edges are empty
        problem, state, value, exact = setting(seed, *sizes, hop)
        optimum = optimum_of(problem, state, value)
        fill_transfers(problem, state, optimum, np.ones(sizes[::-1], dtype=bool), True)
        for h, k, moved in transfers(state, sizes[0]):
            m = int(state.assignment[h])
            estimate, bound = value_of_move(
                problem, state, optimum, m, k, state.tables.without[h], state.tables.extra[h, k]
            )
            true = exact(moved)
            assert bound <= true * (1 + 1e-6)
            assert (bound == -np.inf) == (state.solved.size[k] == 0)
            unbounded += bound == -np.inf
            moved_far += abs(true / value - 1) > 0.05
            errors.append((abs(estimate / true - 1), true / value))
    assert unbounded > 5
    assert moved_far > 30  # many of the changes are large
    assert_small(errors)


def test_bounds_of_exchanges_hold_and_estimates_are_close():
    errors = []
    for seed in range(4):
        problem, state, value, exact = setting(seed)
        optimum = optimum_of(problem, state, value)
        pairs = np.column_stack(np.triu_indices(12, 1))
        pairs = pairs[state.assignment[pairs[:, 0]] != state.assignment[pairs[:, 1]]]
        assert len(solve_exchanges(problem, state, optimum, pairs, True, np.inf)) == len(pairs)
        for a, b in pairs.tolist():
            m, k = state.assignment[[a, b]].tolist()
            estimate, bound = value_of_move(
                problem, state, optimum, m, k, state.tables.swapped[a, b], state.tables.swapped[b, a]
            )
            moved = state.assignment.copy()
            moved[[a, b]] = k, m
            true = exact(moved)
            assert -np.inf < bound <= true * (1 + 1e-6)
            errors.append((abs(estimate / true - 1), true / value))
    assert_small(errors)


def test_ranked_moves_include_all_that_help_with_the_best_first():
    problem, state, value, exact = setting(3)
    optimum = optimum_of(problem, state, value)
    all_links = np.ones((12, 4), dtype=bool)
    true = {(h, h, k): exact(moved) for h, k, moved in transfers(state, 4)}
    estimated = [tuple(move) for move in rank_transfers(problem, state, optimum, all_links, False, value).tolist()]
    possible = [tuple(move) for move in rank_transfers(problem, state, optimum, all_links, True, value).tolist()]
    improving = {move for move, cost in true.items() if cost < value}
    assert improving <= set(possible)
    assert len(improving) > 5
    assert len(possible) < len(true)
    assert true[estimated[0]] < min(true.values()) * 1.01
    edge_1 = np.zeros((12, 4), dtype=bool)
    edge_1[:, 1] = True
    assert set(rank_transfers(problem, state, optimum, edge_1, False, value)[:, 2].tolist()) == {1}
