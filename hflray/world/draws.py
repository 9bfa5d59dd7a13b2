"""Random numbers of the world: functions of the seed, a stream's name and indices, never of the order of calls.

The indices are a round, an edge iteration, a device or an edge, as single numbers or as arrays. A million numbers
therefore need no million generators, and a part of them may be drawn alone.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.seeding import seed_sequence
from hflray.support.arrays import FloatArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


class Draws:
    """A stream of random numbers.

    Args:
        seed: the experiment's root seed.
        name: the name of the stream; streams of different names are independent.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._key = seed_sequence(seed, f"world/{name}").generate_state(1, np.uint64)

    def bits(self, *indices: ArrayLike) -> NDArray[np.uint64]:
        """Return 64 random bits for each combination of the indices, which broadcast against each other.

        The bits are a counter for each index, mixed by SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom
        Number Generators", 2014).
        """
        # Use at least one dimension, because NumPy warns of overflows of scalars, and the overflow is intended.
        state = self._key
        for index in indices:
            counter = np.array(index, dtype=np.uint64, ndmin=1)
            counter *= _GOLDEN
            state = _mix(counter + (state + _GOLDEN))
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        return np.asarray(state.reshape(shape), dtype=np.uint64)

    def uniform(self, *indices: ArrayLike) -> FloatArray:
        """Return numbers uniform in (0, 1)."""
        number = np.asarray((self.bits(*indices) >> np.uint64(11)) + 0.5)
        number *= 2.0**-53
        return number

    def normal(self, *indices: ArrayLike) -> FloatArray:
        """Return standard normal numbers."""
        from scipy.special import ndtri  # importing it takes 0.4 s

        number = self.uniform(*indices)
        return np.asarray(ndtri(number, out=number))

    def exponential(self, *indices: ArrayLike) -> FloatArray:
        """Return exponential numbers of mean 1."""
        number = self.uniform(*indices)
        np.log(number, out=number)
        return np.negative(number, out=number)

    def __deepcopy__(self, memo: object) -> Self:
        """Return this stream, which does not change."""
        return self


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's mix of an array, which is overwritten."""
    shifted = z >> _SHIFTS[0]
    z ^= shifted
    z *= _FACTORS[0]
    np.right_shift(z, _SHIFTS[1], out=shifted)
    z ^= shifted
    z *= _FACTORS[1]
    np.right_shift(z, _SHIFTS[2], out=shifted)
    z ^= shifted
    return z
