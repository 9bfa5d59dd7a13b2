"""Local search over which devices are scheduled and which edge each gets, to a local optimum of the round's objective.

Every candidate belongs to a group, such as a cluster of IKC, and the number of scheduled devices of each group stays as
it is. A move transfers a scheduled device to another edge, or replaces it by a candidate of its group, which joins any
edge. Each step makes the move that lowers ``Σ E_m + λ max T_m`` most, with the exact allocation of every edge. Where no
move helps, `hflray.assignment.local_search` searches over the exchanges of the scheduled devices too; the search ends
where this does not help either.

This search is not in the paper. It uses the tables of `hflray.assignment.state`: a candidate that is not scheduled is a
device of edge `NOWHERE`, which is in no edge's list.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.local_search import PerEdgeSearch
from hflray.assignment.neighbours import GAIN, TOL
from hflray.assignment.objective import Changed, RoundProblem, delay_after, totals_of
from hflray.assignment.search import NOWHERE, alternate, among, named, part_of
from hflray.assignment.state import (
    DELAY,
    ENERGY,
    State,
    blank_state,
    changed_edge_cost,
    restart,
    settle,
    state_objective,
)
from hflray.support.arrays import BoolArray, IntArray


def search_choice(
    problem: RoundProblem, group: IntArray, stays: BoolArray, assignment: IntArray, usable: BoolArray
) -> tuple[IntArray, float]:
    """Return the best assignment found and its objective, J.

    Args:
        problem: the round of C candidates and M edges.
        group: group of each candidate, (C,).
        stays: whether a scheduled candidate must not be replaced, (C,).
        assignment: edge of each candidate at the start, (C,); `NOWHERE` for those that are not scheduled.
        usable: whether devices may be assigned to an edge, (M,).
    """
    edges = np.flatnonzero(usable)
    present, problem = among(edges, assignment), part_of(problem, np.arange(len(assignment)), usable)
    state = blank_state(problem, present, True, 2)

    def replace(assignment: IntArray) -> tuple[IntArray, float]:
        restart(problem, state, assignment)
        value = descend(problem, state, group, stays, state_objective(problem, state))
        return state.assignment.copy(), value

    present, value = alternate(problem, *replace(present), PerEdgeSearch, replace)
    return named(edges, present), value


@kernel
def descend(problem: RoundProblem, state: State, group: IntArray, stays: BoolArray, value: float) -> float:
    """Make the best move until none lowers the objective `value`, J, and return the last objective."""
    while True:
        objective, leaver, joiner, edge = best_move(problem, state, group, stays)
        if not objective < value * (1.0 - GAIN):
            return value
        left = state.assignment[leaver]
        state.assignment[leaver] = NOWHERE
        state.assignment[joiner] = edge
        settle(problem, state, left)
        if edge != left:
            settle(problem, state, edge)
        value = state_objective(problem, state)


@kernel
def best_move(problem: RoundProblem, state: State, group: IntArray, stays: BoolArray) -> tuple[float, int, int, int]:
    """Return the objective after the best move, the device that leaves its edge, the one that joins, and its edge.

    For a transfer the two devices are the same.
    """
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals, tables = totals_of(state.energy, state.delay, state.solved.size), state.tables
    base = totals.energy
    best, leaver, joiner, edge = math.inf, -1, -1, -1
    for a in range(len(state.assignment)):
        m = state.assignment[a]
        if m == NOWHERE:
            continue
        if tables.out_stamp[a] != tables.stamp[m]:
            cost = changed_edge_cost(problem, state.solved, m, a, -1, True, TOL, scratch)
            tables.out_cost[a, ENERGY], tables.out_cost[a, DELAY] = cost.energy, cost.delay
            tables.out_stamp[a] = tables.stamp[m]
        for b in range(len(state.assignment)):
            if b != a and (state.assignment[b] != NOWHERE or stays[a] or group[b] != group[a]):
                continue
            for k in range(len(state.solved.size)):
                if b == a and k == m:
                    continue
                if k == m:
                    if tables.swap_stamp[a, b] != tables.stamp[m]:
                        cost = changed_edge_cost(problem, state.solved, m, a, b, True, TOL, scratch)
                        tables.swap_cost[a, b, ENERGY], tables.swap_cost[a, b, DELAY] = cost.energy, cost.delay
                        tables.swap_stamp[a, b] = tables.stamp[m]
                    energy = base - state.energy[m] + tables.swap_cost[a, b, ENERGY]
                    changed = Changed(m, m, tables.swap_cost[a, b, DELAY], tables.swap_cost[a, b, DELAY], 0)
                else:
                    if tables.in_stamp[b, k] != tables.stamp[k]:
                        cost = changed_edge_cost(problem, state.solved, k, -1, b, True, TOL, scratch)
                        tables.in_cost[b, k, ENERGY], tables.in_cost[b, k, DELAY] = cost.energy, cost.delay
                        tables.in_stamp[b, k] = tables.stamp[k]
                    energy = base - state.energy[m] - state.energy[k]
                    energy += tables.out_cost[a, ENERGY] + tables.in_cost[b, k, ENERGY]
                    changed = Changed(m, k, tables.out_cost[a, DELAY], tables.in_cost[b, k, DELAY], 1)
                delay = delay_after(problem.mean, totals, state.delay, state.solved.size, changed)
                if energy + problem.weight * delay < best:
                    best, leaver, joiner, edge = energy + problem.weight * delay, a, b, k
    return best, leaver, joiner, edge
