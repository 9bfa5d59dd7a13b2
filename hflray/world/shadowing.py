"""Shadowing of moving devices: a Gaussian field of a device's position, one for each link.

A field is a sum of plane waves, √(2/K) Σ cos(w_k · x + φ_k), with random phases φ_k. The wave vectors w_k are drawn
from the spectral density of the correlation exp(−Δ/ℓ) in the plane, whose length |w| exceeds r with probability
1/√(1 + r²ℓ²) and whose direction is uniform. Over the links the mean is 0, the variance is 1 and the correlation at
distance Δ is exp(−Δ/ℓ) (Gudmundson: "Correlation model for shadow fading in mobile radio systems", 1991).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hflray.support.arrays import FloatArray, IntArray
from hflray.world.draws import Draws

WAVES = 16  # K; the fourth moment is 3 − 1.5/K times the variance squared
MOST_WAVES = 100_000  # largest number of waves that are kept


class ShadowField:
    """The shadowing of every link, in units of its standard deviation.

    Args:
        seed: the experiment's root seed.
        correlation_m: ℓ, the distance at which the correlation is 1/e, m.
    """

    def __init__(self, seed: int, correlation_m: float) -> None:
        self.correlation_m, self._draws = correlation_m, Draws(seed, "shadowing")
        nothing = np.zeros(0)
        self._kept: tuple[object, tuple[FloatArray, FloatArray, FloatArray]] = (None, (nothing, nothing, nothing))

    def __call__(self, devices: ArrayLike, edges: ArrayLike, position_m: FloatArray) -> FloatArray:
        """Return the field of links at positions.

        Args:
            devices, edges: numbers of devices and edges when the fleet was drawn, of shapes that broadcast.
            position_m: positions of these devices, with a last axis of 2, m.
        """
        x_per_m, y_per_m, phase = self._waves(np.asarray(devices), np.asarray(edges))
        waves = np.cos(x_per_m * position_m[..., 0, None] + y_per_m * position_m[..., 1, None] + phase)
        return np.asarray(np.sqrt(2 / WAVES) * waves.sum(axis=-1))

    def _waves(self, devices: IntArray, edges: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the components of the wave vectors, 1/m, and the phases of links, with a last axis of K.

        The last ones are kept, because a small fleet needs the same links in each round.
        """
        key = devices.shape, devices.tobytes(), edges.tobytes()
        if key == self._kept[0]:
            return self._kept[1]
        bits = self._draws.bits(devices[..., None], edges[..., None], np.arange(WAVES))
        # 21 bits each of the wave's length, direction and phase
        length, direction, phase = (
            ((bits >> np.uint64(shift) & np.uint64(2**21 - 1)) + 0.5) * 2.0**-21 for shift in (43, 22, 1)
        )
        per_m, angle = np.sqrt(length**-2 - 1) / self.correlation_m, 2 * np.pi * direction
        phase_rad: FloatArray = np.asarray(2 * np.pi * phase, dtype=np.float64)
        waves = per_m * np.cos(angle), per_m * np.sin(angle), phase_rad
        if bits.size <= MOST_WAVES:
            self._kept = key, waves
        return waves
