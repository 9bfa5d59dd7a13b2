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

from hflray.allocation.kernels.bundles import Devices, Edges, EdgeSetting, Guess, JointSolution, Solved, Unknowns
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
def find_weight(
    devices: Devices,
    setting: EdgeSetting,
    x: FloatArray,
    y: FloatArray,
    log_weight: float,
    last: Guess,
    target: float,
    top: float,
    tol: float,
    scratch: FloatArray,
) -> tuple[float, Solved]:
    """Return the logarithm of the weight at which one edge's ln deadline is `target`, and the solution there.

    Args:
        devices, setting: the edge's problem; the weight of `setting` is not read.
        x, y: ln b and ln π of the solution `last`, (n,); overwritten with the new ones.
        log_weight, last: another weight and the solution there, from which the search starts.
        target: ln of the deadline.
        top: upper bound of the weight's logarithm.
        tol, scratch: see `edge.solve_edge`.
    """
    high, low = top, math.inf
    for i in range(len(x)):
        low = min(low, -3.0 * (math.log(devices.cycles[i]) - target))
    low = min(top, math.log(setting.alpha) - low)
    u = min(max(log_weight, low), high)
    solved = Solved(0.0, 0.0, math.inf, 0, 0.0)
    for _ in range(100):
        log_weight = u
        # `solve_edge` is called directly, because one more function in between made a round 20 % slower.
        weighted = EdgeSetting(setting.bandwidth, math.exp(u), setting.bits, setting.alpha)
        solved = solve_edge(devices, weighted, x, y, last, tol, scratch)
        last = Guess(solved.price, solved.deadline, True)
        error = solved.deadline - target
        if error > 0.0:
            low = u
        else:
            high = u
        if abs(error) <= 1e-13 or high - low <= 1e-15 * max(1.0, abs(u)):
            break
        guess = u - error / solved.slope if solved.slope < 0.0 else math.inf
        if guess == u:
            break
        # The delay prices move with the weight: a start with those of the old u would be worse.
        new = guess if low < guess < high else 0.5 * (low + high)
        for i in range(len(x)):
            y[i] += new - u
        u = new
    return log_weight, solved


@kernel
def keep(joint: JointSolution, e: int, log_weight: float, solved: Solved) -> None:
    """Write the solution of edge e at a weight to `joint`."""
    joint.log_weight[e], joint.slope[e], joint.residual[e] = log_weight, solved.slope, solved.residual
    joint.unknowns.log_bandwidth_price[e], joint.unknowns.log_deadline[e] = solved.price, solved.deadline


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
    count, log_weight, slopes = len(edges.bandwidth), joint.log_weight, joint.slope
    x, y, log_price, log_deadline = joint.unknowns
    # The loops below pass `find_weight` the views of one edge, because passing whole bundles costs 1 to 2 %.
    scratch = scratch_for_edges(edges.offsets, 0, count)
    top = math.log(weight)
    low = high = -math.inf
    for e in range(count):
        i, j = edges.offsets[e], edges.offsets[e + 1]
        for share in (top, top - math.log(count)):
            setting = EdgeSetting(edges.bandwidth[e], math.exp(share), edges.bits, edges.alpha)
            solved = solve_edge(devices_at(edges, e), setting, x[i:j], y[i:j], Guess(0.0, 0.0, False), tol, scratch)
            keep(joint, e, share, solved)
            end = iterations * math.exp(log_deadline[e]) + hop[e]
            if share == top:
                low = max(low, end)
            high = max(high, end)
    deadline = max(low, floor)
    pinned = low <= floor
    total = 0.0
    for trial in range(100):
        total = slope = 0.0
        for e in range(count):
            i, j = edges.offsets[e], edges.offsets[e + 1]
            devices, setting = devices_at(edges, e), EdgeSetting(edges.bandwidth[e], 0.0, edges.bits, edges.alpha)
            target = math.log((deadline - hop[e]) / iterations)
            start = Guess(log_price[e], log_deadline[e], True)
            at, solved = find_weight(devices, setting, x[i:j], y[i:j], log_weight[e], start, target, top, tol, scratch)
            keep(joint, e, at, solved)
            total += math.exp(log_weight[e])
            slope += math.exp(log_weight[e]) / (deadline - hop[e]) / slopes[e]
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
        ease = math.exp(log_weight[e]) / max(-slopes[e], 1e-300)
        if ease > largest:
            last, largest = e, ease
    for _ in range(20):
        other_weights = -math.exp(log_weight[last])
        for e in range(count):
            other_weights += math.exp(log_weight[e])
        i, j = edges.offsets[last], edges.offsets[last + 1]
        log_weight[last] = math.log(max(weight - other_weights, 1e-3 * weight))
        setting = EdgeSetting(edges.bandwidth[last], math.exp(log_weight[last]), edges.bits, edges.alpha)
        old = Guess(log_price[last], log_deadline[last], True)
        solved = solve_edge(devices_at(edges, last), setting, x[i:j], y[i:j], old, tol, scratch)
        keep(joint, last, log_weight[last], solved)
        before, deadline = deadline, iterations * math.exp(log_deadline[last]) + hop[last]
        worst = abs(deadline - before) / deadline
        for e in range(count):
            if e == last:
                continue
            i, j = edges.offsets[e], edges.offsets[e + 1]
            devices, setting = devices_at(edges, e), EdgeSetting(edges.bandwidth[e], 0.0, edges.bits, edges.alpha)
            target = math.log((deadline - hop[e]) / iterations)
            start = Guess(log_price[e], log_deadline[e], True)
            at, solved = find_weight(devices, setting, x[i:j], y[i:j], log_weight[e], start, target, top, tol, scratch)
            keep(joint, e, at, solved)
        if worst <= 1e-13:
            break
    return deadline
