"""The neighbourhood of an assignment in Numba: the objective after each transfer and each exchange.

The costs of the edges that a move changes come from the tables of `hflray.assignment.state.State`, which these
functions fill when they need an entry.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_with_list
from hflray.assignment.objective import Changed, RoundProblem, Totals, delay_after, totals_of
from hflray.assignment.state import DELAY, ENERGY, State, changed_edge_cost
from hflray.support.arrays import BoolArray, FloatArray

TOL = 1e-6  # KKT residual of a candidate, about the error of its objective; the moves made are solved to 1e-9
GAIN = 1e-6  # a move must lower the objective by this fraction, which is about the error of candidates
SHORTLIST = 64  # the exchanges that are solved first
AT_ONCE = 20_000  # exchanges solved between two checks of the clock
NEAR = 5  # transfers to this many strongest links of a device are tried first


def near_links(problem: RoundProblem) -> BoolArray:
    """Return whether an edge is among a device's `NEAR` strongest, (H, M), to which almost all good transfers go."""
    return np.asarray(np.argsort(np.argsort(-problem.snr.T, axis=1), axis=1) < NEAR)


@kernel
def best_transfer(problem: RoundProblem, state: State, allowed: BoolArray) -> tuple[float, int, int]:
    """Return the objective after the best transfer, its device and its new edge; (inf, -1, -1) if there is none.

    Only transfers of a device h to an edge k with ``allowed[h, k]``, (H, M), are considered.
    """
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals = totals_of(state.energy, state.delay, state.solved.size)
    base = totals.energy
    best, device, edge, tables = math.inf, -1, -1, state.tables
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        if tables.out_stamp[h] != tables.stamp[m]:
            cost = changed_edge_cost(problem, state.solved, m, h, -1, True, TOL, scratch)
            tables.out_cost[h, ENERGY], tables.out_cost[h, DELAY] = cost.energy, cost.delay
            tables.out_stamp[h] = tables.stamp[m]
        for k in range(len(state.solved.size)):
            if k == m or not allowed[h, k]:
                continue
            if tables.in_stamp[h, k] != tables.stamp[k]:
                cost = changed_edge_cost(problem, state.solved, k, -1, h, True, TOL, scratch)
                tables.in_cost[h, k, ENERGY], tables.in_cost[h, k, DELAY] = cost.energy, cost.delay
                tables.in_stamp[h, k] = tables.stamp[k]
            energy = (
                base - state.energy[m] - state.energy[k] + tables.out_cost[h, ENERGY] + tables.in_cost[h, k, ENERGY]
            )
            changed = Changed(m, k, tables.out_cost[h, DELAY], tables.in_cost[h, k, DELAY], 1)
            delay = delay_after(problem.mean, totals, state.delay, state.solved.size, changed)
            if energy + problem.weight * delay < best:
                best, device, edge = energy + problem.weight * delay, h, k
    return best, device, edge


@kernel
def swap_value(
    problem: RoundProblem,
    state: State,
    a: int,
    b: int,
    totals: Totals,
    scratch: FloatArray,
) -> float:
    """Return the objective after exchanging devices a and b."""
    m, k, tables = state.assignment[a], state.assignment[b], state.tables
    if tables.swap_stamp[a, b] != tables.stamp[m]:
        cost = changed_edge_cost(problem, state.solved, m, a, b, True, TOL, scratch)
        tables.swap_cost[a, b, ENERGY], tables.swap_cost[a, b, DELAY] = cost.energy, cost.delay
        tables.swap_stamp[a, b] = tables.stamp[m]
    if tables.swap_stamp[b, a] != tables.stamp[k]:
        cost = changed_edge_cost(problem, state.solved, k, b, a, True, TOL, scratch)
        tables.swap_cost[b, a, ENERGY], tables.swap_cost[b, a, DELAY] = cost.energy, cost.delay
        tables.swap_stamp[b, a] = tables.stamp[k]
    energy = totals.energy - state.energy[m] - state.energy[k]
    energy = energy + tables.swap_cost[a, b, ENERGY] + tables.swap_cost[b, a, ENERGY]
    changed = Changed(m, k, tables.swap_cost[a, b, DELAY], tables.swap_cost[b, a, DELAY], 0)
    delay = delay_after(problem.mean, totals, state.delay, state.solved.size, changed)
    return float(energy + problem.weight * delay)


@kernel
def best_exchange(
    problem: RoundProblem, state: State, shortlist: int, enough: float, budget: int
) -> tuple[float, int, int, bool]:
    """Return the objective after the best exchange, its two devices, and whether all exchanges are solved.

    Without an exchange, the objective is inf and the devices are -1. The exchanges are ranked by the tables of
    transfers, which `best_transfer` must have filled, and the first `shortlist` are solved. If the best of them is not
    below `enough`, the others are solved too, at most `budget` of them in one call.
    """
    count = len(state.assignment)
    scratch = scratch_with_list(state.solved.size.max() + 2)
    totals = totals_of(state.energy, state.delay, state.solved.size)
    base = totals.energy
    energy, delay, tables = state.energy, state.delay, state.tables
    guess = np.full((count, count), math.inf)
    for a in range(count):
        m = state.assignment[a]
        for b in range(a + 1, count):
            k = state.assignment[b]
            if m != k:
                b_at_m, a_at_k = tables.in_cost[b, m], tables.in_cost[a, k]
                e = (
                    tables.out_cost[a, ENERGY]
                    + b_at_m[ENERGY]
                    + tables.out_cost[b, ENERGY]
                    + a_at_k[ENERGY]
                    - 2.0 * (energy[m] + energy[k])
                )
                left = tables.out_cost[a, DELAY] + b_at_m[DELAY] - delay[m]
                joined = tables.out_cost[b, DELAY] + a_at_k[DELAY] - delay[k]
                t = delay_after(problem.mean, totals, delay, state.solved.size, Changed(m, k, left, joined, 0))
                guess[a, b] = base + e + problem.weight * t
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
                    solved = tables.swap_stamp[a, b] == tables.stamp[state.assignment[a]]
                    solved &= tables.swap_stamp[b, a] == tables.stamp[state.assignment[b]]
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
