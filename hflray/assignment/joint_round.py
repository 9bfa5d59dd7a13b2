"""One deadline for all edges: whether a changed assignment has a lower joint optimum, in a few solutions of each edge.

The joint optimum J of an assignment is problem (17), ``min Σ_m E_m + λ T`` with ``T_m ≤ T`` for every edge. For any
prices ``w_m ≥ 0`` with ``Σ w_m + ρ = λ``, ρ ≥ 0 being the price of the floor F (the longest hop of an edge without
devices; no deadline is shorter), let each edge solve its problem (27) with weight w_m, which gives E_m and T_m. Then

    L = Σ_m (E_m + w_m T_m) + ρ F  ≤  J  ≤  Σ_m E_m + λ max(max T_m, F) = U.

The left side is weak duality; the right side is the cost of what the edges do. A change of the assignment is refused as
soon as L is no lower than what it has to beat, and made as soon as U is lower: both are certain. In between the prices
are moved (`move_prices`) until one of the two holds. `kernels.joint` finds the same optimum from nothing.

The prices move as Newton's method would in logarithms: each delay is taken as the power ``T_m(w) = T_m (w/w_m)^ε_m``
of the edge's price, with the elasticity ε_m known from its solution, and all prices follow from the one T at which they
add up to λ.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bundles import Devices, Edges, Priced, Setting
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.joint import find_weight, new_joint_solution, solve_joint
from hflray.allocation.kernels.lanes import scratch_for
from hflray.arrays import FloatArray, IntArray
from hflray.assignment.objective import RoundProblem
from hflray.assignment.state import SLOPE, WEIGHT, State, list_members, solve_members

TOL = 1e-10  # KKT residual that every edge is solved to
TIGHT = 1e-10  # U - L of an assignment that is kept, of U
ROUNDS = 15  # price moves before the bracketed search of `kernels.joint` takes over
STIFF = -1e-4  # an edge at all its caps answers to no price; it is taken to answer this little


@kernel
def elasticity(problem: RoundProblem, state: State, m: int) -> float:
    """ε_m = d ln T_m / d ln w_m of the round's delay, hop included."""
    return float(min(STIFF, state.solved.edge[SLOPE, m] * (1.0 - problem.hop.delay[m] / state.delay[m])))


@kernel
def floor_of(problem: RoundProblem, state: State) -> float:
    """F: the longest hop of an edge without devices, s; -inf where every edge has some."""
    floor = -math.inf
    for m in range(len(state.solved.size)):
        if state.solved.size[m] == 0:
            floor = max(floor, problem.hop.delay[m])
    return floor


@kernel
def log_deadline(weight: FloatArray, delay: FloatArray, slope: FloatArray, total: float) -> float:
    """ln of the T at which ``Σ w_i (T/T_i)^(1/ε_i)`` is `total`; entries of weight 0 do not count.

    The logarithm of the sum is convex and falls with ln T, and the start is left of its root: Newton's steps go up to
    it and never past it.
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
    """Give every edge with devices the price that the power laws ask for; Σ w_m is λ, or less where the floor binds."""
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
            set_price(state, m, weight[m] if bound else weight[m] * (problem.weight / total))


@kernel
def least_price(problem: RoundProblem, state: State, m: int, deadline: float) -> float:
    """No smaller w_m gives edge m a delay of at most `deadline` s: c/f ≤ τ takes ``π ≥ α (c/τ)³`` of each device.

    A power law that was found where all frequencies are at their caps would let the price fall to nothing.
    """
    tau, total = (deadline - problem.hop.delay[m]) / problem.iterations, 0.0
    if tau <= 0.0:
        return 0.0
    for k in range(state.solved.size[m]):
        total += problem.alpha * (problem.cycles[state.solved.members[m, k]] / tau) ** 3
    return total


@kernel
def set_price(state: State, m: int, weight: float) -> None:
    """Change w_m; the π of the edge's devices go along, so that its last solution stays a good start."""
    move = math.log(weight / state.solved.edge[WEIGHT, m])
    for k in range(state.solved.size[m]):
        state.solved.y[state.solved.members[m, k]] += move
    state.solved.edge[WEIGHT, m] = weight


@kernel
def between(problem: RoundProblem, state: State) -> tuple[float, float]:
    """L and U of the edges as they are solved now, J; L is -inf where the prices add up to more than λ."""
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
def meet(problem: RoundProblem, state: State, enough: float) -> tuple[float, float]:
    """Move the prices of a solved state until L ≥ `enough`, or U < `enough`, or the two are one; return L and U, J.

    With `enough` -inf: until the state is the joint optimum.
    """
    sought = enough > -math.inf
    lower, upper = between(problem, state)
    for _ in range(ROUNDS):
        if (sought and (lower >= enough or upper < enough)) or upper - lower <= TIGHT * upper:
            return lower, upper
        move_prices(problem, state)
        for m in range(len(state.solved.size)):
            if state.solved.size[m] > 0:
                solve_members(problem, state, m, True, TOL)
        lower, upper = between(problem, state)
    solve_from_nothing(problem, state)
    return between(problem, state)


@kernel
def solve_from_nothing(problem: RoundProblem, state: State) -> None:
    """The joint optimum by the bracketed search of `kernels.joint`, then each edge at the prices found."""
    count, edges = len(state.assignment), np.flatnonzero(state.solved.size > 0)
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
    found, floor = new_joint_solution(count, len(edges)), floor_of(problem, state)
    solve_joint(joint, problem.hop.delay[edges], floor, problem.weight, problem.iterations, found, TOL)
    for e in range(len(edges)):
        state.solved.edge[WEIGHT, edges[e]] = math.exp(found.log_weight[e])
        solve_members(problem, state, edges[e], False, TOL)


@kernel
def begin_joint(problem: RoundProblem, state: State, assignment: IntArray) -> float:
    """Take over an assignment (H,) and solve it; return its joint objective, J."""
    state.assignment[:] = assignment
    for m in range(len(state.solved.size)):
        list_members(state, m)
    state.solved.edge[WEIGHT] = problem.weight / np.count_nonzero(state.solved.size)
    for m in range(len(state.solved.size)):
        solve_members(problem, state, m, False, TOL)
    return meet(problem, state, -math.inf)[1]


@kernel
def copy_state(source: State, target: State) -> None:
    """Copy the assignment and its solution; the tables and stamps of `target` stay its own."""
    target.assignment[:], target.solved.size[:], target.solved.x[:], target.solved.y[:] = (
        source.assignment,
        source.solved.size,
        source.solved.x,
        source.solved.y,
    )
    target.solved.edge[:], target.energy[:], target.delay[:] = source.solved.edge, source.energy, source.delay
    for m in range(len(source.solved.size)):
        for k in range(source.solved.size[m]):
            target.solved.members[m, k] = source.solved.members[m, k]


@kernel
def price_alone(problem: RoundProblem, m: int, h: int, deadline: float) -> float:
    """The w_m at which edge m with device h alone takes `deadline` s for the round, at most λ."""
    late = deadline - problem.hop.delay[m]
    if late <= 0.0:
        return problem.weight
    at, target = slice(h, h + 1), math.log(late / problem.iterations)
    devices = Devices(problem.snr[m][at], problem.cycles[at], problem.power[at], problem.cap[at])
    setting, blank = Setting(problem.bandwidth[m], 0.0, problem.bits, problem.alpha), Priced(0.0, 0.0, 0.0, 0.0, 0.0, 0)
    top, x, y = math.log(problem.weight), np.zeros(1), np.zeros(1)
    found = find_weight(devices, setting, x, y, blank, target, top, 1e-9, scratch_for(1))
    return math.exp(found.log_weight)


@kernel
def try_move(problem: RoundProblem, state: State, trial: State, a: int, b: int, exchange: bool, enough: float) -> float:
    """Transfer device a to edge b, or exchange devices a and b, if the joint objective is below `enough` then.

    `trial` is a state of the same size to work in.

    Returns:
        the joint objective after the move, which `state` has made; inf if it was not made.
    """
    m = state.assignment[a]
    k = state.assignment[b] if exchange else b
    copy_state(state, trial)
    trial.assignment[a] = k
    if exchange:
        trial.assignment[b] = m
        for one, other in ((a, b), (b, a)):  # each starts from what the other had
            trial.solved.x[one], trial.solved.y[one] = state.solved.x[other], state.solved.y[other]
    elif state.solved.size[k] == 0:
        trial.solved.edge[WEIGHT, k] = price_alone(problem, k, a, state.delay[m])
    else:
        trial.solved.x[a] = math.log(problem.bandwidth[k] / (state.solved.size[k] + 1))
        trial.solved.y[a] = math.log(state.solved.edge[WEIGHT, k] / (state.solved.size[k] + 1))
    for edge in (m, k):
        list_members(trial, edge)
        solve_members(problem, trial, edge, True, TOL)
    if not meet(problem, trial, enough)[1] < enough:
        return math.inf
    upper = meet(problem, trial, -math.inf)[1]
    copy_state(trial, state)
    for edge in (m, k):
        list_members(state, edge)
    return upper
