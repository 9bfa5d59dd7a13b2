"""One deadline for all edges: the exact optimum of the paper's problem (17) for a given assignment.

The problem is to minimise ``Σ_m Q E_m + λ T`` subject to ``Q τ_m + h_m ≤ T``, where h_m is edge m's constant hop to the
cloud. The Lagrangian splits by edge: with prices λ_m ≥ 0 that add up to λ, each edge solves its problem (27) with
weight λ_m. At the optimum every edge with devices just meets the deadline, because a faster edge could slow down and
save energy.

For a given T each λ_m is the root of ``Q τ_m(λ_m) + h_m = T``, where τ_m falls with λ_m, and T is the root of
``Σ λ_m(T) = λ``, where every λ_m falls with T. Both searches are Newton's, with slopes from the kernel, inside
brackets that certainly hold the root:

* λ_m ≤ λ, and ``λ_m ≥ max α (c/τ)³``, because c/f ≤ τ and π ≤ λ_m;
* ``T ≥ max Q τ_m(λ) + h_m``, because no λ_m exceeds λ; ``T ≤ max Q τ_m(λ/e) + h_m``, because one of e is at least λ/e.

An edge without devices still has its hop (docs/design.md, D10). If the longest such hop is above that T, it is the
deadline, and the rest of λ is its price.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bundles import Edges, EdgeSetting, Guess, JointSolution, Unknowns
from hflray.allocation.kernels.edge import devices_at, solve_edge
from hflray.allocation.kernels.jit import kernel, shared
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.support.arrays import FloatArray


@shared
def new_joint_solution(devices: int, edges: int) -> JointSolution:
    """Return zeros for a solution of `devices` devices at `edges` edges."""
    unknowns = Unknowns(np.zeros(devices), np.zeros(devices), np.zeros(edges), np.zeros(edges))
    return JointSolution(unknowns, np.zeros(edges), np.zeros(edges), np.zeros(edges))


@kernel
def solve_at(
    edges: Edges, e: int, log_weight: float, warm: bool, joint: JointSolution, tol: float, scratch: FloatArray
) -> None:
    """Solve edge e at a weight, if `warm` from the solution that `joint` holds, and write its solution to `joint`."""
    i, j = edges.offsets[e], edges.offsets[e + 1]
    x, y, log_price, log_deadline = joint.unknowns
    setting = EdgeSetting(edges.bandwidth[e], math.exp(log_weight), edges.bits, edges.alpha)
    start = Guess(log_price[e], log_deadline[e], warm)
    solved = solve_edge(devices_at(edges, e), setting, x[i:j], y[i:j], start, tol, scratch)
    log_price[e], log_deadline[e] = solved.price, solved.deadline
    joint.log_weight[e], joint.slope[e], joint.residual[e] = log_weight, solved.slope, solved.residual


@kernel
def meet_deadline(
    edges: Edges, e: int, target: float, top: float, joint: JointSolution, tol: float, scratch: FloatArray
) -> None:
    """Find the weight, of a logarithm of at most `top`, at which the ln deadline of edge e is `target`.

    The search starts from the solution that `joint` holds, and the new one is written to it.
    """
    inside = slice(edges.offsets[e], edges.offsets[e + 1])
    high, low = top, min(top, math.log(edges.alpha) + 3.0 * (math.log(edges.devices.cycles[inside].max()) - target))
    u = min(max(joint.log_weight[e], low), high)
    for _ in range(100):
        solve_at(edges, e, u, True, joint, tol, scratch)
        error, slope = joint.unknowns.log_deadline[e] - target, joint.slope[e]
        if error > 0.0:
            low = u
        else:
            high = u
        if abs(error) <= 1e-13 or high - low <= 1e-15 * max(1.0, abs(u)):
            break
        guess = u - error / slope if slope < 0.0 else math.inf
        if guess == u:
            break
        # The delay prices move with the weight: a start with those of the old u would be worse.
        new = guess if low < guess < high else 0.5 * (low + high)
        joint.unknowns.log_delay_price[inside] += new - u
        u = new


@kernel
def solve_joint(
    edges: Edges, hop: FloatArray, floor: float, weight: float, iterations: float, joint: JointSolution, tol: float
) -> float:
    """Solve edges, each of which has devices, under one deadline.

    Args:
        edges: the problems.
        hop: h_m, (e,), s; zeros if there is no cloud hop.
        floor: the longest hop of an edge without devices, s; -inf if every edge has devices.
        weight, iterations: λ, J/s, and Q.
        joint: overwritten; Σ λ_m = λ unless `floor` binds.
        tol: largest accepted KKT residual.

    Returns:
        The deadline T, s.
    """
    count, log_weight, log_deadline = len(edges.bandwidth), joint.log_weight, joint.unknowns.log_deadline
    scratch = scratch_for_edges(edges.offsets, 0, count)
    top = math.log(weight)
    low = high = -math.inf
    for e in range(count):
        for share in (top, top - math.log(count)):
            solve_at(edges, e, share, False, joint, tol, scratch)
            at = iterations * math.exp(log_deadline[e]) + hop[e]
            if share == top:
                low = max(low, at)
            high = max(high, at)
    deadline = max(low, floor)
    pinned = low <= floor
    total = 0.0
    for trial in range(100):
        total = slope = 0.0
        for e in range(count):
            meet_deadline(edges, e, math.log((deadline - hop[e]) / iterations), top, joint, tol, scratch)
            total += math.exp(log_weight[e])
            slope += math.exp(log_weight[e]) / (deadline - hop[e]) / joint.slope[e]
        error = math.log(total) - top
        if trial == 0 and pinned:
            if error <= 0.0:
                return deadline  # the floor binds; the empty edge has the rest of λ
            low = floor
        if error > 0.0:
            low = max(low, deadline)
        else:
            high = min(high, deadline)
        if abs(error) <= 1e-12 or high - low <= 4e-16 * high:
            break
        guess = deadline - error * total / slope  # Newton on ln Σ λ_m
        deadline = guess if low < guess < high else 0.5 * (low + high)
    # Make Σ λ_m = λ exact: one edge takes the rest of λ, and its delay is the deadline. The loop converges at once
    # because this is the edge whose delay depends least on its price (not at all if all its frequencies are capped).
    last, largest = 0, -1.0
    for e in range(count):
        ease = math.exp(log_weight[e]) / max(-joint.slope[e], 1e-300)
        if ease > largest:
            last, largest = e, ease
    for _ in range(20):
        other_weights = -math.exp(log_weight[last])
        for e in range(count):
            other_weights += math.exp(log_weight[e])
        rest = math.log(max(weight - other_weights, 1e-3 * weight))
        solve_at(edges, last, rest, True, joint, tol, scratch)
        before, deadline = deadline, iterations * math.exp(log_deadline[last]) + hop[last]
        for e in range(count):
            if e != last:
                meet_deadline(edges, e, math.log((deadline - hop[e]) / iterations), top, joint, tol, scratch)
        if abs(deadline - before) / deadline <= 1e-13:
            break
    return deadline
