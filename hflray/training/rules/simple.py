"""The local rules that keep nothing between edge iterations, and send nothing beside the model.

* ``fedprox`` pulls towards the model that was received: Li et al., "Federated optimization in heterogeneous networks",
  2020;
* ``fednova`` normalises updates by the steps behind them: Wang et al., "Tackling the objective inconsistency problem in
  heterogeneous federated optimization", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from hflray.config.options import between
from hflray.support.arrays import FloatArray
from hflray.training.rules.base import LocalRule


class FedProx(LocalRule):
    """A pull towards the model that was received: adds μ(w − w₀) to each gradient.

    Here w₀ is the edge's model of this edge iteration.

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


class FedNova(LocalRule):
    """An edge's model becomes w₀ − τ Σ pₙ(w₀ − wₙ)/aₙ with τ = Σ pₙ aₙ. It needs no options.

    An edge combines its devices so, and the cloud its edges; an edge's number of steps is the sum of the effective
    steps of its edge iterations. All factors follow from the plan, so that nothing further is sent.

    aₙ is K, the steps of the device; with momentum ρ it is (K − ρ(1 − ρ^K)/(1 − ρ))/(1 − ρ).
    """

    def scales(
        self, place: Literal["edge", "cloud"], steps: FloatArray, weights: FloatArray, momentum: float
    ) -> tuple[FloatArray, float]:
        """Return τ/aₙ of each sender, (n,), and τ."""
        norms = effective_steps(steps, momentum) if place == "edge" else steps
        effective = float(weights @ norms)
        return np.asarray(effective / norms), effective


def effective_steps(steps: FloatArray, momentum: float) -> FloatArray:
    """Return aₙ of each device, (n,), for its K `steps` with the momentum ρ."""
    return np.asarray((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
