"""What FedAdagrad, FedAdam and FedYogi share (Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2)."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hflray.aggregation.base import State
from hflray.aggregation.fedavgm import OPTIONS
from hflray.aggregation.mean import OfUpdate
from hflray.config.options import between, positive
from hflray.support.arrays import FloatArray


class Adaptive(OfUpdate):
    """m ← β₁ m + (1 − β₁) Δ, v ← `second`, w ← w + η m / (√v + τ). v begins at τ²; no bias is corrected.

    Args:
        learning_rate: η, above 0.
        beta_1: β₁, from 0 to 1.
        beta_2: β₂, from 0 to 1, where the formula of v has it.
        tau: τ, above 0.

    Raises:
        ConfigError: an option is another number.
    """

    def __init__(self, learning_rate: float, beta_1: float, beta_2: float, tau: float) -> None:
        self.learning_rate = positive(f"{OPTIONS}.learning_rate", learning_rate)
        self.beta_1 = between(f"{OPTIONS}.beta_1", beta_1, 0.0, 1.0)
        self.beta_2 = between(f"{OPTIONS}.beta_2", beta_2, 0.0, 1.0)
        self.tau = positive(f"{OPTIONS}.tau", tau)

    def start(self, size: int) -> State:
        """Return m = 0 and v = τ²."""
        return {"m": np.zeros(size), "v": np.full(size, self.tau**2)}

    def step(self, update: FloatArray, state: State) -> tuple[FloatArray, State]:
        """See `OfUpdate.step`."""
        m = self.beta_1 * state["m"] + (1 - self.beta_1) * update
        v = self.second(state["v"], np.square(update))
        return self.learning_rate * m / (np.sqrt(v) + self.tau), {"m": m, "v": v}

    @abstractmethod
    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return the next v, (P,), given the squares of Δ."""
