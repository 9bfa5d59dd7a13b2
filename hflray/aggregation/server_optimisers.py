"""Optimisers at the cloud, which take the mean update of a round for a gradient.

* ``fedavgm``: momentum (Hsu et al., "Measuring the effects of non-identical data distribution for federated visual
  classification", 2019);
* ``fedadagrad``, ``fedadam`` and ``fedyogi``: Reddi et al., "Adaptive federated optimization", 2021, Algorithm 2.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from hflray.aggregation.base import State
from hflray.aggregation.mean import OfUpdate
from hflray.config.options import between, positive
from hflray.support.arrays import FloatArray

OPTIONS = "aggregation.cloud.options"


class FedAvgM(OfUpdate):
    """v ← momentum · v + Δ, w ← w + η · v, where Δ is the mean update of a round.

    Args:
        learning_rate: η, above 0.
        momentum: from 0 to 1.

    Raises:
        ConfigError: an option is another number.
    """

    def __init__(self, learning_rate: float = 1.0, momentum: float = 0.9) -> None:
        self.learning_rate = positive(f"{OPTIONS}.learning_rate", learning_rate)
        self.momentum = between(f"{OPTIONS}.momentum", momentum, 0.0, 1.0)

    def start(self, size: int) -> State:
        """Return v = 0."""
        return {"v": np.zeros(size)}

    def step(self, update: FloatArray, state: State) -> tuple[FloatArray, State]:
        """See `OfUpdate.step`."""
        v = self.momentum * state["v"] + update
        return self.learning_rate * v, {"v": v}


class Adaptive(OfUpdate):
    """What FedAdagrad, FedAdam and FedYogi share: m ← β₁ m + (1 − β₁) Δ, v ← `second`, w ← w + η m / (√v + τ).

    v begins at τ²; no bias is corrected.

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


class FedAdagrad(Adaptive):
    """v ← v + Δ²: steps that shrink with all squares so far; see `Adaptive`."""

    def __init__(self, learning_rate: float = 0.1, beta_1: float = 0.0, tau: float = 1e-3) -> None:
        super().__init__(learning_rate, beta_1, 0.0, tau)

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return v + Δ²."""
        return np.asarray(v + squares)


class FedAdam(Adaptive):
    """v ← β₂ v + (1 − β₂) Δ²: steps that follow a fading mean of squares; see `Adaptive`."""

    def __init__(
        self, learning_rate: float = 0.01, beta_1: float = 0.9, beta_2: float = 0.99, tau: float = 1e-3
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, tau)

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return β₂ v + (1 − β₂) Δ²."""
        return np.asarray(self.beta_2 * v + (1 - self.beta_2) * squares)


class FedYogi(FedAdam):
    """v ← v − (1 − β₂) Δ² sign(v − Δ²): a second moment that changes by at most (1 − β₂) Δ² a round; see `Adaptive`.

    The options are those of `FedAdam`.
    """

    def second(self, v: FloatArray, squares: FloatArray) -> FloatArray:
        """Return v − (1 − β₂) Δ² sign(v − Δ²)."""
        return np.asarray(v - (1 - self.beta_2) * squares * np.sign(v - squares))
