"""exp and ln without branches or calls, and a layout of devices that LLVM compiles to vector instructions.

An edge's devices lie in blocks of `LANES`. Block k of the work array is ``work[k * BLOCK : (k + 1) * BLOCK]``, and a
quantity of device ``k * LANES + i`` is at ``QUANTITY + i`` in it. All distances are constants, so a loop over
``range(LANES)`` needs no checks for overlap and becomes a few vector instructions. With the library's exp and log,
which are calls, a Newton step takes twice as long for ten devices and three times as long for fifty. The last block is
filled with copies of the first device, which no sum includes.

exp and ln are accurate to 1.4 units in the last place, which a test checks, and return NaN for NaN. Multiplications
and additions may be fused, so the low bits depend on the type of CPU, as those of local training do.

The functions from `branchless_slack` on are the computations of single devices on one block, with the symbols of
`kernels.edge`. Each vector kernel is one loop without branches: both sides of a choice are computed, and one is used.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from hflray.allocation.kernels.bundles import Devices, EdgeSetting
from hflray.allocation.kernels.device import LN2
from hflray.allocation.kernels.jit import kernel, vector_kernel
from hflray.support.arrays import FloatArray, IntArray

LANES = 8
# The start of each quantity in a block, with the symbols of `kernels.edge`.
#
# | name | symbol | unit | written by |
# |---|---|---|---|
# | SNR, CYCLES, POWER, CAP | Y, c, p, f_max | Hz, cycles, W, Hz | `fill` |
# | X, Y | x = ln b, y = ln π | | `fill`, the cold start, `advance` |
# | B, F, PI | b, f before its cap, π | Hz, Hz, J/s | `evaluate`, `locate` |
# | WORST | the larger of abs(R1) and abs(R2) | | `evaluate` |
# | X_0, Y_0 | part of Newton's dx and dy from R1 and R2 | | `evaluate` |
# | X_M, Y_M | change of dx and dy per unit of d ln μ | | `evaluate` |
# | X_H, Y_H | change of dx and dy per unit of d ln τ | | `evaluate` |
#
# Outside the iterations the six rows from X_0 on are free. The cold start, `costs` and `bounds` write
# other quantities there, which their docstrings name.
SNR, CYCLES, POWER, CAP, X, Y, B, F, PI, WORST, X_0, X_M, X_H, Y_0, Y_M, Y_H = (LANES * k for k in range(16))
ROWS = 16  # the kernels need a scratch array of this many rows and `columns` columns
BLOCK = ROWS * LANES

_ROUND, _ROUND_BITS = 6755399441055744.0, 0x4338000000000000  # 1.5·2^52: adding it rounds to an integer
_PER_LN2, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_FAR = 700.0  # e^±700 is still a number


def _bits_of(context: Any, value: Any) -> Any:
    """Define the intrinsic that returns the 64 bits of a float as an integer."""
    return types.int64(types.float64), lambda _, builder, __, args: builder.bitcast(args[0], ir.IntType(64))


def _float_of(context: Any, value: Any) -> Any:
    """Define the intrinsic that returns the float with the 64 bits of an integer."""
    return types.float64(types.int64), lambda _, builder, __, args: builder.bitcast(args[0], ir.DoubleType())


_bits: Any = intrinsic(_bits_of)
_float: Any = intrinsic(_float_of)


@vector_kernel
def exp(x: float) -> float:
    """Return e^x; an x beyond ±700 counts as ±700."""
    x = -_FAR if x < -_FAR else x
    x = _FAR if x > _FAR else x
    shifted = x * _PER_LN2 + _ROUND
    k = shifted - _ROUND
    r = (
        x - k * _LN2_HIGH
    ) - k * _LN2_LOW  # |r| <= ln 2 / 2; the Taylor series to r^13 is split into even and odd powers
    s = r * r
    even = 1.0 + s * (1 / 2 + s * (1 / 24 + s * (1 / 720 + s * (1 / 40320 + s * (1 / 3628800 + s * (1 / 479001600))))))
    odd = 1.0 + s * (
        1 / 6 + s * (1 / 120 + s * (1 / 5040 + s * (1 / 362880 + s * (1 / 39916800 + s * (1 / 6227020800)))))
    )
    power: float = _float((_bits(shifted) + 1023) << 52)  # 2^k
    return (even + r * odd) * power


@vector_kernel
def log(x: float) -> float:
    """Return ln x of a positive x, and NaN for NaN and infinity."""
    bits = _bits(x)
    exponent = (bits - _SQRT_HALF_BITS) >> 52
    k = _float(exponent + _ROUND_BITS) - _ROUND
    f = _float(bits - (exponent << 52)) - 1.0  # x = 2^k (1 + f), 1 + f between √½ and √2
    s = f / (2.0 + f)
    z = s * s
    # The polynomial is fdlibm's: ln(1 + f) = f - f²/2 + s (f²/2 + R(s²)).
    r = z * (
        6.666666666666735130e-01
        + z
        * (
            3.999999999940941908e-01
            + z
            * (
                2.857142874366239149e-01
                + z
                * (
                    2.222219843214978396e-01
                    + z * (1.818357216161805012e-01 + z * (1.531383769920937332e-01 + z * 1.479819860511658591e-01))
                )
            )
        )
    )
    h = 0.5 * f * f
    result: float = k * _LN2_HIGH - ((h - (s * (h + r) + k * _LN2_LOW)) - f) + (x - x)
    return result


@vector_kernel
def log1p(x: float) -> float:
    """Return ln(1 + x) of x >= 0, accurately even if 1 + x loses digits of x."""
    u = 1.0 + x
    return log(u) + (x - (u - 1.0)) / u


@kernel
def blocks_of(n: int) -> int:
    """Return the number of blocks of n devices."""
    return (n + LANES - 1) // LANES


@kernel
def columns(n: int) -> int:
    """Return the columns of scratch for n devices, which are whole blocks."""
    return blocks_of(n) * LANES


@kernel
def scratch_for(n: int) -> FloatArray:
    """Return scratch for edges of up to n devices."""
    return np.empty((ROWS, columns(n)))


@kernel
def scratch_for_edges(offsets: IntArray, first: int, last: int) -> FloatArray:
    """Return scratch for any edge from `first` to `last`; edge e has the devices ``offsets[e]:offsets[e + 1]``."""
    longest = np.intp(1)  # a constant of Python would let Numba compile `scratch_for` twice
    for e in range(first, last):
        longest = max(longest, offsets[e + 1] - offsets[e])
    return scratch_for(longest)  # type: ignore[arg-type]


@kernel
def scratch_with_list(n: int) -> FloatArray:
    """Return scratch for edges of up to n devices, with rows for a list of devices and their unknowns (`listed`)."""
    return np.empty((ROWS + 6, columns(n)))


@kernel
def listed(scratch: FloatArray) -> tuple[Devices, FloatArray, FloatArray]:
    """Return the rows of `scratch_with_list` for a list of devices: `Devices`, ln b and ln π, of full length."""
    devices = Devices(scratch[ROWS], scratch[ROWS + 1], scratch[ROWS + 2], scratch[ROWS + 3])
    return devices, scratch[ROWS + 4], scratch[ROWS + 5]


@kernel
def first_devices(devices: Devices, n: int) -> Devices:
    """Return the first n devices, as views."""
    return Devices(devices.snr[:n], devices.cycles[:n], devices.power[:n], devices.cap[:n])


@kernel
def fill(devices: Devices, x: FloatArray, y: FloatArray, work: FloatArray) -> None:
    """Write an edge's devices and their unknowns ln b and ln π, (n,) each, to `work`."""
    n = len(devices.snr)
    for k in range(columns(n)):
        i = k if k < n else 0
        at = k // LANES * BLOCK + k % LANES
        work[at + SNR], work[at + CYCLES] = devices.snr[i], devices.cycles[i]
        work[at + POWER], work[at + CAP] = devices.power[i], devices.cap[i]
        work[at + X], work[at + Y] = x[i], y[i]


@kernel
def copy_unknowns(work: FloatArray, x: FloatArray, y: FloatArray) -> None:
    """Copy the unknowns ln b and ln π from `work` to `x` and `y`, (n,)."""
    for i in range(len(x)):
        at = i // LANES * BLOCK + i % LANES
        x[i], y[i] = work[at + X], work[at + Y]


@vector_kernel
def branchless_slack(ratio: float, lg: float, q: float) -> float:
    """Return d = l - q without cancellation, as `device.slack` does, but without a branch."""
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
        d = branchless_slack(ratio, lg, q)
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
        slope = s * branchless_slack(ratio, lg, ratio / (1.0 + ratio)) / (b * lg)
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
def iteration_cost(n: int, work: FloatArray, setting: EdgeSetting, fit_f: float) -> tuple[float, float]:
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
    """Write each device's part of Lagrange's bound to Y_M, after `costs` (see `edge.certify`)."""
    for i in range(LANES):
        pi = block[PI + i] * fit_pi
        price_sum = block[POWER + i] + pi
        b = block[B + i]
        # Take one Newton step on φ'(b) = 0 in ln b; at a solution it changes the last digits only.
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        q = ratio / (1.0 + ratio)
        d = branchless_slack(ratio, lg, q)
        s = kappa / (b * lg)
        r1 = log(price_sum * s * s * d) - log_kappa - price
        b *= exp(-r1 / (2.0 * q / lg - 2.0 - q * q / d))
        ratio = block[SNR + i] / b
        lg = log1p(ratio)
        d = branchless_slack(ratio, lg, ratio / (1.0 + ratio))
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
