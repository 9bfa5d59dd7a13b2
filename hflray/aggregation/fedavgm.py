"""FedAvgM: momentum at the server (Hsu et al., "Measuring the effects of non-identical data distribution for federated
visual classification", 2019)."""

from __future__ import annotations

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
