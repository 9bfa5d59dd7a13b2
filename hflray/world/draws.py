"""Random numbers of the world: functions of the seed, a stream's name and indices, never of the order of calls.

The indices are a round, an edge iteration, a device or an edge, as single numbers or as arrays. A million numbers
therefore need no million generators, and a part of them may be drawn alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.arrays import FloatArray
from hflray.seeding import seed_sequence

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
            state = _mix(state + (np.atleast_1d(index).astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        return np.asarray(state.reshape(shape), dtype=np.uint64)

    def uniform(self, *indices: ArrayLike) -> FloatArray:
        """Return numbers uniform in (0, 1)."""
        return np.asarray(((self.bits(*indices) >> np.uint64(11)) + 0.5) * 2.0**-53)

    def normal(self, *indices: ArrayLike) -> FloatArray:
        """Return standard normal numbers."""
        from scipy.special import ndtri  # importing it takes 0.4 s

        return np.asarray(ndtri(self.uniform(*indices)))

    def exponential(self, *indices: ArrayLike) -> FloatArray:
        """Return exponential numbers of mean 1."""
        return np.asarray(-np.log(self.uniform(*indices)))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(z ^ (z >> np.uint64(31)))
