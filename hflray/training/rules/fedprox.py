"""FedProx: a pull towards the model that was received (Li et al., "Federated optimization in heterogeneous networks",
2020)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from hflray.config.options import between
from hflray.training.rules.base import LocalRule


class FedProx(LocalRule):
    """Adds μ(w − w₀) to each gradient, where w₀ is the edge's model of this edge iteration.

    Args:
        mu: μ, 0 or more. With 0 it is plain SGD.

    Raises:
        ConfigError: μ is negative.
    """

    stacked: ClassVar[bool] = True

    def __init__(self, mu: float = 0.01) -> None:
        self.mu = between("training.rule.options.mu", mu, 0.0)

    def correction(self, weights: Any, received: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any]) -> Any:
        """Return μ(w − w₀)."""
        return self.mu * (weights - received)
