"""One deadline for all edges: decide in a few solutions of each edge whether a move lowers the joint optimum.

The joint optimum J of an assignment is problem (17), ``min Σ_m E_m + λ T`` with ``T_m ≤ T`` for every edge. For any
prices ``w_m ≥ 0`` with ``Σ w_m + ρ = λ``, let each edge solve its problem (27) with weight w_m, which gives E_m and
T_m. Here ρ ≥ 0 is the price of the floor F, the longest hop of an edge without devices, which no deadline can be below.
Then

    L = Σ_m (E_m + w_m T_m) + ρ F  ≤  J  ≤  Σ_m E_m + λ max(max T_m, F) = U.

The left inequality is weak duality; the right one holds because the edges' allocations are feasible. A move is refused
as soon as L reaches the objective to beat, and made as soon as U is below it, so both decisions are certain. Until then
`move_prices` changes the prices. `kernels.joint` computes the same optimum from a cold start.

The prices move as in Newton's method in logarithms. Each delay is approximated by the power law
``T_m(w) = T_m (w/w_m)^ε_m`` of the edge's price, with the elasticity ε_m from its solution. All prices then follow from
the T at which they add up to λ.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bundles import Devices, Edges, EdgeSetting, Guess
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.joint import find_weight, new_joint_solution, solve_joint
from hflray.allocation.kernels.lanes import scratch_for
from hflray.assignment.objective import RoundProblem
from hflray.assignment.state import NOWHERE, SLOPE, WEIGHT, State, assign_move, list_members, solve_members
from hflray.support.arrays import FloatArray, IntArray

TOL = 1e-10  # largest KKT residual of every edge's solution
TIGHT = 1e-10  # largest (U - L) / U of an accepted assignment
ROUNDS = 15  # price moves before the search in brackets of `kernels.joint`
STIFF = -1e-4  # elasticity of an edge whose devices are all at their caps, where it is 0


@kernel
def elasticity(problem: RoundProblem, state: State, m: int) -> float:
    """Return ε_m = d ln T_m / d ln w_m, where T_m is the round's delay with the hop."""
    return float(min(STIFF, state.solved.edge[SLOPE, m] * (1.0 - problem.hop.delay[m] / state.delay[m])))


@kernel
def floor_of(problem: RoundProblem, state: State) -> float:
    """Return F, the longest hop of an edge without devices, s; -inf if every edge has devices."""
    floor = -math.inf
    for m in range(len(state.solved.size)):
        if state.solved.size[m] == 0:
            floor = max(floor, problem.hop.delay[m])
    return floor


@kernel
def log_deadline(weight: FloatArray, delay: FloatArray, slope: FloatArray, total: float) -> float:
    """Return ln of the T at which ``Σ w_i (T/T_i)^(1/ε_i)`` is `total`; entries of weight 0 do not count.

    The logarithm of the sum is convex and falls with ln T, and the start is below the root, so Newton's method
    approaches the root from below.
    """
    u = -math.inf
    for i in range(len(weight)):
        if weight[i] > 0.0:
            u = max(u, math.log(delay[i]) + slope[i] * math.log(total / weight[i]))
    for _ in range(60):
        value = fall = 0.0
        for i in range(len(weight)):
            if weight[i] > 0.0:
                term = weight[i] * math.exp((u - math.log(delay[i])) / slope[i])
                value += term
                fall += term / slope[i]
        step = -math.log(value / total) * value / fall
        u += step
        if abs(step) <= 1e-12:
            break
    return u


@kernel
def move_prices(problem: RoundProblem, state: State) -> None:
    """Set the price of every edge with devices by the power laws; Σ w_m is λ, or less if the floor binds.

    The π of the edge's devices are scaled with it, so that its last solution stays a good start.
    """
    edges = len(state.solved.size)
    weight, slope = np.zeros(edges), np.full(edges, -1.0)
    for m in range(edges):
        if state.solved.size[m] > 0:
            weight[m], slope[m] = state.solved.edge[WEIGHT, m], elasticity(problem, state, m)
    floor, u = floor_of(problem, state), log_deadline(weight, state.delay, slope, problem.weight)
    bound = floor > 0.0 and u < math.log(floor)
    if bound:
        u = math.log(floor)
    total = 0.0
    for m in range(edges):
        if weight[m] > 0.0:
            weight[m] *= math.exp((u - math.log(state.delay[m])) / slope[m])
            weight[m] = max(weight[m], least_price(problem, state, m, math.exp(u)))
            total += weight[m]
    for m in range(edges):
        if weight[m] > 0.0:
            price = weight[m] if bound else weight[m] * (problem.weight / total)
            move = math.log(price / state.solved.edge[WEIGHT, m])
            for k in range(state.solved.size[m]):
                state.solved.y[state.solved.members[m, k]] += move
            state.solved.edge[WEIGHT, m] = price


@kernel
def least_price(problem: RoundProblem, state: State, m: int, deadline: float) -> float:
    """Return a lower bound on the w_m at which edge m meets `deadline`, s: c/f ≤ τ needs ``π ≥ α (c/τ)³``.

    Without it a power law from a point where all frequencies are at their caps would lower the price to 0.
    """
    tau, total = (deadline - problem.hop.delay[m]) / problem.iterations, 0.0
    if tau <= 0.0:
        return 0.0
    for k in range(state.solved.size[m]):
        total += problem.alpha * (problem.cycles[state.solved.members[m, k]] / tau) ** 3
    return total


@kernel
def objective_bounds(problem: RoundProblem, state: State) -> tuple[float, float]:
    """Return L and U, J, at the edges' present solutions; L is -inf if the prices add up to more than λ."""
    floor = floor_of(problem, state)
    lower = energy = total = 0.0
    slowest = floor
    for m in range(len(state.solved.size)):
        energy += state.energy[m]
        if state.solved.size[m] > 0:
            total += state.solved.edge[WEIGHT, m]
            lower += state.solved.edge[WEIGHT, m] * state.delay[m]
            slowest = max(slowest, state.delay[m])
    if total > problem.weight * (1.0 + 1e-12):
        lower = -math.inf
    rest = max(problem.weight - total, 0.0) * floor if floor > 0.0 else 0.0
    return energy + lower + rest, energy + problem.weight * slowest


@kernel
def tighten(problem: RoundProblem, state: State, enough: float) -> tuple[float, float]:
    """Move the prices of a solved state until L ≥ `enough`, U < `enough`, or L and U agree; return L and U, J.

    With `enough` = -inf the prices move until the state is the joint optimum.
    """
    decide = enough > -math.inf
    lower, upper = objective_bounds(problem, state)
    for _ in range(ROUNDS):
        if (decide and (lower >= enough or upper < enough)) or upper - lower <= TIGHT * upper:
            return lower, upper
        move_prices(problem, state)
        for m in range(len(state.solved.size)):
            if state.solved.size[m] > 0:
                solve_members(problem, state, m, True, TOL)
        lower, upper = objective_bounds(problem, state)
    solve_cold(problem, state)
    return objective_bounds(problem, state)


@kernel
def solve_cold(problem: RoundProblem, state: State) -> None:
    """Solve the joint problem by the search of `kernels.joint`, and then each edge at the resulting price."""
    count, edges = state.solved.size.sum(), np.flatnonzero(state.solved.size > 0)
    offsets, order = np.zeros(len(edges) + 1, dtype=np.intp), np.empty(count, dtype=np.intp)
    snr = np.empty(count)
    for e in range(len(edges)):
        m, i = edges[e], offsets[e]
        offsets[e + 1] = i + state.solved.size[m]
        for k in range(state.solved.size[m]):
            order[i + k] = state.solved.members[m, k]
            snr[i + k] = problem.snr[m, state.solved.members[m, k]]
    devices = Devices(snr, problem.cycles[order], problem.power[order], problem.cap[order])
    joint = Edges(offsets, devices, problem.bandwidth[edges], problem.bits, problem.alpha)
    solution, floor = new_joint_solution(count, len(edges)), floor_of(problem, state)
    solve_joint(joint, problem.hop.delay[edges], floor, problem.weight, problem.iterations, solution, TOL)
    for e in range(len(edges)):
        state.solved.edge[WEIGHT, edges[e]] = math.exp(solution.log_weight[e])
        solve_members(problem, state, edges[e], False, TOL)


@kernel
def begin_joint(problem: RoundProblem, state: State, assignment: IntArray) -> float:
    """Change the state to an assignment, (H,), solve it, and return its joint objective, J."""
    state.assignment[:] = assignment
    for m in range(len(state.solved.size)):
        list_members(state, m)
    state.solved.edge[WEIGHT] = problem.weight / np.count_nonzero(state.solved.size)
    for m in range(len(state.solved.size)):
        solve_members(problem, state, m, False, TOL)
    return tighten(problem, state, -math.inf)[1]


@kernel
def copy_state(source: State, target: State) -> None:
    """Copy the assignment and its solution, but not the tables and stamps."""
    target.assignment[:], target.solved.size[:] = source.assignment, source.solved.size
    target.solved.x[:], target.solved.y[:] = source.solved.x, source.solved.y
    target.solved.edge[:], target.energy[:], target.delay[:] = source.solved.edge, source.energy, source.delay
    for m in range(len(source.solved.size)):
        for k in range(source.solved.size[m]):
            target.solved.members[m, k] = source.solved.members[m, k]


@kernel
def price_alone(problem: RoundProblem, m: int, h: int, deadline: float) -> float:
    """Return the w_m, at most λ, at which edge m with device h alone takes `deadline` s for the round."""
    remaining = deadline - problem.hop.delay[m]
    if remaining <= 0.0:
        return problem.weight
    index, target = slice(h, h + 1), math.log(remaining / problem.iterations)
    devices = Devices(problem.snr[m][index], problem.cycles[index], problem.power[index], problem.cap[index])
    setting, start = EdgeSetting(problem.bandwidth[m], 0.0, problem.bits, problem.alpha), Guess(0.0, 0.0, True)
    top, x, y = math.log(problem.weight), np.zeros(1), np.zeros(1)
    return math.exp(find_weight(devices, setting, x, y, 0.0, start, target, top, 1e-9, scratch_for(1))[0])


@kernel
def try_move(problem: RoundProblem, state: State, trial: State, a: int, b: int, k: int, enough: float) -> float:
    """Make the move (a, b, k) (`hflray.assignment.state`) if that brings the joint objective below `enough`.

    `trial` is scratch, a state of the same size.

    Returns:
        The joint objective after the move, which `state` then holds; inf if the move was not made.
    """
    m, exchange = state.assignment[a], b != a and state.assignment[b] != NOWHERE
    copy_state(state, trial)
    assign_move(trial.assignment, a, b, k)
    if exchange or k == m:  # each starts from the other's values
        trial.solved.x[b], trial.solved.y[b] = state.solved.x[a], state.solved.y[a]
        if exchange:
            trial.solved.x[a], trial.solved.y[a] = state.solved.x[b], state.solved.y[b]
    elif state.solved.size[k] == 0:
        trial.solved.edge[WEIGHT, k] = price_alone(problem, k, b, state.delay[m])
    else:
        trial.solved.x[b] = math.log(problem.bandwidth[k] / (state.solved.size[k] + 1))
        trial.solved.y[b] = math.log(state.solved.edge[WEIGHT, k] / (state.solved.size[k] + 1))
    for edge in (m, k):
        list_members(trial, edge)
        solve_members(problem, trial, edge, True, TOL)
    if not tighten(problem, trial, enough)[1] < enough:
        return math.inf
    upper = tighten(problem, trial, -math.inf)[1]
    copy_state(trial, state)
    for edge in (m, k):
        list_members(state, edge)
    return float(upper)
