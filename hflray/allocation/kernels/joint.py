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

from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import scratch_for_edges
from hflray.arrays import FloatArray, IntArray


@kernel
def find_weight(
    target: float,
    top: float,
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: float,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    state: FloatArray,
    tol: float,
    scratch: FloatArray,
) -> None:
    """Find the weight at which one edge's ln τ is `target`, at most e^top.

    `state` is read and written: ln weight, ln μ, ln τ, the elasticity d ln τ / d ln weight, residual, evaluations.
    x and y hold the solution that goes with it.
    """
    high, low = top, math.inf
    for i in range(len(snr)):
        low = min(low, -3.0 * (math.log(cycles[i]) - target))
    low = min(top, math.log(alpha) - low)
    u = min(max(state[0], low), high)
    for _ in range(100):
        state[1], state[2], state[4], more, state[3] = solve_edge(
            snr, cycles, power, cap, bandwidth, math.exp(u), bits, alpha, x, y, state[1], state[2], True, tol, scratch
        )
        state[0] = u
        state[5] += more
        error = state[2] - target
        if error > 0.0:
            low = u
        else:
            high = u
        if abs(error) <= 1e-13 or high - low <= 1e-15 * max(1.0, abs(u)):
            break
        guess = u - error / state[3] if state[3] < 0.0 else math.inf
        if guess == u:
            break
        # A point that belongs to another u is no good start: shift the prices along.
        new = guess if low < guess < high else 0.5 * (low + high)
        for i in range(len(snr)):
            y[i] += new - u
        u = new


@kernel
def solve_joint(
    offsets: IntArray,
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: FloatArray,
    hop: FloatArray,
    floor: float,
    weight: float,
    iterations: float,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    state: FloatArray,
    tol: float,
) -> float:
    """Solve all edges (e of them, each with devices ``offsets[e]:offsets[e + 1]``) under one deadline.

    Args:
        offsets, snr, cycles, power, cap, bandwidth, bits, alpha: as in `batch.solve_edges`.
        hop: h_m, (e,), s; zeros without a cloud hop.
        floor: the longest hop of an edge without devices, s; -inf without one.
        weight, iterations: λ and Q.
        x, y: (n,), filled with ln b and ln π.
        state: (e, 6), filled as in `find_weight`; ``exp(state[:, 0])`` are the λ_m, Σ λ_m = λ unless `floor` binds.
        tol: KKT residual asked for.

    Returns:
        The deadline T, s.
    """
    edges = len(bandwidth)
    scratch = scratch_for_edges(offsets, 0, edges)
    top = math.log(weight)
    low = high = -math.inf
    for e in range(edges):
        i, j = offsets[e], offsets[e + 1]
        for share in (top, top - math.log(edges)):
            state[e, 0] = share
            state[e, 1], state[e, 2], state[e, 4], more, state[e, 3] = solve_edge(
                snr[i:j], cycles[i:j], power[i:j], cap[i:j], bandwidth[e], math.exp(share), bits, alpha,
                x[i:j], y[i:j], 0.0, 0.0, False, tol, scratch,
            )  # fmt: skip
            state[e, 5] = more
            at = iterations * math.exp(state[e, 2]) + hop[e]
            if share == top:
                low = max(low, at)
            high = max(high, at)
    deadline = max(low, floor)
    pinned = low <= floor
    total = 0.0
    for trial in range(100):
        total = slope = 0.0
        for e in range(edges):
            i, j = offsets[e], offsets[e + 1]
            find_weight(
                math.log((deadline - hop[e]) / iterations), top, snr[i:j], cycles[i:j], power[i:j], cap[i:j],
                bandwidth[e], bits, alpha, x[i:j], y[i:j], state[e], tol, scratch,
            )  # fmt: skip
            total += math.exp(state[e, 0])
            slope += math.exp(state[e, 0]) / (deadline - hop[e]) / state[e, 3]
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
    for e in range(edges):
        ease = math.exp(state[e, 0]) / max(-state[e, 3], 1e-300)
        if ease > most:
            last, most = e, ease
    for _ in range(20):
        others = -math.exp(state[last, 0])
        for e in range(edges):
            others += math.exp(state[e, 0])
        i, j = offsets[last], offsets[last + 1]
        state[last, 0] = math.log(max(weight - others, 1e-3 * weight))
        state[last, 1], state[last, 2], state[last, 4], more, state[last, 3] = solve_edge(
            snr[i:j], cycles[i:j], power[i:j], cap[i:j], bandwidth[last], math.exp(state[last, 0]), bits, alpha,
            x[i:j], y[i:j], state[last, 1], state[last, 2], True, tol, scratch,
        )  # fmt: skip
        before, deadline = deadline, iterations * math.exp(state[last, 2]) + hop[last]
        worst = abs(deadline - before) / deadline
        for e in range(edges):
            if e == last:
                continue
            i, j = offsets[e], offsets[e + 1]
            find_weight(
                math.log((deadline - hop[e]) / iterations), top, snr[i:j], cycles[i:j], power[i:j], cap[i:j],
                bandwidth[e], bits, alpha, x[i:j], y[i:j], state[e], tol, scratch,
            )  # fmt: skip
        if worst <= 1e-13:
            break
    return deadline
