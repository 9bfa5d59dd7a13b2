"""SCAFFOLD: control variates against the drift of devices (Karimireddy et al., "SCAFFOLD: Stochastic controlled
averaging for federated learning", 2020), with option II of its Algorithm 1.

A round takes the place of the paper's round (docs/design.md, D12): cₙ and c stay fixed in it. Moved in each
edge iteration, cₙ would leave a c that stands, and an edge would walk Q times along the last round's c. What the moves
w₀ − w reconstruct contains weight decay and clipping, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.training.rules.base import CloudReport, LocalRule, Memory, Received, State, Vector


class Scaffold(LocalRule):
    """Adds c − cₙ to each gradient. After a round, cₙ⁺ = cₙ − c + Σ(w₀ − w)/ΣKβ, and c grows by Σ(cₙ⁺ − cₙ)/N.

    The sums with w₀ and K are over the edge iterations of the round in which the device has trained. It sends the
    change of cₙ beside its model of the last edge iteration, and an edge the sum of these changes; a device that is
    missing there keeps its cₙ. Where the cloud is asynchronous, a turn of the edge takes the place of the round. It
    needs no options.
    """

    vectors: ClassVar[tuple[int, int]] = (1, 1)
    once: ClassVar[bool] = True
    memory: ClassVar[tuple[str, ...]] = ("c",)
    forgets: ClassVar[tuple[str, ...]] = ("moved", "rate")
    extra: ClassVar[tuple[str, ...]] = ("c",)
    constant: ClassVar[bool] = True
    stacked: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # in 1, variates moved in each edge iteration

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
        """Return the sums so far; after the last edge iteration, cₙ⁺ and its change."""
        moved = received.model - trained
        if "moved" in memory:
            moved, rate = memory["moved"] + moved, memory["rate"] + rate
        if not received.last:
            return {"c": memory["c"], "moved": moved, "rate": rate}, {}
        change = moved / rate - received.vectors["c"]
        return {"c": memory["c"] + change}, {"c": change}

    def cloud(self, report: CloudReport, state: State) -> tuple[Vector | None, State]:
        """Return c after the round; it stays if every device was missing in the last edge iteration."""
        change = report.extra.get("c")
        return None, state if change is None else {"c": state["c"] + change / report.num_devices}
