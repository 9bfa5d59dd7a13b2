"""Random numbers of the world: functions of the seed, a stream's name and indices, never of the order of calls.

The indices are a round, an edge iteration, a device or an edge, as single numbers or as arrays. A million numbers
therefore need no million generators, and a part of them may be drawn alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.seeding import random_bits, seed_sequence
from hflray.support.arrays import FloatArray


class Draws:
    """A stream of random numbers.

    Args:
        seed: the experiment's root seed.
        name: the name of the stream; streams of different names are independent.
    """

    def __init__(self, seed: int, name: str) -> None:
        self._key = int(seed_sequence(seed, f"world/{name}").generate_state(1, np.uint64)[0])

    def bits(self, *indices: ArrayLike) -> NDArray[np.uint64]:
        """Return 64 random bits for each combination of the indices, which broadcast against each other."""
        return random_bits(self._key, *indices)

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
