"""A local search by single moves, and the moves on the objective with a deadline for each edge, in Numba.

This search is not in the paper. `Search` knows nothing of the objective or of the physics. `PerEdgeSearch` computes the
exact cost of every move, from the tables of `hflray.assignment.state`, which `best_move` and `best_exchange` fill when
they need an entry. `hflray.assignment.joint_search.JointSearch` searches on the objective with one deadline for all
edges.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.objective import RoundProblem, Totals, delay_after, totals_of
from hflray.assignment.state import (
    ALONE,
    DELAY,
    ENERGY,
    NOBODY,
    NOWHERE,
    STAMP,
    State,
    blank_state,
    changed_edge_cost,
    make_move,
    restart,
    store_entry,
)
from hflray.support.arrays import BoolArray, FloatArray, IntArray

TOL = 1e-6  # KKT residual of a candidate, about the error of its objective; the moves made are solved to 1e-9
TABLE_TOL = 1e-4  # the same in `transfer_objectives`, which need not decide between near ties
GAIN = 1e-6  # a move must lower the objective by this fraction, which is about the error of candidates
SHORTLIST = 64  # the exchanges that are solved first
AT_ONCE = 20_000  # exchanges solved between two checks of the clock
NEAR = 5  # transfers to this many strongest links of a device are tried first


class Search(ABC):
    """A search from an assignment to a local optimum; `assignment` is the present one, (H,)."""

    assignment: IntArray

    @abstractmethod
    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its objective, J."""

    @abstractmethod
    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make a move that lowers the objective `value`, J, by more than the fraction `GAIN`.

        Returns:
            The objective after the move, J; at least ``value * (1 - GAIN)`` if there is none, or the time is over.
        """

    def run(self, assignment: IntArray, stop: float = np.inf, at_once: int = AT_ONCE) -> float:
        """Search from `assignment`, (H,), to a local optimum, or until `time.perf_counter` passes `stop`.

        At most `at_once` exchanges are solved between two checks of the clock. Solutions of an earlier search may be
        used again. Returns the objective, J.
        """
        value = self.begin(assignment)
        while time.perf_counter() < stop:
            objective = self.improve(value, stop, at_once)
            if not objective < value * (1.0 - GAIN):
                break
            value = objective
        return value


class TableSearch(Search):
    """A search on the paper's physics, with tables of the costs of moves.

    Args:
        problem: H devices and M edges.
        exchanges: whether exchanges are tried as well as transfers.
        columns: number of columns of an entry of `MoveTables`.
    """

    def __init__(self, problem: RoundProblem, exchanges: bool, columns: int) -> None:
        self.problem, self.exchanges = problem, exchanges
        self.state = blank_state(problem, columns, exchanges)
        self.assignment = self.state.assignment  # the kernels write it
        # Transfers to weaker links are tried only if no transfer to a strong link helps.
        near = np.argsort(np.argsort(-problem.snr.T, axis=1), axis=1) < NEAR
        self.links = (near, np.ones_like(near))


class PerEdgeSearch(TableSearch):
    """A local search on the objective with a deadline for each edge; see `Search`."""

    def __init__(self, problem: RoundProblem, exchanges: bool) -> None:
        super().__init__(problem, exchanges, ALONE)
        devices = len(problem.cycles)
        self._group, self._stays = np.zeros(devices, dtype=np.intp), np.ones(devices, dtype=np.bool_)

    def begin(self, assignment: IntArray) -> float:
        """Take an assignment, (H,), and return its objective, J; unchanged edges keep their solutions."""
        return restart(self.problem, self.state, assignment)

    def improve(self, value: float, stop: float, at_once: int) -> float:
        """Make the best transfer, or else the best exchange; see `Search.improve`."""
        problem, state, enough = self.problem, self.state, value * (1.0 - GAIN)
        for allowed in self.links:
            objective, a, b, k = best_move(problem, state, allowed, self._group, self._stays)
            if objective < enough:
                return make_move(problem, state, a, b, k)
        complete = not self.exchanges
        while not complete:
            # The tables keep the exchanges that are solved.
            objective, a, b, complete = best_exchange(problem, state, SHORTLIST, enough, at_once)
            if objective < enough:
                return make_move(problem, state, a, b, state.assignment[b])
            complete |= time.perf_counter() >= stop
        return math.inf


@kernel
def best_move(
    problem: RoundProblem, state: State, allowed: BoolArray, group: IntArray, stays: BoolArray
) -> tuple[float, int, int, int]:
    """Return the objective after the best transfer or replacement, J, and the move (`hflray.assignment.state`).

    Without a move, the objective is inf.

    Args:
        problem, state: the round and its solved assignment.
        allowed: whether a device may join an edge, (H, M).
        group: group of each device, (H,); a device can be replaced by a device of its group that is not scheduled.
        stays: whether a device must not be replaced, (H,).
    """
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals, tables = totals_of(state.energy, state.delay, state.solved.size), state.tables
    best, leaver, joiner, edge = math.inf, -1, -1, -1
    for a in range(len(state.assignment)):
        m = state.assignment[a]
        if m == NOWHERE:
            continue
        if tables.without[a, STAMP] != tables.stamp[m]:
            cost = changed_edge_cost(problem, state.solved, m, a, NOBODY, True, TOL, scratch)
            store_entry(tables.without[a], cost, tables.stamp[m])
        for b in range(a, a + 1) if stays[a] else range(len(state.assignment)):
            if b != a and (state.assignment[b] != NOWHERE or group[b] != group[a]):
                continue
            for k in range(len(state.solved.size)):
                if (k == m and b == a) or not allowed[b, k]:
                    continue
                if k == m:
                    if tables.swapped[a, b, STAMP] != tables.stamp[m]:
                        cost = changed_edge_cost(problem, state.solved, m, a, b, True, TOL, scratch)
                        store_entry(tables.swapped[a, b], cost, tables.stamp[m])
                    energy = totals.energy - state.energy[m] + tables.swapped[a, b, ENERGY]
                    left = joined = tables.swapped[a, b, DELAY]
                else:
                    if tables.extra[b, k, STAMP] != tables.stamp[k]:
                        cost = changed_edge_cost(problem, state.solved, k, NOBODY, b, True, TOL, scratch)
                        store_entry(tables.extra[b, k], cost, tables.stamp[k])
                    energy = totals.energy - state.energy[m] - state.energy[k]
                    energy = energy + tables.without[a, ENERGY] + tables.extra[b, k, ENERGY]
                    left, joined = tables.without[a, DELAY], tables.extra[b, k, DELAY]
                delay = delay_after(
                    problem.mean, totals, state.delay, state.solved.size, m, k, left, joined, int(k != m)
                )
                if energy + problem.weight * delay < best:
                    best, leaver, joiner, edge = energy + problem.weight * delay, a, b, k
    return best, leaver, joiner, edge


@kernel
def swap_value(problem: RoundProblem, state: State, a: int, b: int, totals: Totals, scratch: FloatArray) -> float:
    """Return the objective after exchanging devices a and b, J."""
    m, k, tables = state.assignment[a], state.assignment[b], state.tables
    if tables.swapped[a, b, STAMP] != tables.stamp[m]:
        cost = changed_edge_cost(problem, state.solved, m, a, b, True, TOL, scratch)
        store_entry(tables.swapped[a, b], cost, tables.stamp[m])
    if tables.swapped[b, a, STAMP] != tables.stamp[k]:
        cost = changed_edge_cost(problem, state.solved, k, b, a, True, TOL, scratch)
        store_entry(tables.swapped[b, a], cost, tables.stamp[k])
    energy = totals.energy - state.energy[m] - state.energy[k]
    energy = energy + tables.swapped[a, b, ENERGY] + tables.swapped[b, a, ENERGY]
    left, joined = tables.swapped[a, b, DELAY], tables.swapped[b, a, DELAY]
    delay = delay_after(problem.mean, totals, state.delay, state.solved.size, m, k, left, joined, 0)
    return float(energy + problem.weight * delay)


@kernel
def best_exchange(
    problem: RoundProblem, state: State, shortlist: int, enough: float, budget: int
) -> tuple[float, int, int, bool]:
    """Return the objective after the best exchange, its two devices, and whether all exchanges are solved.

    Without an exchange, the objective is inf and the devices are -1. The exchanges are ranked by the tables of
    transfers, which `best_move` must have filled, and the first `shortlist` are solved. If the best of them is not
    below `enough`, the others are solved too, at most `budget` of them in one call.
    """
    count = len(state.assignment)
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals = totals_of(state.energy, state.delay, state.solved.size)
    energy, delay, tables = state.energy, state.delay, state.tables
    guess = np.full((count, count), math.inf)
    for a in range(count):
        m = state.assignment[a]
        for b in range(a + 1, count):
            k = state.assignment[b]
            if m != k:
                b_at_m, a_at_k = tables.extra[b, m], tables.extra[a, k]
                change = tables.without[a, ENERGY] + b_at_m[ENERGY] + tables.without[b, ENERGY] + a_at_k[ENERGY]
                change -= 2.0 * (energy[m] + energy[k])
                left = tables.without[a, DELAY] + b_at_m[DELAY] - delay[m]
                joined = tables.without[b, DELAY] + a_at_k[DELAY] - delay[k]
                slowest = delay_after(problem.mean, totals, delay, state.solved.size, m, k, left, joined, 0)
                guess[a, b] = totals.energy + change + problem.weight * slowest
    flat = guess.ravel()
    best, first, second = math.inf, -1, -1
    limit = math.inf
    if shortlist < len(flat):
        limit = np.partition(flat, shortlist)[shortlist]
    for second_pass in (False, True):
        for a in range(count):
            for b in range(a + 1, count):
                # The guess is infinite for devices of the same edge. Ties at the limit belong to the first pass.
                if guess[a, b] < math.inf and (guess[a, b] > limit) == second_pass:
                    solved = tables.swapped[a, b, STAMP] == tables.stamp[state.assignment[a]]
                    solved &= tables.swapped[b, a, STAMP] == tables.stamp[state.assignment[b]]
                    if second_pass and not solved:
                        budget -= 1
                        if budget < 0:
                            return best, first, second, False
                    value = swap_value(problem, state, a, b, totals, scratch)
                    if value < best:
                        best, first, second = value, a, b
        if best < enough:
            break
    return best, first, second, True


def transfer_objectives(problem: RoundProblem, assignment: IntArray) -> tuple[float, FloatArray]:
    """Return the objective of `assignment`, (H,), in J, and the objectives with each device at each edge, (H, M), in J.

    The entry of a device's own edge is the objective of `assignment`. The per-edge allocation of the two edges that
    change is solved again. The learned assigner is fine-tuned by this table (`hflray.rl.fine_tuning`).
    """
    state, table = blank_state(problem, 0, False), np.empty(problem.snr.T.shape)
    objective = restart(problem, state, np.asarray(assignment, dtype=np.intp))
    _fill(problem, state, table, objective)
    return objective, table


@kernel
def _fill(problem: RoundProblem, state: State, table: FloatArray, objective: float) -> None:
    """Fill `table` for a solved state with this objective, J."""
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals = totals_of(state.energy, state.delay, state.solved.size)
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        without = changed_edge_cost(problem, state.solved, m, h, NOBODY, True, TABLE_TOL, scratch)
        for k in range(len(state.solved.size)):
            if k == m:
                table[h, k] = objective
                continue
            extra = changed_edge_cost(problem, state.solved, k, NOBODY, h, True, TABLE_TOL, scratch)
            energy = totals.energy - state.energy[m] - state.energy[k] + without.energy + extra.energy
            delay = delay_after(
                problem.mean, totals, state.delay, state.solved.size, m, k, without.delay, extra.delay, 1
            )
            table[h, k] = energy + problem.weight * delay
