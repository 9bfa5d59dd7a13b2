"""FedAdagrad: steps that shrink with all squares so far (Reddi et al., "Adaptive federated optimization", 2021)."""

from __future__ import annotations

import numpy as np

from hflray.aggregation.adaptive import Adaptive
from hflray.support.arrays import FloatArray


class FedAdagrad(Adaptive):
    """v ← v + Δ²; see `hflray.aggregation.adaptive.Adaptive`."""

    def __init__(self, learning_rate: float = 0.1, beta_1: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(learning_rate, beta_1, 0.0, tau)

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return v + Δ²."""
        return np.asarray(v + squares)
