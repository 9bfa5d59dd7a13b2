"""What the kernels compute of each device by itself, a block of `LANES` devices at a time (`kernels.lanes`).

Symbols as in `kernels.edge`; ``block`` is one block of the work array. Each function is one loop without
branches: both sides of a choice are computed and one is kept.
"""

from __future__ import annotations

import math

from hflray.allocation.kernels.bundles import Setting
from hflray.allocation.kernels.jit import kernel, vector_kernel
from hflray.allocation.kernels.lanes import (
    BLOCK,
    CAP,
    CYCLES,
    LANES,
    PI,
    POWER,
    SNR,
    WORST,
    X_0,
    X_H,
    X_M,
    Y_0,
    Y_H,
    Y_M,
    B,
    F,
    X,
    Y,
    blocks_of,
    exp,
    log,
    log1p,
)
from hflray.allocation.kernels.terms import LN2
from hflray.arrays import FloatArray


@vector_kernel
def slack(ratio: float, lg: float, q: float) -> float:
    """d = l - q without cancellation; as `kernels.terms.slack`, without its branch."""
    x = ratio
    series = (
        x * x * (1 / 2 - x * (2 / 3 - x * (3 / 4 - x * (4 / 5 - x * (5 / 6 - x * (6 / 7 - x * (7 / 8 - x * 8 / 9)))))))
    )
    return lg - q if ratio > 1e-2 else series


@vector_kernel
def evaluate(
    block: FloatArray, price: float, deadline: float, kappa: float, log_kappa: float, alpha: float, log_alpha: float
) -> None:
    """Fill the rows from B on: where the devices are, how far from optimal, and what a step would do."""
    for i in range(LANES):
        b = exp(block[X + i])
        f = exp((block[Y + i] - log_alpha) * (1.0 / 3.0))
        pi = alpha * f * f * f
        per_b = 1.0 / b
        ratio = block[SNR + i] * per_b
        u = 1.0 + ratio
        per_u = 1.0 / u
        lg = log(u) + (ratio - (u - 1.0)) * per_u
        q = ratio * per_u
        d = slack(ratio, lg, q)
        per_lg = 1.0 / lg
        s = kappa * per_lg * per_b
        cap = block[CAP + i]
        fall = 0.0 if f >= cap else -1.0 / 3.0
        v = block[CYCLES + i] / (cap if f >= cap else f)
        late = s + v
        per_late = 1.0 / late
        paid = block[POWER + i] + pi
        a1 = 2.0 * q * per_lg - 2.0 - q * q / d
        b1 = pi / paid
        a2 = -s * per_late * d * per_lg
        b2 = fall * v * per_late
        r1 = log(paid * s * s * d) - log_kappa - price
        r2 = log(late) - deadline
        per_det = 1.0 / (a1 * b2 - b1 * a2)
        block[B + i], block[F + i], block[PI + i] = b, f, pi
        block[WORST + i] = abs(r1) if abs(r1) > abs(r2) else abs(r2)
        block[X_0 + i], block[X_M + i], block[X_H + i] = (b1 * r2 - b2 * r1) * per_det, b2 * per_det, -b1 * per_det
        block[Y_0 + i], block[Y_M + i], block[Y_H + i] = (a2 * r1 - a1 * r2) * per_det, -a2 * per_det, a1 * per_det


@vector_kernel
def advance(block: FloatArray, d_price: float, d_deadline: float, move: float, most_x: float, most_y: float) -> None:
    """Make the step; each device's is shortened by itself: one that has far to go must not hold up the others."""
    for i in range(LANES):
        dx = block[X_0 + i] + block[X_M + i] * d_price + block[X_H + i] * d_deadline
        dy = block[Y_0 + i] + block[Y_M + i] * d_price + block[Y_H + i] * d_deadline
        longest = abs(dx) if abs(dx) > abs(dy) else abs(dy)
        short = move / longest
        short = 1.0 if longest <= move else short
        x, y = block[X + i] + short * dx, block[Y + i] + short * dy
        block[X + i] = most_x if x > most_x else x
        block[Y + i] = most_y if y > most_y else y


@vector_kernel
def start_shares(block: FloatArray, per_share: float) -> None:
    """Cold start, first pass: X is 1 over the spectral efficiency at the fair share, 1/`per_share` Hz."""
    for i in range(LANES):
        block[X + i] = 1.0 / log1p(block[SNR + i] * per_share)


@vector_kernel
def start_prices(block: FloatArray, scale: float, kappa: float, fair: float, weight: float, speed: float) -> None:
    """Second pass: b to X, s to Y, -s'(b) to X_0, the price that each asks for at π = `fair` and at π = λ to X_M and
    X_H, its delay to Y_0. `scale` makes bandwidths of the shares; `speed` is f at `fair`."""
    for i in range(LANES):
        b = block[X + i] * scale
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        s = kappa / (b * lg)
        slope = s * slack(ratio, lg, ratio / (1.0 + ratio)) / (b * lg)
        cap = block[CAP + i]
        block[X + i], block[Y + i], block[X_0 + i] = b, s, slope
        block[X_M + i] = log((block[POWER + i] + fair) * slope)
        block[X_H + i] = log((block[POWER + i] + weight) * slope)
        block[Y_0 + i] = s + block[CYCLES + i] / (cap if cap < speed else speed)


@vector_kernel
def start_logarithms(block: FloatArray, deadline: float, mu: float, weight: float, alpha: float) -> None:
    """Third pass: X and Y become ln b and the first guess of ln π."""
    for i in range(LANES):
        spare = deadline - block[Y + i]
        f = block[CYCLES + i] / spare
        cap = block[CAP + i]
        f = cap if spare <= 0.0 or f > cap else f
        pi, dear = alpha * f * f * f, mu / block[X_0 + i] - block[POWER + i]
        pi = dear if dear > pi else pi
        block[X + i], block[Y + i] = log(block[X + i]), log(weight if pi > weight else pi)


@vector_kernel
def costs(block: FloatArray, fit_b: float, fit_f: float, kappa: float, alpha: float) -> None:
    """From B and F, scaled to fit: feasible b and f to X_0 and X_M, energy to X_H, delay to Y_0."""
    for i in range(LANES):
        b, f, cap = block[B + i] * fit_b, block[F + i] * fit_f, block[CAP + i]
        f = cap if f > cap else f
        s = kappa / (b * log1p(block[SNR + i] / b))
        block[X_0 + i], block[X_M + i] = b, f
        block[X_H + i] = alpha / 2.0 * block[CYCLES + i] * f * f + block[POWER + i] * s
        block[Y_0 + i] = s + block[CYCLES + i] / f


@kernel
def iteration_cost(n: int, work: FloatArray, setting: Setting, fit_f: float) -> tuple[float, float]:
    """Energy J and slowest delay s of one edge iteration, b scaled to use up B exactly, f times `fit_f`.

    `work`: as `edge.solve_edge` leaves it, or with B and F filled. b, f, energy and delay of each device are left in
    rows X_0, X_M, X_H and Y_0.
    """
    sum_b = energy = delay = 0.0
    for i in range(n):
        sum_b += work[i // LANES * BLOCK + i % LANES + B]
    for k in range(blocks_of(n)):
        block = work[k * BLOCK : (k + 1) * BLOCK]
        costs(block, setting.bandwidth / sum_b, fit_f, setting.bits * LN2, setting.alpha)
        for i in range(min(LANES, n - k * LANES)):
            energy += block[X_H + i]
            delay = max(delay, block[Y_0 + i])
    return energy, delay


@vector_kernel
def bounds(
    block: FloatArray, price: float, mu: float, fit_pi: float, bandwidth: float, kappa: float, log_kappa: float
) -> None:
    """After `costs`: each device's part of Lagrange's bound to Y_M (see `kernels.certificate`)."""
    for i in range(LANES):
        pi = block[PI + i] * fit_pi
        paid = block[POWER + i] + pi
        b = block[B + i]
        # One Newton step on φ'(b) = 0, in ln b; at a solution it moves nothing but the last digits.
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        q = ratio / (1.0 + ratio)
        d = slack(ratio, lg, q)
        s = kappa / (b * lg)
        r1 = log(paid * s * s * d) - log_kappa - price
        b *= exp(-r1 / (2.0 * q / lg - 2.0 - q * q / d))
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        d = slack(ratio, lg, ratio / (1.0 + ratio))
        s = kappa / (b * lg)
        r1 = log(paid * s * s * d) - log_kappa - price
        f = block[X_M + i]
        heat = block[X_H + i] - block[POWER + i] * (block[Y_0 + i] - block[CYCLES + i] / f)
        block[Y_M + i] = paid * s + mu * (b - abs(exp(r1) - 1.0) * bandwidth) + heat + pi * block[CYCLES + i] / f


@kernel
def locate(n: int, work: FloatArray, alpha: float) -> None:
    """Fill B, F and PI from X and Y."""
    for k in range(blocks_of(n)):
        _locate(work[k * BLOCK : (k + 1) * BLOCK], alpha, math.log(alpha))


@vector_kernel
def _locate(block: FloatArray, alpha: float, log_alpha: float) -> None:
    for i in range(LANES):
        f = exp((block[Y + i] - log_alpha) * (1.0 / 3.0))
        block[B + i], block[F + i], block[PI + i] = exp(block[X + i]), f, alpha * f * f * f
