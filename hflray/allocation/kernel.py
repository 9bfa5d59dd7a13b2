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
residual need not fall along it (there is no line search); where it does not get there, `hflray.allocation.bisection`
takes over, which cannot fail.

Arguments shared by the functions: ``snr`` Y (n,) Hz; ``cycles`` c (n,); ``power`` p (n,) W; ``cap`` f_max (n,) Hz;
``bandwidth`` B Hz; ``weight`` λ J/s; ``bits`` z; ``alpha`` the capacitance α.
"""

from __future__ import annotations

import math

from hflray.allocation.bisection import bisect_edge
from hflray.allocation.jit import FloatArray, kernel
from hflray.allocation.terms import LN2, log_1p, slack

# (longest step in any logarithm, evaluations) of the attempts before bisection takes over. The bold one has converged
# on every instance of the stress test (100,000, harder than any fleet) within 30; the rest is there in case one does
# not.
BOLD, BOLD_TRIALS = 8.0, 40
CAUTIOUS, CAUTIOUS_TRIALS = 2.0, 80
WARM = 12  # evaluations from a neighbour's solution; it needs 2 to 5
BISECTED = 1000  # added to the count of evaluations when bisection was needed
ROWS = 6  # rows of scratch that the kernels need


@kernel
def newton_edge(
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: float,
    weight: float,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    price: float,
    deadline: float,
    tol: float,
    move: float,
    trials: int,
    scratch: FloatArray,
) -> tuple[float, float, float, int, float]:
    """Newton from the point (x, y, price = ln μ, deadline = ln τ); x and y are overwritten with the last iterate.

    Returns:
        ln μ, ln τ, the residual (largest of |R1|, |R2| and the two sums), the number of evaluations, and the elasticity
        ``d ln τ / d ln λ`` (at most 0) at the solution.
    """
    n = len(snr)
    kappa = bits * LN2
    per_kappa = 1.0 / kappa
    log_alpha = math.log(alpha)
    # Directions: rows 0, 1 the residual's part of (dx, dy); 2, 3 per unit of d ln μ; 4, 5 per unit of d ln τ.
    # What holds at the solution holds on the way: no b above B, no π above λ, no deadline below a computation at full
    # speed. Without these, one step in a hundred thousand runs away for good.
    most_x, most_y, floor = math.log(bandwidth), math.log(weight), 0.0
    for i in range(n):
        floor = max(floor, cycles[i] / cap[i])
    floor = math.log(floor)
    for trial in range(trials):
        worst = 0.0
        sum_b = sum_pi = a_0 = a_m = a_h = c_0 = c_m = c_h = 0.0
        for i in range(n):
            b = math.exp(x[i])
            f = math.exp((y[i] - log_alpha) / 3.0)
            pi = alpha * f * f * f
            ratio = snr[i] / b
            lg = log_1p(ratio)
            q = ratio / (1.0 + ratio)
            d = slack(ratio, lg, q)
            per_lg = 1.0 / lg
            s = kappa * per_lg / b
            fall = -1.0 / 3.0
            if f >= cap[i]:
                f = cap[i]
                fall = 0.0
            v = cycles[i] / f
            late = s + v
            per_late = 1.0 / late
            paid = power[i] + pi
            a1 = 2.0 * q * per_lg - 2.0 - q * q / d
            b1 = pi / paid
            a2 = -s * per_late * d * per_lg
            b2 = fall * v * per_late
            r1 = math.log(paid * s * s * d * per_kappa) - price
            r2 = math.log(late) - deadline
            worst = max(worst, abs(r1), abs(r2))
            per_det = 1.0 / (a1 * b2 - b1 * a2)
            x_0, x_m, x_h = (b1 * r2 - b2 * r1) * per_det, b2 * per_det, -b1 * per_det
            y_0, y_m, y_h = (a2 * r1 - a1 * r2) * per_det, -a2 * per_det, a1 * per_det
            scratch[0, i], scratch[2, i], scratch[4, i] = x_0, x_m, x_h
            scratch[1, i], scratch[3, i], scratch[5, i] = y_0, y_m, y_h
            sum_b += b
            sum_pi += pi
            a_0 += b * x_0
            a_m += b * x_m
            a_h += b * x_h
            c_0 += pi * y_0
            c_m += pi * y_m
            c_h += pi * y_h
        r_b, r_pi = math.log(sum_b / bandwidth), math.log(sum_pi / weight)
        worst = max(worst, abs(r_b), abs(r_pi))
        if worst <= tol:
            return price, deadline, worst, trial + 1, a_m * sum_pi / (a_m * c_h - a_h * c_m)
        if not math.isfinite(worst):
            break
        e_1, e_2 = -r_b * sum_b - a_0, -r_pi * sum_pi - c_0
        schur = a_m * c_h - a_h * c_m
        d_price = (e_1 * c_h - a_h * e_2) / schur
        d_deadline = (a_m * e_2 - c_m * e_1) / schur
        longest = max(abs(d_price), abs(d_deadline))
        if longest > move:
            d_price *= move / longest
            d_deadline *= move / longest
        price += d_price
        deadline = max(deadline + d_deadline, floor)
        # Each device's step is shortened by itself: one that has far to go must not hold up the others.
        for i in range(n):
            dx = scratch[0, i] + scratch[2, i] * d_price + scratch[4, i] * d_deadline
            dy = scratch[1, i] + scratch[3, i] * d_price + scratch[5, i] * d_deadline
            longest = max(abs(dx), abs(dy))
            short = 1.0 if longest <= move else move / longest
            x[i] = min(x[i] + short * dx, most_x)
            y[i] = min(y[i] + short * dy, most_y)
    return price, deadline, math.inf, trials, 0.0


@kernel
def cold_start(
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: float,
    weight: float,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    scratch: FloatArray,
) -> tuple[float, float]:
    """Fill x and y with a first guess; return ln μ and ln τ to go with it.

    Bandwidth in inverse proportion to the spectral efficiency at the fair share; the slowest device at π = λ/n sets τ;
    then the larger of the π that meets τ and the π that the average bandwidth price asks for: Newton on the convex
    ``ln(p + π)`` comes down from above without overshooting, and flies off from below.
    """
    n = len(snr)
    kappa, total = bits * LN2, 0.0
    for i in range(n):
        x[i] = 1.0 / log_1p(snr[i] * n / bandwidth)
        total += x[i]
    fair = weight / n
    speed = (fair / alpha) ** (1.0 / 3.0)
    price = deadline = dearest = 0.0
    for i in range(n):
        b = bandwidth * x[i] / total
        ratio = snr[i] / b
        lg = log_1p(ratio)
        s = kappa / (b * lg)
        d = slack(ratio, lg, ratio / (1.0 + ratio))
        x[i], y[i] = b, s
        scratch[0, i] = s * d / (b * lg)  # -s'(b)
        price += math.log((power[i] + fair) * scratch[0, i])
        late = s + cycles[i] / min(cap[i], speed)
        if late > deadline:
            deadline, dearest = late, math.log((power[i] + weight) * scratch[0, i])
    # Where one device is far slower than the rest it has all of λ, and the price is its own.
    price = min(price / n, dearest)
    mu = math.exp(price)
    for i in range(n):
        f = min(cap[i], cycles[i] / (deadline - y[i])) if deadline > y[i] else cap[i]
        y[i] = math.log(min(max(alpha * f * f * f, mu / scratch[0, i] - power[i]), weight))
        x[i] = math.log(x[i])
    return price, math.log(deadline)


@kernel
def solve_edge(
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: float,
    weight: float,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    price: float,
    deadline: float,
    warm: bool,
    tol: float,
    scratch: FloatArray,
) -> tuple[float, float, float, int, float]:
    """Solve one edge: from (x, y, price, deadline) if `warm`, else from equal shares; then, if need be, by bisection.

    x and y are overwritten with ln b and ln π. Returns as `newton_edge`; the count is 0 for the closed form of one
    device and at least `BISECTED` where bisection was needed.
    """
    n = len(snr)
    if n == 1:  # all the bandwidth, all the weight
        x[0], y[0] = math.log(bandwidth), math.log(weight)
        lg = log_1p(snr[0] / bandwidth)
        ratio = snr[0] / bandwidth
        s = bits * LN2 / (bandwidth * lg)
        d = slack(ratio, lg, ratio / (1.0 + ratio))
        f = (weight / alpha) ** (1.0 / 3.0)
        slope = 0.0 if f >= cap[0] else -cycles[0] / f / (s + cycles[0] / f) / 3.0
        price = math.log((power[0] + weight) * s * d / (bandwidth * lg))
        return price, math.log(s + cycles[0] / min(cap[0], f)), 0.0, 0, slope
    count = 0
    if warm:
        price, deadline, worst, count, slope = newton_edge(
            snr,
            cycles,
            power,
            cap,
            bandwidth,
            weight,
            bits,
            alpha,
            x,
            y,
            price,
            deadline,
            tol,
            BOLD,
            WARM,
            scratch,
        )
        if worst <= tol:
            return price, deadline, worst, count, slope
    for attempt in range(2):
        move, trials = (BOLD, BOLD_TRIALS) if attempt == 0 else (CAUTIOUS, CAUTIOUS_TRIALS)
        price, deadline = cold_start(snr, cycles, power, cap, bandwidth, weight, bits, alpha, x, y, scratch)
        price, deadline, worst, more, slope = newton_edge(
            snr, cycles, power, cap, bandwidth, weight, bits, alpha, x, y, price, deadline, tol, move, trials, scratch
        )
        count += more
        if worst <= tol:
            return price, deadline, worst, count, slope
    price, deadline = bisect_edge(snr, cycles, power, cap, bandwidth, weight, bits, alpha, x, y)
    for i in range(n):
        scratch[4, i], scratch[5, i] = x[i], y[i]
    price, deadline, worst, more, slope = newton_edge(
        snr, cycles, power, cap, bandwidth, weight, bits, alpha, x, y, price, deadline, tol, CAUTIOUS, 8, scratch
    )
    return price, deadline, worst, BISECTED + count + more, slope
