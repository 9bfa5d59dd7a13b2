"""An assignment with the solution of every edge, and tables of what its neighbours cost; in Numba.

An edge's cost depends on the set of its devices only. So the cost of each edge without one of its devices, of each edge
with one device more, and of each edge with one device replaced is kept in tables, stamped with the state of the edge
that it was computed for; after a move, only the entries of the two edges that changed are solved again, each from its
edge's solution as a warm start.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import ROWS, columns
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import RoundProblem

PRICE, DEADLINE, WEIGHT, SLOPE = range(4)  # rows of `State.edge`; Numba hands over one array faster than four
EXACT = 1e-9  # KKT residual that the edges of the assignment itself are solved to


class State(NamedTuple):
    """An assignment and what is known about its neighbours. H devices, M edges.

    Attributes:
        assignment: edge of each device, (H,).
        members, size: devices of each edge, (M, H) of which the first (M,) are in use.
        x, y: ln b and ln π of each device, (H,).
        edge: rows PRICE, DEADLINE, WEIGHT and SLOPE, (4, M): ln μ; ln τ; what a second of the edge's delay costs, J/s:
            λ, or λ_m where the edges share one deadline; and the elasticity d ln τ / d ln weight.
        energy, delay: E_m and T_m, (M,), cloud hop included.
        stamp: the state of each edge, (M,), never used twice; `clock` (1,) holds the last one given.
        out_cost, out_stamp: (H, 2), (H,): E and T of a device's edge without it.
        in_cost, in_stamp: (H, M, 2), (H, M): E and T of an edge with the device as well.
        swap_cost, swap_stamp: (H, H, 2), (H, H): E and T of the first device's edge with the second in its place.
            With one deadline for all edges, an entry has four numbers (`hflray.assignment.joint_moves`).
    """

    assignment: IntArray
    members: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    edge: FloatArray
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
    state = blank_state(problem, assignment, exchanges, 2)
    restart(problem, state, assignment)
    return state


def blank_state(problem: RoundProblem, assignment: IntArray, exchanges: bool, entry: int) -> State:
    """A state of this assignment (copied), not solved yet, whose tables are empty and hold `entry` numbers each."""
    h, m = len(assignment), len(problem.bandwidth)
    k = h if exchanges else 0
    state = State(
        assignment=assignment.copy(),
        members=np.zeros((m, h), dtype=np.intp),
        size=np.zeros(m, dtype=np.intp),
        x=np.zeros(h),
        y=np.zeros(h),
        edge=np.zeros((4, m)),
        energy=np.zeros(m),
        delay=np.zeros(m),
        stamp=np.zeros(m, dtype=np.intp),
        clock=np.zeros(1, dtype=np.intp),
        out_cost=np.zeros((h, entry)),
        out_stamp=np.zeros(h, dtype=np.intp),
        in_cost=np.zeros((h, m, entry)),
        in_stamp=np.zeros((h, m), dtype=np.intp),
        swap_cost=np.zeros((k, k, entry)),
        swap_stamp=np.zeros((k, k), dtype=np.intp),
    )
    state.edge[WEIGHT] = problem.weight
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
    list_members(state, m)
    solve_members(problem, state, m, False, EXACT)


@kernel
def list_members(state: State, m: int) -> None:
    """List edge m's devices again from the assignment and give it a new stamp."""
    n = 0
    for h in range(len(state.assignment)):
        if state.assignment[h] == m:
            state.members[m, n] = h
            n += 1
    state.size[m] = n
    state.clock[0] += 1
    state.stamp[m] = state.clock[0]


@kernel
def solve_members(problem: RoundProblem, state: State, m: int, warm: bool, tol: float) -> None:
    """Solve edge m with the devices listed, to a KKT residual of `tol`, from its last solution if `warm`."""
    n = state.size[m]
    scratch = np.empty((ROWS + 6, columns(n + 1)))
    state.energy[m], state.delay[m] = changed_edge_cost(problem, state, m, -1, -1, warm, tol, scratch)
    for k in range(n):
        h = state.members[m, k]
        state.x[h], state.y[h] = scratch[ROWS + 4, k], scratch[ROWS + 5, k]
    state.edge[PRICE, m], state.edge[DEADLINE, m], state.edge[SLOPE, m] = scratch[0, n], scratch[1, n], scratch[2, n]


@kernel
def changed_edge_cost(
    problem: RoundProblem, state: State, m: int, without: int, extra: int, warm: bool, tol: float, scratch: FloatArray
) -> tuple[float, float]:
    """E_m and T_m of edge m without one of its devices and with one more; -1 for neither.

    From the edge's own solution if `warm`, else from scratch. Rows ROWS + 4 and ROWS + 5 of `scratch` (ROWS + 6, at
    least n + 1) get ln b and ln π, its column n ln μ, ln τ and d ln τ / d ln weight.
    """
    n = 0
    bandwidth, alpha = problem.bandwidth[m], problem.alpha
    snr, cycles, power, cap = scratch[ROWS], scratch[ROWS + 1], scratch[ROWS + 2], scratch[ROWS + 3]
    x, y = scratch[ROWS + 4], scratch[ROWS + 5]
    for k in range(state.size[m]):
        h = state.members[m, k]
        if h != without:
            snr[n], cycles[n], power[n], cap[n] = problem.snr[m, h], problem.cycles[h], problem.power[h], problem.cap[h]
            x[n], y[n] = state.x[h], state.y[h]
            n += 1
    price, deadline = state.edge[PRICE, m], state.edge[DEADLINE, m]
    if extra >= 0:
        snr[n], cycles[n] = problem.snr[m, extra], problem.cycles[extra]
        power[n], cap[n] = problem.power[extra], problem.cap[extra]
        if without >= 0:
            x[n], y[n] = state.x[without], state.y[without]
        else:
            x[n], y[n] = math.log(bandwidth / (n + 1)), math.log(state.edge[WEIGHT, m] / (n + 1))
        n += 1
    if n == 0:
        return problem.hop_energy[m], problem.hop_delay[m]
    price, deadline, _, _, slope = solve_edge(
        snr[:n], cycles[:n], power[:n], cap[:n], bandwidth, state.edge[WEIGHT, m], problem.bits, alpha, x[:n], y[:n],
        price, deadline, warm and n > 1, tol, scratch,
    )  # fmt: skip
    energy, delay = iteration_cost(n, scratch.reshape(-1), bandwidth, problem.bits, alpha, 1.0)
    scratch[0, n], scratch[1, n], scratch[2, n] = price, deadline, slope
    return problem.iterations * energy + problem.hop_energy[m], problem.iterations * delay + problem.hop_delay[m]


@kernel
def state_objective(problem: RoundProblem, state: State) -> float:
    """Σ E_m + λ max T_m."""
    return float(state.energy.sum() + problem.weight * state.delay.max())
