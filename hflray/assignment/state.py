"""An assignment with the solution of every edge and tables of its neighbours' costs, in Numba.

An edge's cost depends only on the set of its devices. Tables therefore hold the cost of each edge without one of its
devices, with one more device, and with one device replaced. Every entry has the stamp of the edge's state for which it
was computed. After a move only the entries of the two changed edges are solved again, each from its edge's solution as
a warm start.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hflray.allocation.kernels.blocks import iteration_cost
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import ROWS, listed, scratch_with_list
from hflray.assignment.objective import EdgeCost, RoundProblem, weighed_delay
from hflray.support.arrays import FloatArray, IntArray

PRICE, DEADLINE, WEIGHT, SLOPE = range(4)  # rows of `SolvedEdges.edge`
ENERGY, DELAY, ELASTICITY, PAID = range(4)  # columns of an entry of `Tables`
EXACT = 1e-9  # largest KKT residual of the edges of the assignment itself


class SolvedEdges(NamedTuple):
    """The devices of each edge and the edge's last solution. H devices, M edges.

    It is separate from the other parts of `State` because Numba passes every field of every array of a NamedTuple:
    passing the tables to `changed_edge_cost` as well took a fifth of its time.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``members`` | devices of each edge; the first `size` of a row are in use | | (M, H) |
    | ``size`` | number of devices of each edge | | (M,) |
    | ``x`` | ln b | of Hz | (H,) |
    | ``y`` | ln π | of J/s | (H,) |
    | ``edge`` | rows PRICE, DEADLINE, WEIGHT and SLOPE, see below | | (4, M) |

    PRICE is ln μ and DEADLINE is ln τ. WEIGHT is the price of the edge's delay, J/s: λ, or λ_m if the edges share one
    deadline. SLOPE is the elasticity d ln τ / d ln WEIGHT. Numba passes one array faster than four.
    """

    members: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    edge: FloatArray


class Tables(NamedTuple):
    """The costs of an assignment's neighbours, and the state of the edge for which each was computed.

    An entry is a row of ENERGY, E_m in J, and DELAY, T_m in s. If the edges share one deadline, it also has ELASTICITY
    and PAID (`hflray.assignment.joint_moves`). An entry is valid while its stamp is the edge's. H devices, M edges.

    | field | meaning | shape |
    |---|---|---|
    | ``stamp`` | number of each edge's state, never used twice | (M,) |
    | ``clock`` | the newest stamp | (1,) |
    | ``out_cost``, ``out_stamp`` | a device's edge without the device | (H, entry), (H,) |
    | ``in_cost``, ``in_stamp`` | an edge with one more device | (H, M, entry), (H, M) |
    | ``swap_cost``, ``swap_stamp`` | the first device's edge with the second instead of it | (H, H, entry), (H, H) |
    """

    stamp: IntArray
    clock: IntArray
    out_cost: FloatArray
    out_stamp: IntArray
    in_cost: FloatArray
    in_stamp: IntArray
    swap_cost: FloatArray
    swap_stamp: IntArray


class State(NamedTuple):
    """An assignment of H devices to M edges, its solution, and the tables of its neighbours.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``assignment`` | edge of each device | | (H,) |
    | ``solved`` | see `SolvedEdges` | | |
    | ``energy`` | E_m, cloud hop included | J | (M,) |
    | ``delay`` | T_m, cloud hop included | s | (M,) |
    | ``tables`` | see `Tables` | | |
    """

    assignment: IntArray
    solved: SolvedEdges
    energy: FloatArray
    delay: FloatArray
    tables: Tables


def new_state(problem: RoundProblem, assignment: IntArray, exchanges: bool) -> State:
    """Return a solved state of a copy of `assignment`, with empty tables; only exchanges need the H × H table."""
    state = blank_state(problem, assignment, exchanges, 2)
    restart(problem, state, assignment)
    return state


def blank_state(problem: RoundProblem, assignment: IntArray, exchanges: bool, entry: int) -> State:
    """Return an unsolved state of a copy of `assignment`, with empty tables whose entries have `entry` numbers."""
    h, m = len(assignment), len(problem.bandwidth)
    k = h if exchanges else 0
    solved = SolvedEdges(
        members=np.zeros((m, h), dtype=np.intp),
        size=np.zeros(m, dtype=np.intp),
        x=np.zeros(h),
        y=np.zeros(h),
        edge=np.zeros((4, m)),
    )
    tables = Tables(
        stamp=np.zeros(m, dtype=np.intp),
        clock=np.zeros(1, dtype=np.intp),
        out_cost=np.zeros((h, entry)),
        out_stamp=np.zeros(h, dtype=np.intp),
        in_cost=np.zeros((h, m, entry)),
        in_stamp=np.zeros((h, m), dtype=np.intp),
        swap_cost=np.zeros((k, k, entry)),
        swap_stamp=np.zeros((k, k), dtype=np.intp),
    )
    state = State(assignment.copy(), solved, np.zeros(m), np.zeros(m), tables)
    state.solved.edge[WEIGHT] = problem.weight
    return state


@kernel
def restart(problem: RoundProblem, state: State, assignment: IntArray) -> None:
    """Change the state to another assignment; edges whose devices stay the same keep their entries."""
    changed = np.zeros(len(state.solved.size), dtype=np.bool_)
    for h in range(len(assignment)):
        if state.tables.clock[0] == 0:
            changed[:] = True
        elif assignment[h] != state.assignment[h]:
            changed[assignment[h]] = True
            changed[state.assignment[h]] = True
    state.assignment[:] = assignment
    for m in range(len(state.solved.size)):
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
            state.solved.members[m, n] = h
            n += 1
    state.solved.size[m] = n
    state.tables.clock[0] += 1
    state.tables.stamp[m] = state.tables.clock[0]


@kernel
def solve_members(problem: RoundProblem, state: State, m: int, warm: bool, tol: float) -> None:
    """Solve edge m with its listed devices to a KKT residual of `tol`, from its last solution if `warm`."""
    n = state.solved.size[m]
    scratch = scratch_with_list(n + 1)
    cost = changed_edge_cost(problem, state.solved, m, -1, -1, warm, tol, scratch)
    _, x, y = listed(scratch)
    for k in range(n):
        h = state.solved.members[m, k]
        state.solved.x[h], state.solved.y[h] = x[k], y[k]
    state.energy[m], state.delay[m] = cost.energy, cost.delay
    edge = state.solved.edge
    edge[PRICE, m], edge[DEADLINE, m], edge[SLOPE, m] = cost.price, cost.deadline, cost.slope


@kernel
def changed_edge_cost(
    problem: RoundProblem,
    solved: SolvedEdges,
    m: int,
    without: int,
    extra: int,
    warm: bool,
    tol: float,
    scratch: FloatArray,
) -> EdgeCost:
    """Return the cost of edge m without its device `without` and with the device `extra`; -1 stands for no device.

    The edge is solved to a KKT residual of `tol`, from its last solution if `warm`, else from a cold start. `scratch`
    is a `lanes.scratch_with_list` with room for the edge's devices and one more. Its list is filled with ln b and ln π
    in the order of the edge's devices, with the extra device last.
    """
    n = 0
    snr, cycles, power, cap = scratch[ROWS], scratch[ROWS + 1], scratch[ROWS + 2], scratch[ROWS + 3]
    x, y = scratch[ROWS + 4], scratch[ROWS + 5]
    for k in range(solved.size[m]):
        h = solved.members[m, k]
        if h != without:
            snr[n], cycles[n], power[n], cap[n] = problem.snr[m, h], problem.cycles[h], problem.power[h], problem.cap[h]
            x[n], y[n] = solved.x[h], solved.y[h]
            n += 1
    setting = Setting(problem.bandwidth[m], solved.edge[WEIGHT, m], problem.bits, problem.alpha)
    if extra >= 0:
        snr[n], cycles[n] = problem.snr[m, extra], problem.cycles[extra]
        power[n], cap[n] = problem.power[extra], problem.cap[extra]
        if without >= 0:
            x[n], y[n] = solved.x[without], solved.y[without]
        else:
            x[n], y[n] = math.log(setting.bandwidth / (n + 1)), math.log(setting.weight / (n + 1))
        n += 1
    if n == 0:
        return EdgeCost(problem.hop.energy[m], problem.hop.delay[m], 0.0, 0.0, 0.0)
    start = Guess(solved.edge[PRICE, m], solved.edge[DEADLINE, m], warm and n > 1)
    solution = solve_edge(Devices(snr[:n], cycles[:n], power[:n], cap[:n]), setting, x[:n], y[:n], start, tol, scratch)
    energy, delay = iteration_cost(n, scratch.reshape(-1), setting, 1.0)
    energy = problem.iterations * energy + problem.hop.energy[m]
    delay = problem.iterations * delay + problem.hop.delay[m]
    return EdgeCost(energy, delay, solution.price, solution.deadline, solution.slope)


@kernel
def state_objective(problem: RoundProblem, state: State) -> float:
    """Return Σ E_m + λT, J."""
    delay = weighed_delay(problem.mean, state.delay, state.solved.size)
    return float(state.energy.sum() + problem.weight * delay)
