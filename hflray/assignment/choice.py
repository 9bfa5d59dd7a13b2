"""Local search over which devices are scheduled and which edge each gets, to a local optimum of the round's objective.

Every candidate belongs to a group, such as a cluster of IKC, and the number of scheduled devices of each group stays as
it is. Two searches take turns until neither helps: one transfers and exchanges the scheduled devices
(`hflray.assignment.search`), and one replaces a scheduled device by a candidate of its group, which joins any edge. A
candidate that is not scheduled is a device of edge `NOWHERE`, which is in no edge's list.

With a deadline for each edge, each step makes the transfer or replacement that lowers ``Σ E_m + λ max T_m`` most. On
the joint objective, of one deadline for all edges, the search starts from the best choice with a deadline for each
edge. Weak duality rules out most replacements (`hflray.assignment.joint_search`), the others are tried by increasing
estimate, and the first that lowers the objective is made.

This search is not in the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.joint_search import (
    JointSearch,
    Optimum,
    fill_priced,
    make_first,
    optimum_of,
    sort_moves,
    value_of_move,
)
from hflray.assignment.objective import Hop, RoundProblem
from hflray.assignment.prices import begin_joint, price_alone
from hflray.assignment.search import GAIN, PerEdgeSearch, Search, best_move
from hflray.assignment.state import (
    ALONE,
    DELAY,
    ENERGY,
    NOBODY,
    NOWHERE,
    PRICED,
    WEIGHT,
    State,
    blank_state,
    make_move,
    restart,
)
from hflray.support.arrays import BoolArray, IntArray


def search_choice(
    problem: RoundProblem,
    group: IntArray,
    stays: BoolArray,
    assignment: IntArray,
    usable: BoolArray,
    coupling: str = "per_edge",
) -> tuple[IntArray, float]:
    """Return the best assignment found and its objective, J.

    Args:
        problem: the round of C candidates and M edges.
        group: group of each candidate, (C,).
        stays: whether a scheduled candidate must not be replaced, (C,).
        assignment: edge of each candidate at the start, (C,); `NOWHERE` for those that are not scheduled.
        usable: whether devices may be assigned to an edge, (M,).
        coupling: ``per_edge`` or ``joint``, with one deadline for all edges.
    """
    edges, allowed = np.flatnonzero(usable), np.ones((len(group), np.count_nonzero(usable)), dtype=np.bool_)
    problem = part_of(problem, np.arange(len(assignment)), edges)
    present = np.where(assignment == NOWHERE, NOWHERE, np.searchsorted(edges, assignment))
    state = blank_state(problem, ALONE, True)

    def replace(assignment: IntArray) -> tuple[IntArray, float]:
        value = restart(problem, state, assignment)
        while True:
            objective, a, b, k = best_move(problem, state, allowed, group, stays)
            if not objective < value * (1.0 - GAIN):
                return state.assignment.copy(), value
            value = make_move(problem, state, a, b, k)

    present, value = alternate(problem, *replace(present), PerEdgeSearch, replace)
    if coupling == "joint":
        joint, trial = (blank_state(problem, 0, False) for _ in range(2))

        def replace_jointly(assignment: IntArray) -> tuple[IntArray, float]:
            value = begin_joint(problem, joint, assignment)
            while True:
                enough, optimum = value * (1.0 - GAIN), optimum_of(problem, joint, value)
                moves = rank_replacements(problem, joint, optimum, group, stays, enough)
                objective = make_first(problem, joint, trial, moves, enough)
                if not objective < enough:
                    return joint.assignment.copy(), value
                value = objective

        present, value = alternate(problem, present, np.inf, JointSearch, replace_jointly)
    return np.where(present == NOWHERE, NOWHERE, edges[present]), value


def alternate(
    problem: RoundProblem,
    present: IntArray,
    value: float,
    search: Callable[[RoundProblem, bool], Search],
    replace: Callable[[IntArray], tuple[IntArray, float]],
) -> tuple[IntArray, float]:
    """Search over the scheduled devices, and replace some of them by others, in turns until neither helps.

    Args:
        problem: C candidates and M edges.
        present: the edge of each candidate, (C,); `NOWHERE` for those that are not scheduled.
        value: its objective, J, or inf.
        search: builds the search over the edges of the scheduled devices.
        replace: replaces scheduled devices until that helps no more; returns the assignment, (C,), and its objective.

    Returns:
        The best assignment, (C,), and its objective, J.
    """
    edges = np.arange(len(problem.bandwidth))
    while True:
        scheduled = np.flatnonzero(present != NOWHERE)
        best = search(part_of(problem, scheduled, edges), True)
        if not best.run(present[scheduled]) < value * (1.0 - GAIN):
            return present, value
        present[scheduled] = best.assignment
        present, value = replace(present)


def part_of(problem: RoundProblem, devices: IntArray, edges: IntArray) -> RoundProblem:
    """Return the problem of some of the devices and of some of the edges."""
    return problem._replace(
        snr=np.ascontiguousarray(problem.snr[edges][:, devices]),
        cycles=problem.cycles[devices],
        power=problem.power[devices],
        cap=problem.cap[devices],
        bandwidth=problem.bandwidth[edges],
        hop=Hop(problem.hop.delay[edges], problem.hop.energy[edges]),
    )


@kernel
def rank_replacements(
    problem: RoundProblem, state: State, optimum: Optimum, group: IntArray, stays: BoolArray, enough: float
) -> IntArray:
    """Return the replacements that may bring the joint objective below `enough`, by increasing estimate.

    The result is (n, 3) (`hflray.assignment.state`). No other replacement gets below `enough`. At an edge that keeps
    its number of devices, the bound is the estimate.
    """
    count, edges = len(state.assignment), len(state.solved.size)
    scratch, prices = scratch_with_list(state.solved.size.max() + 2), state.solved.edge[WEIGHT]
    joins, leaves, both = np.empty((count, edges, PRICED)), np.empty(PRICED), np.empty(PRICED)
    for b in range(count):
        if state.assignment[b] == NOWHERE:
            for k in range(edges):
                if state.solved.size[k] == 0:
                    prices[k] = price_alone(problem, k, b, optimum.deadline)
                fill_priced(problem, state, k, NOBODY, b, joins[b, k], scratch)
    values, moves = [], []
    for a in range(count):
        m = state.assignment[a]
        if m == NOWHERE or stays[a]:
            continue
        fill_priced(problem, state, m, a, NOBODY, leaves, scratch)
        for b in range(count):
            if state.assignment[b] != NOWHERE or group[b] != group[a]:
                continue
            for k in range(edges):
                if k == m:
                    fill_priced(problem, state, m, a, b, both, scratch)
                    bound = optimum.objective + both[ENERGY] - state.energy[m]
                    bound += prices[m] * (both[DELAY] - state.delay[m])
                    estimate = bound
                else:
                    estimate, bound = value_of_move(problem, state, optimum, m, k, leaves, joins[b, k])
                if bound < enough:
                    values.append(estimate)
                    moves.append((a, b, k))
    return sort_moves(values, moves)
