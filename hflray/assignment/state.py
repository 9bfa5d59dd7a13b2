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
from hflray.allocation.kernels.bundles import Devices, Guess, Setting
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import ROWS, listed, scratch_with_list
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import EdgeCost, RoundProblem

PRICE, DEADLINE, WEIGHT, SLOPE = range(4)  # rows of `SolvedEdges.edge`
ENERGY, DELAY, ELASTICITY, PAID = range(4)  # columns of an entry of `Tables`
EXACT = 1e-9  # KKT residual that the edges of the assignment itself are solved to


class SolvedEdges(NamedTuple):
    """The devices of each edge and the edge's last solution. H devices, M edges.

    It is a part of `State` by itself because Numba passes a NamedTuple as all the numbers that its arrays consist of:
    handing the tables over to `changed_edge_cost` as well took a fifth of its time.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``members`` | devices of each edge; the first `size` of a row are in use | | (M, H) |
    | ``size`` | devices of each edge | | (M,) |
    | ``x`` | ln b | of Hz | (H,) |
    | ``y`` | ln π | of J/s | (H,) |
    | ``edge`` | rows PRICE, DEADLINE, WEIGHT and SLOPE, see below | | (4, M) |

    PRICE is ln μ, DEADLINE ln τ, WEIGHT what a second of the edge's delay costs, J/s: λ, or λ_m where the edges share
    one deadline; SLOPE the elasticity d ln τ / d ln WEIGHT. Numba hands one array over faster than four.
    """

    members: IntArray
    size: IntArray
    x: FloatArray
    y: FloatArray
    edge: FloatArray


class Tables(NamedTuple):
    """What the neighbours of an assignment cost, and for which state of the edge each entry was computed.

    An entry is a row of ENERGY, E_m in J, and DELAY, T_m in s; where the edges share one deadline also of ELASTICITY
    and PAID (`hflray.assignment.joint_moves`). It holds while its stamp is that of the edge. H devices, M edges.

    | field | what | shape |
    |---|---|---|
    | ``stamp`` | the state of each edge, never used twice | (M,) |
    | ``clock`` | the last stamp given | (1,) |
    | ``out_cost``, ``out_stamp`` | a device's edge without it | (H, entry), (H,) |
    | ``in_cost``, ``in_stamp`` | an edge with the device as well | (H, M, entry), (H, M) |
    | ``swap_cost``, ``swap_stamp`` | the first device's edge with the second in its place | (H, H, entry), (H, H) |
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
    """An assignment and what is known about it and its neighbours. H devices, M edges.

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
    """A state of this assignment (copied), solved, with empty tables; without exchanges the H × H table is left out."""
    state = blank_state(problem, assignment, exchanges, 2)
    restart(problem, state, assignment)
    return state


def blank_state(problem: RoundProblem, assignment: IntArray, exchanges: bool, entry: int) -> State:
    """A state of this assignment (copied), not solved yet, whose tables are empty and hold `entry` numbers each."""
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
    """Take over another assignment; edges whose devices stay the same keep their entries."""
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
    """Solve edge m with the devices listed, to a KKT residual of `tol`, from its last solution if `warm`."""
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
    """What edge m costs without its device `without` and with the device `extra`; -1 for none.

    It is solved from the edge's own solution if `warm`, else from equal shares, to a KKT residual of `tol`. `scratch`
    is a `lanes.scratch_with_list` with room for the edge's devices and one more; its list gets ln b and ln π, in the
    order of the edge's devices, the extra one last.
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
    found = solve_edge(Devices(snr[:n], cycles[:n], power[:n], cap[:n]), setting, x[:n], y[:n], start, tol, scratch)
    energy, delay = iteration_cost(n, scratch.reshape(-1), setting, 1.0)
    energy = problem.iterations * energy + problem.hop.energy[m]
    delay = problem.iterations * delay + problem.hop.delay[m]
    return EdgeCost(energy, delay, found.price, found.deadline, found.slope)


@kernel
def state_objective(problem: RoundProblem, state: State) -> float:
    """Σ E_m + λ max T_m."""
    return float(state.energy.sum() + problem.weight * state.delay.max())
