"""exp and ln without branches or calls, and a layout of devices that LLVM compiles to vector instructions.

An edge's devices lie in blocks of `LANES`. Block k of the work array is ``work[k * BLOCK : (k + 1) * BLOCK]``, and a
quantity of device ``k * LANES + i`` is at ``QUANTITY + i`` in it. All distances are constants, so a loop over
``range(LANES)`` needs no checks for overlap and becomes a few vector instructions. With the library's exp and log,
which are calls, a Newton step takes twice as long for ten devices and three times as long for fifty. The last block is
filled with copies of the first device, which no sum includes.

exp and ln are accurate to 1.4 units in the last place, which a test checks, and return NaN for NaN. Multiplications
and additions may be fused, so the low bits depend on the type of CPU, as those of local training do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.extending import intrinsic

from hflray.allocation.kernels.bundles import Devices
from hflray.allocation.kernels.jit import kernel, vector_kernel
from hflray.support.arrays import FloatArray, IntArray

LANES = 8
# The start of each quantity in a block, with the symbols of `kernels.edge`.
#
# | name | symbol | unit | written by |
# |---|---|---|---|
# | SNR, CYCLES, POWER, CAP | Y, c, p, f_max | Hz, cycles, W, Hz | `fill` |
# | X, Y | x = ln b, y = ln π | | `fill`, the cold start, `blocks.advance` |
# | B, F, PI | b, f before its cap, π | Hz, Hz, J/s | `blocks.evaluate`, `blocks.locate` |
# | WORST | the larger of abs(R1) and abs(R2) | | `blocks.evaluate` |
# | X_0, Y_0 | part of Newton's dx and dy from R1 and R2 | | `blocks.evaluate` |
# | X_M, Y_M | change of dx and dy per unit of d ln μ | | `blocks.evaluate` |
# | X_H, Y_H | change of dx and dy per unit of d ln τ | | `blocks.evaluate` |
#
# Outside the iterations the six rows from X_0 on are free. The cold start, `blocks.costs` and `blocks.bounds` write
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
