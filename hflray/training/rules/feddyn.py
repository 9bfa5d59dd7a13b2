"""FedDyn: each device's loss is bent until its minimum is the common one (Acar et al., "Federated learning based on
dynamic regularization", 2021).

Each edge iteration is a reception: a device regularises towards its edge's model w₀, and updates hₙ at the end. Edges
average plainly; the cloud corrects once a round. What w − w₀ contains beside gradients, such as weight decay and
clipping, enters hₙ, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.config.options import positive
from hflray.training.rules.base import CloudReport, LocalRule, Memory, Received, State, Vector


class FedDyn(LocalRule):
    """Adds −hₙ + α(w − w₀) to each gradient; then hₙ⁺ = hₙ − α(w − w₀). At the cloud, w = w̄ − h/α.

    Here h is the mean of hₙ over all N devices, of which those that have not trained have hₙ = 0. The edge computes the
    changes of hₙ from the models that it receives, and sends their sum, one vector, to the cloud.

    Args:
        alpha: α, above 0.

    Raises:
        ConfigError: α is not above 0.
    """

    vectors: ClassVar[tuple[int, int]] = (0, 1)
    memory: ClassVar[tuple[str, ...]] = ("h",)
    extra: ClassVar[tuple[str, ...]] = ("h",)
    makes_model: ClassVar[bool] = True
    needs_uniform: ClassVar[bool] = True
    stacked: ClassVar[bool] = True

    def __init__(self, alpha: float = 0.01) -> None:
        self.alpha = positive("training.rule.options.alpha", alpha)

    def start(self, size: int, num_edges: int) -> State:
        """Return h = 0."""
        return {"h": np.zeros(size, dtype=np.float32)}

    def begin(self, received: Received, memory: Memory) -> Memory:
        """Return hₙ, which is 0 at first."""
        return memory or {"h": np.zeros_like(received.model)}

    def correction(self, weights: Any, received: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any]) -> Any:
        """Return −hₙ + α(w − w₀)."""
        return self.alpha * (weights - received) - memory["h"]

    def finish(
        self, received: Received, trained: Vector, rate: float, memory: Memory
    ) -> tuple[Memory, Mapping[str, Vector]]:
        """Return hₙ⁺ and its change."""
        change = self.alpha * (received.model - trained)
        return {"h": memory["h"] + change}, {"h": change}

    def cloud(self, report: CloudReport, state: State) -> tuple[Vector | None, State]:
        """Return w̄ − h/α, and h."""
        mean = state["h"] + report.extra["h"] / report.num_devices
        return report.mean - mean / self.alpha, {"h": mean}
