"""From the logarithms that the kernels find to a feasible allocation and a proof of how good it is."""

from __future__ import annotations

import math

from hflray.allocation.jit import FloatArray, IntArray, kernel
from hflray.allocation.terms import LN2, log_1p, slack


@kernel
def certify(
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
    b_out: FloatArray,
    f_out: FloatArray,
) -> tuple[float, float, float]:
    """Make one edge's feasible allocation from the logarithms, and a bound on what any allocation could do.

    Writes bandwidth (n,) Hz and frequency (n,) Hz. The bound is Lagrange's: for any μ ≥ 0 and π ≥ 0 with Σ π = λ,
    ``Σ min_{b ≤ B} [(p + π) s(b) + μ b] + Σ min_{f ≤ f_max} [α/2 c f² + π c/f] - μ B`` is at most the optimum. The
    bracket φ(b) is convex, so that it is nowhere in [0, B] below ``φ(b') - |φ'(b')| B``, whatever b' there: b' is the b
    at hand, or one Newton step from it, where φ' is ``μ (1 - e^R1)``, next to nothing.

    Returns:
        energy J and slowest delay s of one edge iteration, and the bound J on ``energy + λ·delay``.
    """
    sum_b = sum_pi = 0.0
    log_alpha = math.log(alpha)
    for i in range(len(snr)):
        b_out[i] = math.exp(x[i])
        f_out[i] = math.exp((y[i] - log_alpha) / 3.0)  # before the cap
        sum_b += b_out[i]
        sum_pi += alpha * f_out[i] * f_out[i] * f_out[i]
    mu, kappa = math.exp(price), bits * LN2
    fit_b, fit_pi, fit_f = bandwidth / sum_b, weight / sum_pi, (weight / sum_pi) ** (1.0 / 3.0)
    bound, energy, delay = -mu * bandwidth, 0.0, 0.0
    for i in range(len(snr)):
        pi = alpha * f_out[i] * f_out[i] * f_out[i] * fit_pi
        best_b = b_out[i]
        paid = power[i] + pi
        b, f = b_out[i] * fit_b, min(cap[i], f_out[i] * fit_f)
        b_out[i], f_out[i] = b, f
        s = kappa / (b * log_1p(snr[i] / b))
        heat = alpha / 2.0 * cycles[i] * f * f
        energy += heat + power[i] * s
        delay = max(delay, s + cycles[i] / f)
        for attempt in range(2):
            ratio = snr[i] / best_b
            lg = log_1p(ratio)
            q = ratio / (1.0 + ratio)
            d = slack(ratio, lg, q)
            s = kappa / (best_b * lg)
            r1 = math.log(paid * s * s * d / kappa) - price
            if abs(r1) <= 1e-13 or attempt == 1:
                break
            best_b *= math.exp(-r1 / (2.0 * q / lg - 2.0 - q * q / d))
        bound += paid * s + mu * (best_b - abs(math.expm1(r1)) * bandwidth) + heat + pi * cycles[i] / f
    return energy, delay, bound


@kernel
def certify_edges(
    offsets: IntArray,
    first: int,
    last: int,
    snr: FloatArray,
    cycles: FloatArray,
    power: FloatArray,
    cap: FloatArray,
    bandwidth: FloatArray,
    weight: FloatArray,
    bits: float,
    alpha: float,
    x: FloatArray,
    y: FloatArray,
    price: FloatArray,
    b_out: FloatArray,
    f_out: FloatArray,
    energy: FloatArray,
    delay: FloatArray,
    bound: FloatArray,
) -> None:
    """`certify` for the edges `first` to `last`; an edge without devices has zeros."""
    for e in range(first, last):
        i, j = offsets[e], offsets[e + 1]
        if j > i:
            energy[e], delay[e], bound[e] = certify(
                snr[i:j],
                cycles[i:j],
                power[i:j],
                cap[i:j],
                bandwidth[e],
                weight[e],
                bits,
                alpha,
                x[i:j],
                y[i:j],
                price[e],
                b_out[i:j],
                f_out[i:j],
            )
