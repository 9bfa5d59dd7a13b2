"""Local search over devices and edges as in `hflray.assignment.choice`, on the joint objective: one deadline for all.

The search starts from the best choice that `search_choice` finds with a deadline for each edge. Then two searches take
turns until neither helps. `hflray.assignment.joint_search` transfers and exchanges the scheduled devices. `descend`
replaces a scheduled device by a candidate of its group, which joins any edge: weak duality rules out most replacements
(`hflray.assignment.joint_moves`), the others are tried by increasing estimate, and the first that lowers the joint
objective is made. This search is not in the paper.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.choice import search_choice
from hflray.assignment.joint_moves import Optimum, fill_entry, optimum_of, value_of_move
from hflray.assignment.joint_round import begin_joint, copy_state, join_edge, keep_if_better, price_alone
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.neighbours import GAIN
from hflray.assignment.objective import RoundProblem
from hflray.assignment.search import NOWHERE, alternate, among, named, part_of
from hflray.assignment.state import DELAY, ENERGY, WEIGHT, State, blank_state
from hflray.support.arrays import BoolArray, IntArray


def search_joint_choice(
    problem: RoundProblem, group: IntArray, stays: BoolArray, assignment: IntArray, usable: BoolArray
) -> tuple[IntArray, float]:
    """Return the best assignment found and its joint objective, J; see `hflray.assignment.choice.search_choice`."""
    edges = np.flatnonzero(usable)
    start, _ = search_choice(problem, group, stays, assignment, usable)
    present, problem = among(edges, start), part_of(problem, np.arange(len(start)), usable)
    state, trial = (blank_state(problem, present, False, 0) for _ in range(2))

    def replace(assignment: IntArray) -> tuple[IntArray, float]:
        value = descend(problem, state, trial, group, stays, assignment)
        return state.assignment.copy(), value

    present, value = alternate(problem, present, np.inf, JointSearch, replace)
    return named(edges, present), value


@kernel
def descend(
    problem: RoundProblem, state: State, trial: State, group: IntArray, stays: BoolArray, assignment: IntArray
) -> float:
    """Replace devices of `assignment`, (C,), until no replacement helps; return the joint objective, J, of `state`."""
    value = begin_joint(problem, state, assignment)
    while True:
        enough, objective = value * (1.0 - GAIN), math.inf
        moves = rank_replacements(problem, state, optimum_of(problem, state, value), group, stays, enough)
        for i in range(len(moves)):
            objective = try_replacement(problem, state, trial, moves[i, 0], moves[i, 1], moves[i, 2], enough)
            if objective < enough:
                break
        if not objective < enough:
            return value
        value = objective


@kernel
def rank_replacements(
    problem: RoundProblem, state: State, optimum: Optimum, group: IntArray, stays: BoolArray, enough: float
) -> IntArray:
    """Return the replacements that may bring the joint objective below `enough`, by increasing estimate.

    The result is (n, 3), with the device that leaves, the one that joins, and its edge. No other replacement gets below
    `enough`. At an edge that keeps its number of devices, the bound is the estimate.
    """
    count, edges = len(state.assignment), len(state.solved.size)
    scratch, prices = scratch_with_list(state.solved.size.max() + 2), state.solved.edge[WEIGHT]
    joins, leaves, both = np.empty((count, edges, 4)), np.empty(4), np.empty(4)
    for b in range(count):
        if state.assignment[b] == NOWHERE:
            for k in range(edges):
                if state.solved.size[k] == 0:
                    prices[k] = price_alone(problem, k, b, optimum.deadline)
                fill_entry(problem, state, k, -1, b, joins[b, k], scratch)
    values, moves = [], []
    for a in range(count):
        m = state.assignment[a]
        if m == NOWHERE or stays[a]:
            continue
        fill_entry(problem, state, m, a, -1, leaves, scratch)
        for b in range(count):
            if state.assignment[b] != NOWHERE or group[b] != group[a]:
                continue
            for k in range(edges):
                if k == m:
                    fill_entry(problem, state, m, a, b, both, scratch)
                    bound = optimum.objective + both[ENERGY] - state.energy[m]
                    bound += prices[m] * (both[DELAY] - state.delay[m])
                    estimate = bound
                else:
                    estimate, bound = value_of_move(problem, state, optimum, m, k, leaves, joins[b, k])
                if bound < enough:
                    values.append(estimate)
                    moves.append((a, b, k))
    value, move = np.empty(len(values)), np.empty((len(values), 3), dtype=np.intp)
    for i in range(len(values)):
        value[i], move[i, 0], move[i, 1], move[i, 2] = values[i], moves[i][0], moves[i][1], moves[i][2]
    return move[np.argsort(value)]


@kernel
def try_replacement(problem: RoundProblem, state: State, trial: State, a: int, b: int, k: int, enough: float) -> float:
    """Replace device a by device b at edge k if that brings the joint objective below `enough`.

    `trial` is scratch, a state of the same size.

    Returns:
        The joint objective after the move, which `state` then holds; inf if the move was not made.
    """
    m = state.assignment[a]
    copy_state(state, trial)
    trial.assignment[a], trial.assignment[b] = NOWHERE, k
    if k == m:
        trial.solved.x[b], trial.solved.y[b] = state.solved.x[a], state.solved.y[a]
    else:
        join_edge(problem, state, trial, b, m, k)
    return keep_if_better(problem, state, trial, m, k, enough)
