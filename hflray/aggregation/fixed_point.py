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
# Statistics, such as BatchNorm's variances, follow the data and may be large: they get 14 binary places fewer.
MAX_STATISTIC_BITS = 24
MAX_STATISTIC = float(2**MAX_STATISTIC_BITS)


def fraction_bits(total_samples: int) -> int:
    """Return the number of binary places that leaves room for `MAX_WEIGHT` times the samples of a whole round.

    The paper's 50 devices of 550 samples leave 37 places. Their step of 7e-12 is finer than float32 above 1e-4.
    """
    return 62 - MAX_WEIGHT_BITS - int(total_samples).bit_length()


def weighted(
    vector: FloatVector, samples: int, bits: int, statistics: int = 0, noun: str = "trained weights"
) -> SumVector:
    """Return ``samples × vector`` in fixed point with `bits` binary places, (P,) int64.

    Args:
        vector: what a device has trained, (P,).
        samples: D_n of the device.
        bits: the binary places of weights, see `fraction_bits`.
        statistics: how many numbers at the vector's end are statistics, with a scale of their own.
        noun: what the other numbers are, for messages.

    Raises:
        DivergedError: a weight is not finite or exceeds `MAX_WEIGHT`, or a statistic exceeds `MAX_STATISTIC`.
    """
    end = len(vector) - statistics
    for part, name, limit in ((vector[:end], noun, MAX_WEIGHT), (vector[end:], "trained statistics", MAX_STATISTIC)):
        largest = float(np.abs(part).max(initial=0.0))  # NaN if any is NaN
        if not largest <= limit:
            defect = "not finite" if not np.isfinite(largest) else f"as large as {largest:.3g}"
            raise DivergedError(f"the {name} are {defect}; lower training.learning_rate")
    fixed = np.rint(np.ldexp(vector.astype(np.float64), _places(len(vector), bits, statistics))).astype(np.int64)
    fixed *= samples
    return fixed


def mean(total: SumVector, samples: int, bits: int, statistics: int = 0) -> FloatVector:
    """Return the weighted mean, (P,) float32, from a fixed-point sum over `samples` samples; see `weighted`."""
    places = _places(len(total), bits, statistics)
    return np.asarray(np.ldexp(total.astype(np.float64) / samples, np.negative(places)), dtype=np.float32)


def _places(size: int, bits: int, statistics: int) -> int | NDArray[np.int32]:
    """Return the binary places of each of `size` numbers, or one number for all."""
    if not statistics:
        return bits
    places = np.full(size, bits, dtype=np.int32)
    places[size - statistics :] -= MAX_STATISTIC_BITS - MAX_WEIGHT_BITS
    return places
