"""FedNova: updates are normalised by the steps behind them (Wang et al., "Tackling the objective inconsistency
problem in heterogeneous federated optimization", 2020).

An edge combines its devices so, and the cloud its edges; an edge's number of steps is the sum of the effective steps of
its edge iterations. All factors follow from the plan, so that nothing further is sent.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from hflray.support.arrays import FloatArray
from hflray.training.rules.base import LocalRule


class FedNova(LocalRule):
    """An edge's model becomes w₀ − τ Σ pₙ(w₀ − wₙ)/aₙ with τ = Σ pₙ aₙ. It needs no options.

    aₙ is K, the steps of the device; with momentum ρ it is (K − ρ(1 − ρ^K)/(1 − ρ))/(1 − ρ).
    """

    def scales(
        self, place: Literal["edge", "cloud"], steps: FloatArray, weights: FloatArray, momentum: float
    ) -> tuple[FloatArray, float]:
        """Return τ/aₙ of each sender, (n,), 0 of an edge that has combined nothing, and τ."""
        norms = effective_steps(steps, momentum) if place == "edge" else steps
        effective = float(weights @ norms)
        return np.divide(effective, norms, out=np.zeros(len(norms)), where=norms > 0), effective


def effective_steps(steps: FloatArray, momentum: float) -> FloatArray:
    """Return aₙ of each device, (n,), for its K `steps` with the momentum ρ."""
    return np.asarray((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))
