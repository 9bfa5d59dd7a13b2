"""FedAdam: steps that follow a fading mean of squares (Reddi et al., "Adaptive federated optimization", 2021)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.adaptive import Adaptive
from hflray.support.arrays import FloatArray


class FedAdam(Adaptive):
    """v ← β₂ v + (1 − β₂) Δ²; see `hflray.aggregation.adaptive.Adaptive`."""

    def __init__(
        self, learning_rate: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, tau)

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return β₂ v + (1 − β₂) Δ²."""
        return np.asarray(self.beta_2 * v + (1 - self.beta_2) * squares)
