"""The neighbourhood of an assignment in Numba: what every transfer and every exchange would cost.

An edge's cost depends on the set of its devices only. So the cost of each edge without one of its devices, of each edge
with one device more, and of each edge with one device replaced is kept in tables, stamped with the state of the edge
that it was computed for; after a move, only the entries of the two edges that changed are solved again, each from its
edge's solution as a warm start.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.allocation.blocks import cost_edge
from hflray.allocation.jit import FloatArray, IntArray, kernel
from hflray.allocation.kernel import solve_edge
from hflray.allocation.lanes import ROWS, columns
from hflray.assignment.objective import RoundProblem, others_delay, slowest_three

BoolArray = NDArray[np.bool_]

TOL = 1e-6  # KKT residual of a candidate: its objective is right to about that, the moves made are solved to 1e-9
EXACT = 1e-9


class State(NamedTuple):
    """An assignment and what is known about its neighbours. H devices, M edges.

    Attributes:
        assignment: edge of each device, (H,).
        members, size: devices of each edge, (M, H) of which the first (M,) are in use.
        x, y: ln b and ln π of each device, (H,).
        price, deadline: ln μ and ln τ of each edge, (M,).
        energy, delay: E_m and T_m, (M,), cloud hop included.
        stamp: the state of each edge, (M,), never used twice; `clock` (1,) holds the last one given.
        out_cost, out_stamp: (H, 2), (H,): E and T of a device's edge without it.
        in_cost, in_stamp: (H, M, 2), (H, M): E and T of an edge with the device as well.
        swap_cost, swap_stamp: (H, H, 2), (H, H): E and T of the first device's edge with the second in its place.
    """

    assignment: IntArray
    members: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    price: FloatArray
    deadline: FloatArray
    energy: FloatArray
    delay: FloatArray
    stamp: IntArray
    clock: IntArray
    out_cost: FloatArray
    out_stamp: IntArray
    in_cost: FloatArray
    in_stamp: IntArray
    swap_cost: FloatArray
    swap_stamp: IntArray


def new_state(problem: RoundProblem, assignment: IntArray, exchanges: bool) -> State:
    """A state of this assignment (copied), solved, with empty tables; without exchanges the H × H table is left out."""
    h, m = len(assignment), len(problem.bandwidth)
    k = h if exchanges else 0
    state = State(
        assignment=assignment.copy(),
        members=np.zeros((m, h), dtype=np.intp),
        size=np.zeros(m, dtype=np.intp),
        x=np.zeros(h),
        y=np.zeros(h),
        price=np.zeros(m),
        deadline=np.zeros(m),
        energy=np.zeros(m),
        delay=np.zeros(m),
        stamp=np.zeros(m, dtype=np.intp),
        clock=np.zeros(1, dtype=np.intp),
        out_cost=np.zeros((h, 2)),
        out_stamp=np.zeros(h, dtype=np.intp),
        in_cost=np.zeros((h, m, 2)),
        in_stamp=np.zeros((h, m), dtype=np.intp),
        swap_cost=np.zeros((k, k, 2)),
        swap_stamp=np.zeros((k, k), dtype=np.intp),
    )
    restart(problem, state, assignment)
    return state


@kernel
def restart(problem: RoundProblem, state: State, assignment: IntArray) -> None:
    """Take over another assignment; edges whose devices stay the same keep their entries."""
    changed = np.zeros(len(state.size), dtype=np.bool_)
    for h in range(len(assignment)):
        if state.clock[0] == 0:
            changed[:] = True
        elif assignment[h] != state.assignment[h]:
            changed[assignment[h]] = True
            changed[state.assignment[h]] = True
    state.assignment[:] = assignment
    for m in range(len(state.size)):
        if changed[m]:
            settle(problem, state, m)


@kernel
def settle(problem: RoundProblem, state: State, m: int) -> None:
    """List edge m's devices again from the assignment, solve it exactly and give it a new stamp."""
    n = 0
    for h in range(len(state.assignment)):
        if state.assignment[h] == m:
            state.members[m, n] = h
            n += 1
    state.size[m] = n
    state.clock[0] += 1
    state.stamp[m] = state.clock[0]
    scratch = np.empty((ROWS + 6, columns(n + 1)))
    state.energy[m], state.delay[m] = cost_of(problem, state, m, -1, -1, EXACT, scratch)
    for k in range(n):
        h = state.members[m, k]
        state.x[h], state.y[h] = scratch[ROWS + 4, k], scratch[ROWS + 5, k]
    state.price[m], state.deadline[m] = scratch[0, n], scratch[1, n]


@kernel
def cost_of(
    problem: RoundProblem, state: State, m: int, without: int, extra: int, tol: float, scratch: FloatArray
) -> tuple[float, float]:
    """E_m and T_m of edge m without one of its devices and with one more; -1 for neither.

    Warm: the edge's own solution, except that with `without` and `extra` both -1 it is solved from scratch. Rows
    ROWS + 4 and ROWS + 5 of `scratch` (ROWS + 6, at least n + 1) get ln b and ln π, its column n ln μ and ln τ.
    """
    n = 0
    bandwidth, alpha = problem.bandwidth[m], problem.alpha
    snr, cycles, power, cap = scratch[ROWS], scratch[ROWS + 1], scratch[ROWS + 2], scratch[ROWS + 3]
    x, y = scratch[ROWS + 4], scratch[ROWS + 5]
    fresh = without < 0 and extra < 0
    for k in range(state.size[m]):
        h = state.members[m, k]
        if h != without:
            snr[n], cycles[n], power[n], cap[n] = problem.snr[m, h], problem.cycles[h], problem.power[h], problem.cap[h]
            x[n], y[n] = state.x[h], state.y[h]
            n += 1
    price, deadline = state.price[m], state.deadline[m]
    if extra >= 0:
        snr[n], cycles[n] = problem.snr[m, extra], problem.cycles[extra]
        power[n], cap[n] = problem.power[extra], problem.cap[extra]
        if without >= 0:
            x[n], y[n] = state.x[without], state.y[without]
        else:
            x[n], y[n] = math.log(bandwidth / (n + 1)), math.log(problem.weight / (n + 1))
        n += 1
    if n == 0:
        return problem.hop_energy[m], problem.hop_delay[m]
    price, deadline, _, _, _ = solve_edge(
        snr[:n], cycles[:n], power[:n], cap[:n], bandwidth, problem.weight, problem.bits, alpha, x[:n], y[:n],
        price, deadline, not fresh and n > 1, tol, scratch,
    )  # fmt: skip
    energy, delay = cost_edge(n, scratch.reshape(-1), bandwidth, problem.bits, alpha, 1.0)
    scratch[0, n], scratch[1, n] = price, deadline
    return problem.iterations * energy + problem.hop_energy[m], problem.iterations * delay + problem.hop_delay[m]


@kernel
def objective_of(problem: RoundProblem, state: State) -> float:
    """Σ E_m + λ max T_m."""
    return float(state.energy.sum() + problem.weight * state.delay.max())


@kernel
def best_transfer(problem: RoundProblem, state: State, allowed: BoolArray) -> tuple[float, int, int]:
    """The objective after the best transfer, its device and its new edge (inf, -1, -1 if there is none).

    Only transfers of a device h to an edge k with ``allowed[h, k]``, (H, M), are looked at.
    """
    scratch = np.empty((ROWS + 6, columns(state.size.max() + 2)))
    slowest = slowest_three(state.delay)
    base = state.energy.sum()
    best, device, edge = math.inf, -1, -1
    for h in range(len(state.assignment)):
        m = state.assignment[h]
        if state.out_stamp[h] != state.stamp[m]:
            state.out_cost[h, 0], state.out_cost[h, 1] = cost_of(problem, state, m, h, -1, TOL, scratch)
            state.out_stamp[h] = state.stamp[m]
        for k in range(len(state.size)):
            if k == m or not allowed[h, k]:
                continue
            if state.in_stamp[h, k] != state.stamp[k]:
                state.in_cost[h, k, 0], state.in_cost[h, k, 1] = cost_of(problem, state, k, -1, h, TOL, scratch)
                state.in_stamp[h, k] = state.stamp[k]
            energy = base - state.energy[m] - state.energy[k] + state.out_cost[h, 0] + state.in_cost[h, k, 0]
            delay = max(state.out_cost[h, 1], state.in_cost[h, k, 1], others_delay(slowest, m, k))
            if energy + problem.weight * delay < best:
                best, device, edge = energy + problem.weight * delay, h, k
    return best, device, edge


@kernel
def swap_value(
    problem: RoundProblem,
    state: State,
    a: int,
    b: int,
    base: float,
    slowest: tuple[float, int, float, int, float],
    scratch: FloatArray,
) -> float:
    """The objective after exchanging devices a and b."""
    m, k = state.assignment[a], state.assignment[b]
    if state.swap_stamp[a, b] != state.stamp[m]:
        state.swap_cost[a, b, 0], state.swap_cost[a, b, 1] = cost_of(problem, state, m, a, b, TOL, scratch)
        state.swap_stamp[a, b] = state.stamp[m]
    if state.swap_stamp[b, a] != state.stamp[k]:
        state.swap_cost[b, a, 0], state.swap_cost[b, a, 1] = cost_of(problem, state, k, b, a, TOL, scratch)
        state.swap_stamp[b, a] = state.stamp[k]
    energy = base - state.energy[m] - state.energy[k] + state.swap_cost[a, b, 0] + state.swap_cost[b, a, 0]
    delay = max(state.swap_cost[a, b, 1], state.swap_cost[b, a, 1], others_delay(slowest, m, k))
    return float(energy + problem.weight * delay)


@kernel
def best_exchange(
    problem: RoundProblem, state: State, shortlist: int, enough: float, most: int
) -> tuple[float, int, int, bool]:
    """The objective after the best exchange found, its devices (inf, -1, -1 if there is none), and whether all are
    known.

    Ranked by what the tables of transfers say (`best_transfer` must have filled them), the first `shortlist` are
    solved. If the best of them is below `enough`, that is the answer; if not, all the others are solved, at most `most`
    in one call.
    """
    count = len(state.assignment)
    scratch = np.empty((ROWS + 6, columns(state.size.max() + 2)))
    slowest = slowest_three(state.delay)
    base = state.energy.sum()
    energy, delay = state.energy, state.delay
    guess = np.full((count, count), math.inf)
    for a in range(count):
        m = state.assignment[a]
        for b in range(a + 1, count):
            k = state.assignment[b]
            if m != k:
                here, there = state.in_cost[b, m], state.in_cost[a, k]
                e = state.out_cost[a, 0] + here[0] + state.out_cost[b, 0] + there[0] - 2.0 * (energy[m] + energy[k])
                t = max(
                    state.out_cost[a, 1] + here[1] - delay[m],
                    state.out_cost[b, 1] + there[1] - delay[k],
                    others_delay(slowest, m, k),
                )
                guess[a, b] = base + e + problem.weight * t
    flat = guess.ravel()
    best, first, second = math.inf, -1, -1
    limit = math.inf
    if shortlist < len(flat):
        limit = np.partition(flat, shortlist)[shortlist]
    for late in (False, True):
        for a in range(count):
            for b in range(a + 1, count):
                # Infinite: the same edge. Ties at the limit are taken in the first pass.
                if guess[a, b] < math.inf and (guess[a, b] > limit) == late:
                    known = state.swap_stamp[a, b] == state.stamp[state.assignment[a]]
                    known &= state.swap_stamp[b, a] == state.stamp[state.assignment[b]]
                    if late and not known:
                        most -= 1
                        if most < 0:
                            return best, first, second, False
                    value = swap_value(problem, state, a, b, base, slowest, scratch)
                    if value < best:
                        best, first, second = value, a, b
        if best < enough:
            break
    return best, first, second, True
