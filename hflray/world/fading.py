"""Fading: the power gain of a link varies about its mean, because signals arrive over several paths.

A law gives the factor on the power gain, whose mean is 1. `hflray.world.uplink` says how long uploads then take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import ArrayLike

from hflray.config.options import between
from hflray.support.arrays import FloatArray
from hflray.world.draws import Draws

MOST_DB = 60.0  # a factor above it is 1 to within a thousandth


class Fading(ABC):
    """The law of a link's fading. A subclass defines `factor`, which has no state.

    Args:
        seed: the experiment's root seed, for `hflray.world.draws.Draws`.

    Examples:
        >>> import numpy as np
        >>> from hflray.world.fading import Fading
        >>> class Uniform(Fading):
        ...     def factor(self, *indices):
        ...         return 0.5 + self.draws.uniform(*indices)
        >>> factors = Uniform(seed=0).factor(1, np.arange(1000), 0)  # round 1, 1000 devices, edge 0
        >>> bool(0.5 <= factors.min()), bool(factors.max() <= 1.5), round(float(factors.mean()), 1)
        (True, True, 1.0)
    """

    def __init__(self, *, seed: int) -> None:
        self.draws = Draws(seed, "fading")

    @abstractmethod
    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return factors on the power gain, of mean 1 and above 0, for indices that broadcast against each other.

        The indices name the round, the device, the edge and, within a round, the edge iteration and the block of
        coherent time. Different indices have independent factors.
        """


class NoFading(Fading):
    """Every factor is 1."""

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return ones."""
        return np.ones(np.broadcast_shapes(*(np.shape(index) for index in indices)))


class Rayleigh(Fading):
    """Many paths of equal strength and none in sight: the factor is exponential with mean 1."""

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return exponential factors."""
        return self.draws.exponential(*indices)


class Rician(Fading):
    """A path in sight beside many others: the factor is |√(K/(K+1)) + c|², where c is complex normal of power 1/(K+1).

    Its mean is 1 and its variance (2K + 1)/(K + 1)². K = 0 is Rayleigh fading.

    Args:
        seed: see `Fading`.
        k_db: K in dB, the power of the path in sight divided by that of all others.
    """

    def __init__(self, *, seed: int, k_db: float) -> None:
        super().__init__(seed=seed)
        k = 10.0 ** (between("world.fading.options.k_db", k_db, -MOST_DB, MOST_DB) / 10.0)
        self._sight, self._spread = np.sqrt(k / (k + 1.0)), np.sqrt(0.5 / (k + 1.0))
        self._other = Draws(seed, "fading/quadrature")

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """Return squared magnitudes."""
        real = self._sight + self._spread * self.draws.normal(*indices)
        imaginary = self._spread * self._other.normal(*indices)
        return np.asarray(real * real + imaginary * imaginary)
