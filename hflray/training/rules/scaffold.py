"""SCAFFOLD: control variates against the drift of devices (Karimireddy et al., "SCAFFOLD: Stochastic controlled
averaging for federated learning", 2020), with option II of its Algorithm 1.

Each edge iteration is a reception: a device starts from its edge's model w₀, updates its variate cₙ at the end, and
sends the change up. The cloud's variate c is fixed in a round. What (w₀ − w)/(Kβ) reconstructs contains weight decay
and clipping, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.training.rules.base import CloudReport, LocalRule, Memory, Received, State, Vector


class Scaffold(LocalRule):
    """Adds c − cₙ to each gradient; then cₙ⁺ = cₙ − c + (w₀ − w)/(Kβ). At the cloud, c grows by Σ(cₙ⁺ − cₙ)/N.

    A device sends the change of cₙ beside its model, and an edge the sum of these changes. It needs no options.
    """

    vectors: ClassVar[tuple[int, int]] = (1, 1)
    memory: ClassVar[tuple[str, ...]] = ("c",)
    extra: ClassVar[tuple[str, ...]] = ("c",)
    constant: ClassVar[bool] = True

    def start(self, size: int, num_edges: int) -> State:
        """Return c = 0."""
        return {"c": np.zeros(size, dtype=np.float32)}

    def sends(self, state: State, edge: int) -> Mapping[str, Vector]:
        """Return c."""
        return {"c": state["c"]}

    def begin(self, received: Received, memory: Memory) -> Memory:
        """Return cₙ, which is 0 at first."""
        return memory or {"c": np.zeros_like(received.model)}

    def correction(self, weights: Any, received: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any]) -> Any:
        """Return c − cₙ."""
        return vectors["c"] - memory["c"]

    def finish(
        self, received: Received, trained: Vector, rate: float, memory: Memory
    ) -> tuple[Memory, Mapping[str, Vector]]:
        """Return cₙ⁺ and its change."""
        change = (received.model - trained) / rate - received.vectors["c"]
        return {"c": memory["c"] + change}, {"c": change}

    def cloud(self, report: CloudReport, state: State) -> tuple[Vector | None, State]:
        """Return c after the round."""
        return None, {"c": state["c"] + report.extra["c"] / report.num_devices}
