"""An assignment with the solution of every edge, and one move of it, in Numba.

An edge's cost depends only on the set of its devices. Tables therefore hold the cost of each edge without one of its
devices, with one more device, and with one device replaced. An entry is valid as long as its edge stays as it is. After
a move only the entries of the changed edges are solved again, each from its edge's solution as a warm start.

With one deadline for all edges, each edge has a price λ_m instead of λ (`hflray.assignment.prices`). A move changes all
prices a little, so that an entry then also holds the price at which it was solved.

A move is three numbers (a, b, k): device a leaves its edge, and device b joins edge k. It is a transfer if b is a, a
replacement if b is not scheduled, and an exchange if b is at edge k, because then a joins that edge. A device of edge
`NOWHERE` is a candidate that is not scheduled; it is in no edge's list.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from hflray.allocation.kernels.bundles import EdgeSetting, Guess
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import listed, scratch_with_list
from hflray.assignment.objective import Edge, EdgeCost, RoundProblem, edge_cost, weighed_delay
from hflray.support.arrays import FloatArray, IntArray

NOWHERE = -1  # the edge of a candidate that is not scheduled
NOBODY = -1  # no device
PRICE, DEADLINE, WEIGHT, SLOPE = range(4)  # rows of `SolvedEdges.edge`
ENERGY, DELAY, STAMP, ELASTICITY, PAID = range(5)  # columns of an entry of `MoveTables`
ALONE, PRICED = 3, 5  # columns of an entry with a deadline for each edge, and with one deadline for all
EXACT = 1e-9  # largest KKT residual of the assignment itself; objectives that differ by about 1e-9 are told apart


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


class MoveTables(NamedTuple):
    """The costs of an assignment's neighbours.

    An entry is a row of ENERGY, E_m in J, DELAY, T_m in s, and STAMP, the number of the edge's state for which they are
    valid. If the edges share one deadline, it also has ELASTICITY and PAID (`hflray.assignment.joint_search`). H
    devices, M edges.

    | field | meaning | shape |
    |---|---|---|
    | ``stamp`` | number of each edge's state, never used twice | (M,) |
    | ``without`` | a device's edge without the device | (H, columns) |
    | ``extra`` | an edge with one more device | (H, M, columns) |
    | ``swapped`` | the first device's edge with the second instead of it | (H, H, columns) |
    """

    stamp: IntArray
    without: FloatArray
    extra: FloatArray
    swapped: FloatArray


class State(NamedTuple):
    """An assignment of H devices to M edges, its solution, and the tables of its neighbours.

    | field | symbol | unit | shape |
    |---|---|---|---|
    | ``assignment`` | edge of each device | | (H,) |
    | ``solved`` | see `SolvedEdges` | | |
    | ``energy`` | E_m, cloud hop included | J | (M,) |
    | ``delay`` | T_m, cloud hop included | s | (M,) |
    | ``tables`` | see `MoveTables` | | |
    """

    assignment: IntArray
    solved: SolvedEdges
    energy: FloatArray
    delay: FloatArray
    tables: MoveTables


def blank_state(problem: RoundProblem, columns: int, exchanges: bool) -> State:
    """Return an unsolved state with empty tables, whose entries have `columns` columns; only exchanges need H × H."""
    m, h = problem.snr.shape
    k = h if exchanges else 0
    edge = np.zeros((4, m))
    edge[WEIGHT] = problem.weight
    solved = SolvedEdges(np.zeros((m, h), dtype=np.intp), np.zeros(m, dtype=np.intp), np.zeros(h), np.zeros(h), edge)
    tables = MoveTables(
        stamp=np.zeros(m, dtype=np.intp),
        without=np.zeros((h, columns)),
        extra=np.zeros((h, m, columns)),
        swapped=np.zeros((k, k, columns)),
    )
    return State(np.full(h, NOWHERE), solved, np.zeros(m), np.zeros(m), tables)


def assigned_objective(problem: RoundProblem, assignment: ArrayLike) -> float:
    """Return the objective of an assignment, (H,), with a deadline for each edge, J."""
    return restart(problem, blank_state(problem, 0, False), np.asarray(assignment, dtype=np.intp))


@kernel
def restart(problem: RoundProblem, state: State, assignment: IntArray) -> float:
    """Change the state to another assignment, with a deadline for each edge, and return its objective, J.

    Edges whose devices stay the same keep their entries.
    """
    changed = np.full(len(state.solved.size), state.tables.stamp.max() == 0)
    for h in range(len(assignment)):
        if assignment[h] != state.assignment[h]:
            for m in (assignment[h], state.assignment[h]):
                if m != NOWHERE:
                    changed[m] = True
    state.assignment[:] = assignment
    for m in range(len(changed)):
        if changed[m]:
            settle(problem, state, m)
    return state_objective(problem, state)


@kernel
def settle(problem: RoundProblem, state: State, m: int) -> None:
    """List edge m's devices again from the assignment, solve it exactly and give it a new stamp."""
    list_members(state, m)
    solve_members(problem, state, m, False, EXACT)


@kernel
def make_move(problem: RoundProblem, state: State, a: int, b: int, k: int) -> float:
    """Make the move (a, b, k), with a deadline for each edge, and return the objective after it, J."""
    m = state.assignment[a]
    assign_move(state.assignment, a, b, k)
    settle(problem, state, m)
    if k != m:
        settle(problem, state, k)
    return state_objective(problem, state)


@kernel
def assign_move(assignment: IntArray, a: int, b: int, k: int) -> None:
    """Change an assignment, (H,), by the move (a, b, k)."""
    m, edge_of_b = assignment[a], assignment[b]
    if b != a:
        assignment[a] = edge_of_b
    assignment[b] = m if b != a and edge_of_b != NOWHERE else k


@kernel
def list_members(state: State, m: int) -> None:
    """List edge m's devices again from the assignment and give it a new stamp."""
    n = 0
    for h in range(len(state.assignment)):
        if state.assignment[h] == m:
            state.solved.members[m, n] = h
            n += 1
    state.solved.size[m] = n
    state.tables.stamp[m] = state.tables.stamp.max() + 1


@kernel
def solve_members(problem: RoundProblem, state: State, m: int, warm: bool, tol: float) -> None:
    """Solve edge m with its listed devices to a KKT residual of `tol`, from its last solution if `warm`."""
    n = state.solved.size[m]
    scratch = scratch_with_list(n + 1)
    cost = changed_edge_cost(problem, state.solved, m, NOBODY, NOBODY, warm, tol, scratch)
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
    """Return the cost of edge m without its device `without` and with the device `extra`, or `NOBODY`.

    The edge is solved to a KKT residual of `tol`, from its last solution if `warm`, else from a cold start. `scratch`
    is a `lanes.scratch_with_list` with room for the edge's devices and one more. Its list is filled with ln b and ln π
    in the order of the edge's devices, with the extra device last.
    """
    n = 0
    devices, x, y = listed(scratch)
    snr, cycles, power, cap = devices
    for k in range(solved.size[m]):
        h = solved.members[m, k]
        if h != without:
            snr[n], cycles[n], power[n], cap[n] = problem.snr[m, h], problem.cycles[h], problem.power[h], problem.cap[h]
            x[n], y[n] = solved.x[h], solved.y[h]
            n += 1
    weight = solved.edge[WEIGHT, m]
    if extra != NOBODY:
        snr[n], cycles[n] = problem.snr[m, extra], problem.cycles[extra]
        power[n], cap[n] = problem.power[extra], problem.cap[extra]
        if without != NOBODY:
            x[n], y[n] = solved.x[without], solved.y[without]
        else:
            x[n], y[n] = math.log(problem.bandwidth[m] / (n + 1)), math.log(weight / (n + 1))
        n += 1
    setting = EdgeSetting(problem.bandwidth[m], weight, problem.bits, problem.alpha)
    edge = Edge(setting, problem.iterations, problem.hop.energy[m], problem.hop.delay[m])
    return edge_cost(n, edge, Guess(solved.edge[PRICE, m], solved.edge[DEADLINE, m], warm and n > 1), tol, scratch)


@kernel
def store_entry(entry: FloatArray, cost: EdgeCost, stamp: int) -> None:
    """Write the cost of a changed edge, whose stamp is `stamp`, to an entry of `MoveTables`."""
    entry[ENERGY], entry[DELAY], entry[STAMP] = cost.energy, cost.delay, stamp


@kernel
def state_objective(problem: RoundProblem, state: State) -> float:
    """Return Σ E_m + λT, J."""
    delay = weighed_delay(problem.mean, state.delay, state.solved.size)
    return float(state.energy.sum() + problem.weight * delay)
