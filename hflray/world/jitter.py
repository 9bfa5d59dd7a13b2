"""Compute jitter: computing takes longer or shorter than planned, in each edge iteration anew."""

from __future__ import annotations

import numpy as np

from hflray.support.arrays import FloatArray, IntArray
from hflray.world.draws import Draws


class Jitter:
    """A log-normal factor of mean 1 on seconds and joules of computing: exp(σ g − σ²/2) with g standard normal.

    Its standard deviation is √(exp(σ²) − 1). Decisions do not see it.

    Args:
        seed: the experiment's root seed.
        sigma: σ, the standard deviation of the factor's logarithm.
    """

    def __init__(self, seed: int, sigma: float) -> None:
        self.sigma, self._draws = sigma, Draws(seed, "compute_jitter")

    def factor(self, round_index: int, iterations: range, devices: IntArray) -> FloatArray:
        """Return the factors of the scheduled devices (H,) in some edge iterations of a round, (n, H)."""
        normal = self._draws.normal(round_index, np.array(iterations)[:, None], devices)
        return np.asarray(np.exp(self.sigma * normal - self.sigma**2 / 2))
