"""Newton's method on the optimality conditions of one edge's problem (27), in Numba (design, section 6).

Unknowns, all as logarithms so that every iterate is positive: bandwidth ``x = ln b`` and delay price ``y = ln π`` of
each device, bandwidth price ``ln μ`` and deadline ``ln τ`` of the edge. With ``X = Y/b``, ``l = ln(1 + X)``,
``q = X/(1 + X)``, ``d = l - q`` and ``κ = z ln 2``:

    upload time      s = κ / (b l)                       equations (6), (7)
    its slope       -s' = κ d / (b l)²
    frequency        f = min(f_max, (π/α)^{1/3})         from (4), (5): ∂/∂f of α/2 c f² + π c/f is zero
    per device       R1 = ln[(p + π)(-s')] - ln μ = 0,   R2 = ln(s + c/f) - ln τ = 0
    per edge         ln(Σ b / B) = 0,                    ln(Σ π / λ) = 0

The Jacobian is an arrow: a 2×2 block per device and a 2×2 Schur complement. Both determinants are positive wherever
they are evaluated (each block is ``A1 B2 - B1 A2`` with A1 < 0, B2 ≤ 0, B1 > 0, A2 < 0), so a step always exists. The
residual need not fall along it (there is no line search); where it does not get there, `kernels.bisection`
takes over, which cannot fail.

Arguments shared by the functions: ``devices`` and ``setting`` are the problem (`kernels.bundles`); ``work`` is the
devices as blocks of lanes (`kernels.lanes`), in which the iterations run; ``scratch`` is its memory, at least
(`lanes.ROWS`, `lanes.columns` of n).
"""

from __future__ import annotations

import math

import numpy as np

from hflray.allocation.kernels.bisection import bisect_edge
from hflray.allocation.kernels.blocks import advance, evaluate, locate, start_logarithms, start_prices, start_shares
from hflray.allocation.kernels.bundles import Devices, Guess, Setting, Solved
from hflray.allocation.kernels.jit import kernel
from hflray.allocation.kernels.lanes import (
    BLOCK,
    CAP,
    CYCLES,
    LANES,
    PI,
    WORST,
    X_0,
    X_H,
    X_M,
    Y_0,
    Y_H,
    Y_M,
    B,
    X,
    blocks_of,
    fill,
    take_back,
)
from hflray.allocation.kernels.terms import LN2, log_1p, slack
from hflray.arrays import FloatArray


def _count(value: int) -> int:
    """A NumPy integer. Numba would compile `newton` once for each value of a constant that is a Python integer."""
    return np.int64(value)  # type: ignore[return-value]


# (longest step in any logarithm, evaluations) of the attempts before bisection takes over. The bold one has converged
# on every instance of the stress test (100,000, harder than any fleet) within 30; the rest is there in case one does
# not.
BOLD, BOLD_TRIALS = 8.0, _count(40)
CAUTIOUS, CAUTIOUS_TRIALS = 2.0, _count(80)
WARM = _count(12)  # evaluations from a neighbour's solution; it needs 2 to 5
POLISH = _count(8)  # evaluations after bisection
ONCE = _count(1)
BISECTED = 1000  # added to the count of evaluations when bisection was needed


@kernel
def newton(
    n: int,
    work: FloatArray,
    setting: Setting,
    price: float,
    deadline: float,
    tol: float,
    move: float,
    trials: int,
) -> Solved:
    """Newton from the unknowns in `work` and price = ln μ, deadline = ln τ; `work` is left as the last evaluation was.

    Args:
        n: devices in `work`.
        work, setting: see the module.
        price, deadline: where to start.
        tol: the residual at which to stop: the largest of |R1|, |R2| and the two sums.
        move: the longest step in any logarithm.
        trials: the most evaluations.

    Returns:
        The last point; its residual is infinite where an evaluation was not finite.
    """
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    kappa = setting.bits * LN2
    log_kappa, log_alpha = math.log(kappa), math.log(alpha)
    blocks = blocks_of(n)
    # What holds at the solution holds on the way: no b above B, no π above λ, no deadline below a computation at full
    # speed. Without these, one step in a hundred thousand runs away for good.
    most_x, most_y, floor = math.log(bandwidth), math.log(weight), 0.0
    for i in range(n):
        at = i // LANES * BLOCK + i % LANES
        floor = max(floor, work[at + CYCLES] / work[at + CAP])
    floor = math.log(floor)
    for trial in range(1, trials + 1):
        worst = 0.0
        sum_b = sum_pi = a_0 = a_m = a_h = c_0 = c_m = c_h = 0.0
        for k in range(blocks):
            block = work[k * BLOCK : (k + 1) * BLOCK]
            evaluate(block, price, deadline, kappa, log_kappa, alpha, log_alpha)
            for i in range(min(LANES, n - k * LANES)):
                b, pi = block[B + i], block[PI + i]
                worst = max(worst, block[WORST + i])
                sum_b += b
                sum_pi += pi
                a_0 += b * block[X_0 + i]
                a_m += b * block[X_M + i]
                a_h += b * block[X_H + i]
                c_0 += pi * block[Y_0 + i]
                c_m += pi * block[Y_M + i]
                c_h += pi * block[Y_H + i]
        r_b, r_pi = math.log(sum_b / bandwidth), math.log(sum_pi / weight)
        worst = max(worst, abs(r_b), abs(r_pi))
        if not math.isfinite(worst + a_0 + c_0):  # a maximum may have passed a NaN over; the sums have not
            return Solved(price, deadline, math.inf, trial, 0.0)
        schur = a_m * c_h - a_h * c_m
        if worst <= tol or trial == trials:
            return Solved(price, deadline, worst, trial, a_m * sum_pi / schur)
        e_1, e_2 = -r_b * sum_b - a_0, -r_pi * sum_pi - c_0
        d_price = (e_1 * c_h - a_h * e_2) / schur
        d_deadline = (a_m * e_2 - c_m * e_1) / schur
        longest = max(abs(d_price), abs(d_deadline))
        if longest > move:
            d_price *= move / longest
            d_deadline *= move / longest
        price += d_price
        deadline = max(deadline + d_deadline, floor)
        for k in range(blocks):
            advance(work[k * BLOCK : (k + 1) * BLOCK], d_price, d_deadline, move, most_x, most_y)
    return Solved(price, deadline, math.inf, trials, 0.0)


@kernel
def cold_start(n: int, work: FloatArray, setting: Setting) -> tuple[float, float]:
    """Fill the unknowns in `work` with a first guess; return ln μ and ln τ to go with it.

    Bandwidth in inverse proportion to the spectral efficiency at the fair share; the slowest device at π = λ/n sets τ;
    then the larger of the π that meets τ and the π that the average bandwidth price asks for: Newton on the convex
    ``ln(p + π)`` comes down from above without overshooting, and flies off from below.
    """
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    blocks, kappa, total = blocks_of(n), setting.bits * LN2, 0.0
    for k in range(blocks):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        start_shares(block, n / bandwidth)
        for i in range(min(LANES, n - k * LANES)):
            total += block[X + i]
    fair = weight / n
    speed = (fair / alpha) ** (1.0 / 3.0)
    price = deadline = dearest = 0.0
    for k in range(blocks):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        start_prices(block, bandwidth / total, kappa, fair, weight, speed)
        for i in range(min(LANES, n - k * LANES)):
            price += block[X_M + i]
            if block[Y_0 + i] > deadline:
                deadline, dearest = block[Y_0 + i], block[X_H + i]
    # Where one device is far slower than the rest it has all of λ, and the price is its own.
    price = min(price / n, dearest)
    for k in range(blocks):
        start_logarithms(work[k * BLOCK : (k + 1) * BLOCK], deadline, math.exp(price), weight, alpha)
    return price, math.log(deadline)


@kernel
def solve_edge(
    devices: Devices, setting: Setting, x: FloatArray, y: FloatArray, start: Guess, tol: float, scratch: FloatArray
) -> Solved:
    """Solve one edge: from (x, y, start) if it is warm, else from equal shares; then, if need be, by bisection.

    Args:
        devices, setting, scratch: see the module.
        x, y: (n,), overwritten with ln b and ln π.
        start: where to begin; see `bundles.Guess`.
        tol: the residual asked for.

    Returns:
        The solution; its `evaluations` are 0 for the closed form of one device and at least `BISECTED` after bisection.
        ``scratch.reshape(-1)`` is left as `blocks.iteration_cost` wants it.
    """
    n, work = len(devices.snr), scratch.reshape(-1)
    if n == 1:
        return solve_alone(devices, setting, x, y, work)
    fill(devices, x, y, work)
    count = 0
    if start.warm:
        found = newton(n, work, setting, start.price, start.deadline, tol, BOLD, WARM)
        count = found.evaluations
        if found.residual <= tol:
            take_back(work, x, y)
            return found
    for attempt in range(2):
        move, trials = (BOLD, BOLD_TRIALS) if attempt == 0 else (CAUTIOUS, CAUTIOUS_TRIALS)
        price, deadline = cold_start(n, work, setting)
        found = newton(n, work, setting, price, deadline, tol, move, trials)
        count += found.evaluations
        if found.residual <= tol:
            take_back(work, x, y)
            return Solved(found.price, found.deadline, found.residual, count, found.slope)
    price, deadline = bisect_edge(devices, setting, x, y)
    fill(devices, x, y, work)
    found = newton(n, work, setting, price, deadline, tol, CAUTIOUS, POLISH)
    count += found.evaluations
    if not found.residual <= tol:  # then where bisection ended, with the residual there
        fill(devices, x, y, work)
        found = newton(n, work, setting, price, deadline, tol, CAUTIOUS, ONCE)
    take_back(work, x, y)
    return Solved(found.price, found.deadline, found.residual, BISECTED + count, found.slope)


@kernel
def solve_alone(devices: Devices, setting: Setting, x: FloatArray, y: FloatArray, work: FloatArray) -> Solved:
    """The closed form of an edge with one device, which gets all the bandwidth and all the weight."""
    bandwidth, weight, alpha = setting.bandwidth, setting.weight, setting.alpha
    power, cycles, cap = devices.power[0], devices.cycles[0], devices.cap[0]
    x[0], y[0] = math.log(bandwidth), math.log(weight)
    fill(devices, x, y, work)
    locate(1, work, alpha)
    lg = log_1p(devices.snr[0] / bandwidth)
    ratio = devices.snr[0] / bandwidth
    s = setting.bits * LN2 / (bandwidth * lg)
    d = slack(ratio, lg, ratio / (1.0 + ratio))
    f = (weight / alpha) ** (1.0 / 3.0)
    slope = 0.0 if f >= cap else -cycles / f / (s + cycles / f) / 3.0
    price = math.log((power + weight) * s * d / (bandwidth * lg))
    return Solved(price, math.log(s + cycles / min(cap, f)), 0.0, 0, slope)
