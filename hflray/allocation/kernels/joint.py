"""One deadline for all edges: the exact optimum of the paper's problem (17) for a given assignment.

``minimise Σ_m Q E_m + λ T`` with ``Q τ_m + h_m ≤ T``, h_m being edge m's constant hop to the cloud. The Lagrangian
splits by edge: with prices λ_m ≥ 0 that add up to λ, each edge solves its problem (27) with weight λ_m. At the
optimum every edge with devices just meets the deadline (an edge with time to spare would slow down and save energy).

So for a given T each λ_m is the root of ``Q τ_m(λ_m) + h_m = T``, where τ_m falls with λ_m, and T is the root of
``Σ λ_m(T) = λ``, where every λ_m falls with T. Both searches are Newton's, with slopes from the kernel, inside brackets
known beforehand:

* λ_m ≤ λ, and ``λ_m ≥ max α (c/τ)³``, because c/f ≤ τ and π ≤ λ_m;
* ``T ≥ max Q τ_m(λ) + h_m``, because no λ_m exceeds λ; ``T ≤ max Q τ_m(λ/e) + h_m``, because one of e is at least λ/e.

An edge without devices still has its hop (design, 5.10). Where the longest such hop is above that T, it is the
deadline, and carries what is left of λ as its own price.
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bundles import Devices, Edges, Guess, JointSolution, Priced, Setting, Unknowns
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.edges import devices_at
from hflray.allocation.kernels.jit import kernel, shared
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.arrays import FloatArray


@shared
def new_joint_solution(devices: int, edges: int) -> JointSolution:
    """Zeros for a solution of so many devices at so many edges."""
    unknowns = Unknowns(np.zeros(devices), np.zeros(devices), np.zeros(edges), np.zeros(edges))
    evaluations = np.zeros(edges, dtype=np.intp)
    return JointSolution(unknowns, np.zeros(edges), np.zeros(edges), np.zeros(edges), evaluations)


@kernel
def solve_at(
    devices: Devices, setting: Setting, x: FloatArray, y: FloatArray, last: Priced, tol: float, scratch: FloatArray
) -> Priced:
    """Solve one edge with the weight e^`last.log_weight`, from the solution `last` and x and y, (n,), which it changes.

    The weight of `setting` is not read.
    """
    given = Setting(setting.bandwidth, math.exp(last.log_weight), setting.bits, setting.alpha)
    solved = solve_edge(devices, given, x, y, Guess(last.price, last.deadline, True), tol, scratch)
    evaluations = last.evaluations + solved.evaluations
    return Priced(last.log_weight, solved.price, solved.deadline, solved.slope, solved.residual, evaluations)


@kernel
def find_weight(
    devices: Devices,
    setting: Setting,
    x: FloatArray,
    y: FloatArray,
    last: Priced,
    target: float,
    top: float,
    tol: float,
    scratch: FloatArray,
) -> Priced:
    """Find the weight at which one edge's ln deadline is `target`; its logarithm is at most `top`.

    Args:
        devices, setting: the edge's problem; the weight of `setting` is not read.
        x, y: ln b and ln π of the solution `last`, (n,); overwritten with those found.
        last: the solution at another weight, to start from.
        target, top: see above.
        tol, scratch: see `edge.solve_edge`.
    """
    high, low = top, math.inf
    for i in range(len(x)):
        low = min(low, -3.0 * (math.log(devices.cycles[i]) - target))
    low = min(top, math.log(setting.alpha) - low)
    u = min(max(last.log_weight, low), high)
    for _ in range(100):
        last = solve_at(devices, setting, x, y, reweighted(last, u), tol, scratch)
        error = last.deadline - target
        if error > 0.0:
            low = u
        else:
            high = u
        if abs(error) <= 1e-13 or high - low <= 1e-15 * max(1.0, abs(u)):
            break
        guess = u - error / last.slope if last.slope < 0.0 else math.inf
        if guess == u:
            break
        # A point that belongs to another u is no good start: shift the prices along.
        new = guess if low < guess < high else 0.5 * (low + high)
        for i in range(len(x)):
            y[i] += new - u
        u = new
    return last


@kernel
def reweighted(last: Priced, log_weight: float) -> Priced:
    """The same solution, said to be of another weight: where a solution at that weight starts."""
    return Priced(log_weight, last.price, last.deadline, last.slope, last.residual, last.evaluations)


@kernel
def priced_at(found: JointSolution, e: int) -> Priced:
    """The solution of edge e."""
    price, deadline = found.unknowns.log_bandwidth_price[e], found.unknowns.log_deadline[e]
    return Priced(found.log_weight[e], price, deadline, found.slope[e], found.residual[e], found.evaluations[e])


@kernel
def keep_priced(found: JointSolution, e: int, priced: Priced) -> None:
    """Write edge e's solution."""
    found.log_weight[e], found.slope[e], found.residual[e] = priced.log_weight, priced.slope, priced.residual
    found.unknowns.log_bandwidth_price[e], found.unknowns.log_deadline[e] = priced.price, priced.deadline
    found.evaluations[e] = priced.evaluations


@kernel
def meet_deadline(
    edges: Edges, e: int, target: float, top: float, found: JointSolution, tol: float, scratch: FloatArray
) -> None:
    """`find_weight` of edge e, from what `found` holds and into it."""
    i, j = edges.offsets[e], edges.offsets[e + 1]
    x, y = found.unknowns.log_bandwidth[i:j], found.unknowns.log_delay_price[i:j]
    setting, last = Setting(edges.bandwidth[e], 0.0, edges.bits, edges.alpha), priced_at(found, e)
    keep_priced(found, e, find_weight(devices_at(edges, e), setting, x, y, last, target, top, tol, scratch))


@kernel
def solve_joint(
    edges: Edges, hop: FloatArray, floor: float, weight: float, iterations: float, found: JointSolution, tol: float
) -> float:
    """Solve edges that all have devices under one deadline.

    Args:
        edges: the problems.
        hop: h_m, (e,), s; zeros without a cloud hop.
        floor: the longest hop of an edge without devices, s; -inf without one.
        weight, iterations: λ, J/s, and Q.
        found: overwritten; Σ λ_m = λ unless `floor` binds.
        tol: KKT residual asked for.

    Returns:
        The deadline T, s.
    """
    count, log_weight, slopes = len(edges.bandwidth), found.log_weight, found.slope
    log_deadline, x, y = found.unknowns.log_deadline, found.unknowns.log_bandwidth, found.unknowns.log_delay_price
    scratch = scratch_for_edges(edges.offsets, 0, count)
    top = math.log(weight)
    low = high = -math.inf
    for e in range(count):
        i, j = edges.offsets[e], edges.offsets[e + 1]
        for share in (top, top - math.log(count)):
            setting = Setting(edges.bandwidth[e], math.exp(share), edges.bits, edges.alpha)
            solved = solve_edge(devices_at(edges, e), setting, x[i:j], y[i:j], Guess(0.0, 0.0, False), tol, scratch)
            values = Priced(share, solved.price, solved.deadline, solved.slope, solved.residual, solved.evaluations)
            keep_priced(found, e, values)
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
            meet_deadline(edges, e, math.log((deadline - hop[e]) / iterations), top, found, tol, scratch)
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
    # Σ λ_m = λ to the last digit: one edge takes what the others leave, and its delay is the deadline. It is the edge
    # whose delay its price moves least (at its floor, with every frequency at its cap, not at all), so that this
    # settles at once.
    last, most = 0, -1.0
    for e in range(count):
        ease = math.exp(log_weight[e]) / max(-slopes[e], 1e-300)
        if ease > most:
            last, most = e, ease
    for _ in range(20):
        others = -math.exp(log_weight[last])
        for e in range(count):
            others += math.exp(log_weight[e])
        i, j = edges.offsets[last], edges.offsets[last + 1]
        setting = Setting(edges.bandwidth[last], 0.0, edges.bits, edges.alpha)
        start = reweighted(priced_at(found, last), math.log(max(weight - others, 1e-3 * weight)))
        priced = solve_at(devices_at(edges, last), setting, x[i:j], y[i:j], start, tol, scratch)
        keep_priced(found, last, priced)
        before, deadline = deadline, iterations * math.exp(log_deadline[last]) + hop[last]
        worst = abs(deadline - before) / deadline
        for e in range(count):
            if e != last:
                meet_deadline(edges, e, math.log((deadline - hop[e]) / iterations), top, found, tol, scratch)
        if worst <= 1e-13:
            break
    return deadline
