"""The computations of single devices, on a block of `LANES` devices at a time (`kernels.lanes`).

The symbols are those of `kernels.edge`; ``block`` is one block of the work array. Each vector kernel is one loop
without branches: both sides of a choice are computed, and one is used.
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
from hflray.support.arrays import FloatArray


@vector_kernel
def slack(ratio: float, lg: float, q: float) -> float:
    """Return d = l - q without cancellation, as `kernels.terms.slack` does, but without a branch."""
    x = ratio
    series = (
        x * x * (1 / 2 - x * (2 / 3 - x * (3 / 4 - x * (4 / 5 - x * (5 / 6 - x * (6 / 7 - x * (7 / 8 - x * 8 / 9)))))))
    )
    return lg - q if ratio > 1e-2 else series


@vector_kernel
def evaluate(
    block: FloatArray, price: float, deadline: float, kappa: float, log_kappa: float, alpha: float, log_alpha: float
) -> None:
    """Fill the rows from B on: b, f and π of the devices, their residuals, and the coefficients of Newton's step."""
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
        delay = s + v
        per_delay = 1.0 / delay
        price_sum = block[POWER + i] + pi
        a1 = 2.0 * q * per_lg - 2.0 - q * q / d
        b1 = pi / price_sum
        a2 = -s * per_delay * d * per_lg
        b2 = fall * v * per_delay
        r1 = log(price_sum * s * s * d) - log_kappa - price
        r2 = log(delay) - deadline
        per_det = 1.0 / (a1 * b2 - b1 * a2)
        block[B + i], block[F + i], block[PI + i] = b, f, pi
        block[WORST + i] = abs(r1) if abs(r1) > abs(r2) else abs(r2)
        block[X_0 + i], block[X_M + i], block[X_H + i] = (b1 * r2 - b2 * r1) * per_det, b2 * per_det, -b1 * per_det
        block[Y_0 + i], block[Y_M + i], block[Y_H + i] = (a2 * r1 - a1 * r2) * per_det, -a2 * per_det, a1 * per_det


@vector_kernel
def advance(block: FloatArray, d_price: float, d_deadline: float, move: float, max_x: float, max_y: float) -> None:
    """Take Newton's step. Each device's step is shortened on its own, so that a long one does not slow the others."""
    for i in range(LANES):
        dx = block[X_0 + i] + block[X_M + i] * d_price + block[X_H + i] * d_deadline
        dy = block[Y_0 + i] + block[Y_M + i] * d_price + block[Y_H + i] * d_deadline
        longest = abs(dx) if abs(dx) > abs(dy) else abs(dy)
        factor = move / longest
        factor = 1.0 if longest <= move else factor
        x, y = block[X + i] + factor * dx, block[Y + i] + factor * dy
        block[X + i] = max_x if x > max_x else x
        block[Y + i] = max_y if y > max_y else y


@vector_kernel
def start_shares(block: FloatArray, per_share: float) -> None:
    """Take the cold start's first pass: X becomes 1 / spectral efficiency at the fair share, 1/`per_share` Hz."""
    for i in range(LANES):
        block[X + i] = 1.0 / log1p(block[SNR + i] * per_share)


@vector_kernel
def start_prices(block: FloatArray, scale: float, kappa: float, fair: float, weight: float, speed: float) -> None:
    """Take the cold start's second pass.

    It writes b to X, s to Y, -s'(b) to X_0, ln μ at π = `fair` and at π = λ to X_M and X_H, and the delay to Y_0.
    `scale` turns the shares in X into Hz; `speed` is f at π = `fair`.
    """
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
    """Take the cold start's third pass: X and Y become ln b and the first guess of ln π."""
    for i in range(LANES):
        spare = deadline - block[Y + i]
        f = block[CYCLES + i] / spare
        cap = block[CAP + i]
        f = cap if spare <= 0.0 or f > cap else f
        pi, pi_of_price = alpha * f * f * f, mu / block[X_0 + i] - block[POWER + i]
        pi = pi_of_price if pi_of_price > pi else pi
        block[X + i], block[Y + i] = log(block[X + i]), log(weight if pi > weight else pi)


@vector_kernel
def costs(block: FloatArray, fit_b: float, fit_f: float, kappa: float, alpha: float) -> None:
    """Scale B and F to a feasible b and f; write b to X_0, f to X_M, the energy to X_H and the delay to Y_0."""
    for i in range(LANES):
        b, f, cap = block[B + i] * fit_b, block[F + i] * fit_f, block[CAP + i]
        f = cap if f > cap else f
        s = kappa / (b * log1p(block[SNR + i] / b))
        block[X_0 + i], block[X_M + i] = b, f
        block[X_H + i] = alpha / 2.0 * block[CYCLES + i] * f * f + block[POWER + i] * s
        block[Y_0 + i] = s + block[CYCLES + i] / f


@kernel
def iteration_cost(n: int, work: FloatArray, setting: Setting, fit_f: float) -> tuple[float, float]:
    """Return the energy, J, and slowest delay, s, of one edge iteration; b is scaled to Σ b = B, and f by `fit_f`.

    `work` has B and F filled, as after `edge.solve_edge`. Afterwards the rows X_0, X_M, X_H and Y_0 hold b, f, energy
    and delay of each device.
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
    """Write each device's part of Lagrange's bound to Y_M, after `costs` (see `kernels.certificate`)."""
    for i in range(LANES):
        pi = block[PI + i] * fit_pi
        price_sum = block[POWER + i] + pi
        b = block[B + i]
        # Take one Newton step on φ'(b) = 0 in ln b; at a solution it changes the last digits only.
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        q = ratio / (1.0 + ratio)
        d = slack(ratio, lg, q)
        s = kappa / (b * lg)
        r1 = log(price_sum * s * s * d) - log_kappa - price
        b *= exp(-r1 / (2.0 * q / lg - 2.0 - q * q / d))
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        d = slack(ratio, lg, ratio / (1.0 + ratio))
        s = kappa / (b * lg)
        r1 = log(price_sum * s * s * d) - log_kappa - price
        f = block[X_M + i]
        heat = block[X_H + i] - block[POWER + i] * (block[Y_0 + i] - block[CYCLES + i] / f)
        block[Y_M + i] = price_sum * s + mu * (b - abs(exp(r1) - 1.0) * bandwidth) + heat + pi * block[CYCLES + i] / f


@kernel
def locate(n: int, work: FloatArray, alpha: float) -> None:
    """Fill B, F and PI from X and Y."""
    for k in range(blocks_of(n)):
        _locate(work[k * BLOCK : (k + 1) * BLOCK], alpha, math.log(alpha))


@vector_kernel
def _locate(block: FloatArray, alpha: float, log_alpha: float) -> None:
    """Fill B, F and PI of one block from X and Y."""
    for i in range(LANES):
        f = exp((block[Y + i] - log_alpha) * (1.0 / 3.0))
        block[B + i], block[F + i], block[PI + i] = exp(block[X + i]), f, alpha * f * f * f
