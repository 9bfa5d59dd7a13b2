"""Local search on the joint objective: one deadline for all edges (`hflray.assignment.prices`).

Each step makes the confirmed transfer with the lowest estimate. To confirm a move, `try_move` solves the joint problem
of the new assignment until it is certain that the objective is lower. If no transfer is confirmed, the exchanges with
the lowest estimates are tried. If none of them is confirmed either, every transfer and every exchange is solved at the
present prices. Weak duality then rules out most moves, and each other move is tried. When the search ends before its
time is over, no transfer and no exchange therefore lowers the joint objective by more than the fraction
`search.GAIN`.

A move changes two edges. Each is solved at its present price, and the tables of `hflray.assignment.state` hold the
solution as an entry: E_m, T_m, the elasticity ε of T_m in the price, and the price w.

* **The bound.** If all prices are those of the present optimum, L of `hflray.assignment.prices` after the move is
  a sum over the edges in which only two terms are new. No allocation of the new assignment costs less.
* **The estimate.** The prices at the new assignment's optimum follow from power laws: those of the two new entries, and
  one for all other edges together, which have the same T. The gain of ``∫ T dw`` is added to L.

An entry at a price near the present one is accurate enough for the estimate but not for the bound. A device alone at an
edge has the price that meets the deadline. The prices then add up to more than λ, and there is no bound (-inf).
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.objective import RoundProblem
from hflray.assignment.prices import STIFF, begin_joint, elasticity, log_deadline, price_alone, try_move
from hflray.assignment.search import GAIN, SHORTLIST, TableSearch
from hflray.assignment.state import (
    DELAY,
    ELASTICITY,
    ENERGY,
    NOBODY,
    PAID,
    PRICED,
    STAMP,
    WEIGHT,
    State,
    blank_state,
    changed_edge_cost,
    store_entry,
)
from hflray.support.arrays import BoolArray, FloatArray, IntArray

TOL = 1e-6  # KKT residual of a candidate
NEAR = 1.3  # two prices are near if their ratio is at most this
PROMISING = 8  # number of moves with the best estimates that are tried
TRIED_AT_ONCE = 16  # moves tried between two checks of the clock


class Optimum(NamedTuple):
    """The quantities of the present joint optimum that the estimates need.

    Attributes:
        objective, deadline: J and T, J and s.
        total: Σ w_m, J/s.
        stiffness: Σ w_m / ε_m, J/s, negative.
        floor, floor_edge, next_floor: the longest hop of an edge without devices, s, its edge, and the second longest
            such hop, s; -inf, -1 and -inf stand for missing ones.
    """

    objective: float
    deadline: float
    total: float
    stiffness: float
    floor: float
    floor_edge: int
    next_floor: float


class JointSearch(TableSearch):
    """A local search on the joint objective; see `Search`."""

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        super().__init__(problem, exchanges, PRICED)
        self._trial = blank_state(problem, 0, False)
        self._pairs = np.column_stack(np.triu_indices(len(problem.cycles) if exchanges else 0, 1))

    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its joint objective, J."""
        return begin_joint(self.problem, self.state, assignment)

    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make a confirmed move; see `Search.improve`."""
        enough, optimum = value * (1.0 - GAIN), optimum_of(self.problem, self.state, value)
        objective = self._move_by_estimate(optimum, enough)
        return objective if objective < enough else self._move_by_bound(optimum, enough, stop, at_once)

    def _move_by_estimate(self, optimum: Optimum, enough: float) -> float:
        """Make the confirmed move with the best estimate and return the objective; inf if there is none."""
        problem, state, trial = self.problem, self.state, self._trial
        for allowed in self.links:
            moves = rank_transfers(problem, state, optimum, allowed, False, enough)
            objective = make_first(problem, state, trial, moves[:PROMISING], enough)
            if objective < enough:
                return objective
        if not self.exchanges:
            return np.inf
        pairs = rank_exchanges(problem, state, optimum, SHORTLIST)
        moves = solve_exchanges(problem, state, optimum, pairs, False, enough)
        return make_first(problem, state, trial, moves[:PROMISING], enough)

    def _move_by_bound(self, optimum: Optimum, enough: float, stop: float, at_once: int) -> float:
        """Make a move that lowers the objective and return it; inf if there is none, or the time is over."""
        problem, state = self.problem, self.state
        moves = rank_transfers(problem, state, optimum, self.links[1], True, enough)
        objective = self._try_in_batches(moves, enough, stop)
        if objective < enough or not self.exchanges:
            return objective
        edge = state.assignment
        pairs = self._pairs[edge[self._pairs[:, 0]] != edge[self._pairs[:, 1]]]
        for i in range(0, len(pairs), at_once):
            if time.perf_counter() >= stop:
                break
            moves = solve_exchanges(problem, state, optimum, pairs[i : i + at_once], True, enough)
            objective = self._try_in_batches(moves, enough, stop)
            if objective < enough:
                return objective
        return np.inf

    def _try_in_batches(self, moves: IntArray, enough: float, stop: float) -> float:
        """Make the first confirmed move and return the objective; inf if there is none, or the time is over."""
        for i in range(0, len(moves), TRIED_AT_ONCE):
            if time.perf_counter() >= stop:
                break
            objective = make_first(self.problem, self.state, self._trial, moves[i : i + TRIED_AT_ONCE], enough)
            if objective < enough:
                return objective
        return np.inf


@kernel
def make_first(problem: RoundProblem, state: State, trial: State, moves: IntArray, enough: float) -> float:
    """Make the first of `moves`, (n, 3), that brings the joint objective below `enough`; return it, or inf."""
    for i in range(len(moves)):
        objective = try_move(problem, state, trial, moves[i, 0], moves[i, 1], moves[i, 2], enough)
        if objective < enough:
            return objective
    return np.inf


@kernel
def optimum_of(problem: RoundProblem, state: State, objective: float) -> Optimum:
    """Return the quantities of a solved state."""
    edge = state.solved.edge
    total = stiffness = 0.0
    deadline = floor = next_floor = -math.inf
    floor_edge = -1
    for m in range(len(state.solved.size)):
        if state.solved.size[m] > 0:
            total += edge[WEIGHT, m]
            stiffness += edge[WEIGHT, m] / elasticity(problem, state, m)
            deadline = max(deadline, state.delay[m])
        elif problem.hop.delay[m] > floor:
            floor, floor_edge, next_floor = problem.hop.delay[m], m, floor
        else:
            next_floor = max(next_floor, problem.hop.delay[m])
    return Optimum(objective, deadline, total, stiffness, floor, floor_edge, next_floor)


@kernel
def fill_priced(
    problem: RoundProblem, state: State, m: int, without: int, extra: int, entry: FloatArray, scratch: FloatArray
) -> None:
    """Solve the changed edge m at its present price, and write the solution to `entry`, (5,)."""
    cost = changed_edge_cost(problem, state.solved, m, without, extra, True, TOL, scratch)
    store_entry(entry, cost, state.tables.stamp[m])
    n = state.solved.size[m] - (without != NOBODY) + (extra != NOBODY)
    entry[ELASTICITY], entry[PAID] = -1.0, 0.0
    if n > 0:
        entry[ELASTICITY] = min(STIFF, cost.slope * (1.0 - problem.hop.delay[m] / entry[DELAY]))
        entry[PAID] = state.solved.edge[WEIGHT, m]


@kernel
def is_outdated(entry: FloatArray, weight: float, exact: bool) -> bool:
    """Return whether an entry's price is not near the present `weight`, or with `exact` not equal to it."""
    if exact:
        return bool(entry[PAID] != weight)
    return bool(entry[PAID] > NEAR * weight or weight > NEAR * entry[PAID])


@kernel
def value_of_move(
    problem: RoundProblem, state: State, optimum: Optimum, m: int, k: int, first: FloatArray, second: FloatArray
) -> tuple[float, float]:
    """Return estimate and bound, J, of the joint objective if edges m and k change to the entries `first` and `second`.

    A missing bound is -inf.
    """
    edge = state.solved.edge
    floor = optimum.next_floor if optimum.floor_edge == k else optimum.floor
    if first[PAID] == 0.0:  # edge m has lost its last device
        floor = max(floor, first[DELAY])
    weight, delay, slope = np.zeros(3), np.ones(3), np.full(3, -1.0)
    weight[0], delay[0] = optimum.total - edge[WEIGHT, m], optimum.deadline
    stiffness = optimum.stiffness - edge[WEIGHT, m] / elasticity(problem, state, m)
    # This is L without ρF: its old value, minus the old terms of the two edges, plus their new terms.
    lower = optimum.objective - (problem.weight - optimum.total) * max(optimum.floor, 0.0)
    lower += first[ENERGY] + first[PAID] * first[DELAY] - state.energy[m] - edge[WEIGHT, m] * state.delay[m]
    lower += second[ENERGY] + second[PAID] * second[DELAY] - state.energy[k]
    exact = first[PAID] in (edge[WEIGHT, m], 0.0)
    if state.solved.size[k] > 0:
        weight[0] -= edge[WEIGHT, k]
        stiffness -= edge[WEIGHT, k] / elasticity(problem, state, k)
        lower -= edge[WEIGHT, k] * state.delay[k]
        exact &= second[PAID] == edge[WEIGHT, k]
    else:
        exact = False
    if weight[0] > 1e-12 * problem.weight:
        slope[0] = min(STIFF, weight[0] / stiffness)
    else:
        weight[0] = 0.0
    weight[1], delay[1], slope[1] = first[PAID], first[DELAY], first[ELASTICITY]
    weight[2], delay[2], slope[2] = second[PAID], second[DELAY], second[ELASTICITY]
    u = log_deadline(weight, delay, slope, problem.weight)
    if floor > 0.0:
        u = max(u, math.log(floor))
    deadline, estimate, total = math.exp(u), lower, 0.0
    for i in range(3):
        if weight[i] > 0.0:
            price = weight[i] * math.exp((u - math.log(delay[i])) / slope[i])
            estimate += (price * deadline - weight[i] * delay[i]) / (1.0 + max(slope[i], -0.9))
            total += price
    estimate += (problem.weight - total) * max(floor, 0.0)
    rest = problem.weight - weight.sum()
    bound = lower + max(rest, 0.0) * max(floor, 0.0) if exact and rest > -1e-12 * problem.weight else -math.inf
    return estimate, bound


@kernel
def fill_transfers(problem: RoundProblem, state: State, optimum: Optimum, allowed: BoolArray, exact: bool) -> None:
    """Solve the missing entries of transfers of a device h to an edge k with ``allowed[h, k]``, (H, M).

    An entry whose price is not near the present one, or with `exact` not equal to it, is solved again.
    """
    edge, tables = state.solved.edge, state.tables
    scratch = scratch_with_list(state.solved.size.max() + 2)
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        entry = tables.without[h]
        if entry[STAMP] != tables.stamp[m] or (state.solved.size[m] > 1 and is_outdated(entry, edge[WEIGHT, m], exact)):
            fill_priced(problem, state, m, h, NOBODY, entry, scratch)
        for k in range(len(state.solved.size)):
            if k == m or not allowed[h, k]:
                continue
            entry, valid = tables.extra[h, k], tables.extra[h, k, STAMP] == tables.stamp[k]
            if state.solved.size[k] == 0 and (exact or not valid):
                edge[WEIGHT, k] = price_alone(problem, k, h, optimum.deadline)
                fill_priced(problem, state, k, NOBODY, h, entry, scratch)
            elif state.solved.size[k] > 0 and (not valid or is_outdated(entry, edge[WEIGHT, k], exact)):
                fill_priced(problem, state, k, NOBODY, h, entry, scratch)


@kernel
def rank_transfers(
    problem: RoundProblem, state: State, optimum: Optimum, allowed: BoolArray, exact: bool, enough: float
) -> IntArray:
    """Return the transfers that may bring the joint objective below `enough`, by increasing estimate.

    The result is (n, 3) (`hflray.assignment.state`). With `exact` it has all transfers that the bound does not rule
    out, so that no other transfer gets below `enough`; without it, those whose estimate is below `enough`.
    """
    tables = state.tables
    fill_transfers(problem, state, optimum, allowed, exact)
    values, moves = [], []
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        for k in range(len(state.solved.size)):
            if k != m and allowed[h, k]:
                estimate, bound = value_of_move(problem, state, optimum, m, k, tables.without[h], tables.extra[h, k])
                if (bound if exact else estimate) < enough:
                    values.append(estimate)
                    moves.append((h, h, k))
    return sort_moves(values, moves)


@kernel
def sort_moves(values: list[float], moves: list[tuple[int, int, int]]) -> IntArray:
    """Return the moves, (n, 3), by increasing value."""
    value, move = np.empty(len(values)), np.empty((len(values), 3), dtype=np.intp)
    for i in range(len(values)):
        value[i], move[i, 0], move[i, 1], move[i, 2] = values[i], moves[i][0], moves[i][1], moves[i][2]
    return move[np.argsort(value)]


@kernel
def rank_exchanges(problem: RoundProblem, state: State, optimum: Optimum, shortlist: int) -> IntArray:
    """Return the `shortlist` exchanges with the lowest guess, devices (n, 2), by increasing guess.

    The guess adds up the changes that the two transfers make to each edge. `fill_transfers` must have filled the
    tables.
    """
    tables = state.tables
    count = len(state.assignment)
    first, second = np.empty(PRICED), np.empty(PRICED)
    guess = np.full((count, count), math.inf)
    for a in range(count):
        m = state.assignment[a]
        for b in range(a + 1, count):
            k = state.assignment[b]
            if m != k:
                combine(state, m, tables.without[a], tables.extra[b, m], first)
                combine(state, k, tables.without[b], tables.extra[a, k], second)
                guess[a, b] = value_of_move(problem, state, optimum, m, k, first, second)[0]
    flat = guess.ravel()
    order = np.argsort(flat)[: min(shortlist, np.count_nonzero(flat < math.inf))]
    pairs = np.empty((len(order), 2), dtype=np.intp)
    for i in range(len(order)):
        pairs[i, 0], pairs[i, 1] = order[i] // count, order[i] % count
    return pairs


@kernel
def combine(state: State, m: int, without: FloatArray, extra: FloatArray, entry: FloatArray) -> None:
    """Write to `entry`, (5,), a guess for edge m without one device and with another: the sum of both changes."""
    if without[PAID] == 0.0:
        entry[:] = extra
        return
    entry[ENERGY] = without[ENERGY] + extra[ENERGY] - state.energy[m]
    entry[DELAY] = max(without[DELAY] + extra[DELAY] - state.delay[m], 0.5 * state.delay[m])
    entry[ELASTICITY], entry[PAID] = extra[ELASTICITY], extra[PAID]


@kernel
def solve_exchanges(
    problem: RoundProblem, state: State, optimum: Optimum, pairs: IntArray, exact: bool, enough: float
) -> IntArray:
    """Return those exchanges of `pairs`, devices (n, 2), that may get below `enough`, as `rank_transfers` does."""
    edge, tables = state.solved.edge, state.tables
    scratch = scratch_with_list(state.solved.size.max() + 2)
    values, moves = [], []
    for i in range(len(pairs)):
        for a, b in ((pairs[i, 0], pairs[i, 1]), (pairs[i, 1], pairs[i, 0])):
            m, entry = state.assignment[a], tables.swapped[a, b]
            if entry[STAMP] != tables.stamp[m] or is_outdated(entry, edge[WEIGHT, m], exact):
                fill_priced(problem, state, m, a, b, entry, scratch)
        a, b = pairs[i, 0], pairs[i, 1]
        m, k = state.assignment[a], state.assignment[b]
        estimate, bound = value_of_move(problem, state, optimum, m, k, tables.swapped[a, b], tables.swapped[b, a])
        if (bound if exact else estimate) < enough:
            values.append(estimate)
            moves.append((a, b, k))
    return sort_moves(values, moves)
