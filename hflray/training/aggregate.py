"""Weighted sums of models whose result does not depend on the grouping (equations 2, 3 and 16 of the paper).

Floating-point addition depends on its order, and the order depends on how many actors share the work. Sums are
therefore taken in int64 fixed point: a device's weights are rounded once, to ``fraction_bits`` binary places, and
every sum after that is exact. Overflow cannot happen silently, because weights above `MAX_WEIGHT` are an error.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hflray.errors import DivergedError

FloatVector = NDArray[np.float32]
SumVector = NDArray[np.int64]

MAX_WEIGHT_BITS = 10
MAX_WEIGHT = float(2**MAX_WEIGHT_BITS)  # a healthy network's weights are below 10


def fraction_bits(total_samples: int) -> int:
    """Return the number of binary places that leaves room for `MAX_WEIGHT` times the samples of a whole round.

    The paper's 50 devices of 550 samples leave 37 places. Their step of 7e-12 is finer than float32 above 1e-4.
    """
    return 62 - MAX_WEIGHT_BITS - int(total_samples).bit_length()


def weighted(vector: FloatVector, samples: int, bits: int) -> SumVector:
    """Return ``samples × vector`` in fixed point with `bits` binary places, (P,) int64.

    Raises:
        DivergedError: a weight is not finite, or exceeds `MAX_WEIGHT`.
    """
    largest = float(np.abs(vector).max(initial=0.0))  # NaN if any is NaN
    if not largest <= MAX_WEIGHT:
        defect = "not finite" if not np.isfinite(largest) else f"as large as {largest:.3g}"
        raise DivergedError(f"the trained weights are {defect}; lower training.learning_rate")
    fixed = np.rint(np.ldexp(vector.astype(np.float64), bits)).astype(np.int64)
    fixed *= samples
    return fixed


def mean(total: SumVector, samples: int, bits: int) -> FloatVector:
    """Return the weighted mean, (P,) float32, from a fixed-point sum over `samples` samples."""
    return np.asarray(np.ldexp(total.astype(np.float64) / samples, -bits), dtype=np.float32)
