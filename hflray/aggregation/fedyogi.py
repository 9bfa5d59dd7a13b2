"""FedYogi: like FedAdam, but a second moment changes by at most (1 − β₂) Δ² a round (Reddi et al., "Adaptive federated
optimization", 2021)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.adaptive import Adaptive
from hflray.support.arrays import FloatArray


class FedYogi(Adaptive):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²); see `hflray.aggregation.adaptive.Adaptive`."""

    def __init__(
        self, learning_rate: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, tau)

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return v − (1 − β₂) Δ² sign(v − Δ²)."""
        return np.asarray(v - (1 - self.beta_2) * squares * np.sign(v - squares))
