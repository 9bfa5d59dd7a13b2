"""Dropout: a device vanishes during a round at an exponential time, and may answer again at the next planning."""

from __future__ import annotations

from hflray.support.arrays import FloatArray, IntArray
from hflray.world.draws import Draws


class Dropout:
    """The moments at which devices vanish.

    A share s of the devices vanishes within T seconds if the rate is −ln(1 − s) / T.

    Args:
        seed: the experiment's root seed.
        rate_per_s: mean number of vanishings of a device a second, above 0.
    """

    def __init__(self, seed: int, rate_per_s: float) -> None:
        self.rate_per_s, self._draws = rate_per_s, Draws(seed, "dropout")

    def vanish_s(self, round_index: int, devices: IntArray) -> FloatArray:
        """Return when each device (n,) would vanish, (n,), s since the start of the round, waiting included."""
        return self._draws.exponential(round_index, devices) / self.rate_per_s
