"""MTGC: corrections on two timescales, of devices within an edge and of edges within the system (Fang et al.,
"Hierarchical federated learning with multi-timescale gradient correction", arXiv 2409.18448, 2024).

Both corrections follow from models that are sent anyway, so that nothing further is sent upwards. What differences of
models reconstruct contains weight decay and clipping, as in the authors' code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.config.options import one_of
from hflray.training.rules.base import CloudReport, LocalRule, Memory, Received, State, Vector


class MTGC(LocalRule):
    """Adds zₙ + y_m to each gradient.

    zₙ begins each round at 0. At its next edge iteration within the round, a device that has trained adds
    (wₙ − w̄_m)/(Kβ), where w̄_m is the edge's model that its update has entered, and K the edge's weighted mean of steps
    then. At the end of a round, y_m of each edge that has reached the cloud grows by (w̄_m − w̄)/(β ΣK), with ΣK over the
    iterations in which the edge has combined models, and w̄ before any step of the cloud's aggregator. If all take part,
    the weighted sum of zₙ over an edge is 0, and so is that of y_m over edges with the same ΣK.

    Args:
        corrections: ``both``; or one half of the method, as its authors compare it: zₙ alone (``devices``), or y_m
            alone (``edges``).

    Raises:
        ConfigError: `corrections` is something else.
    """

    memory: ClassVar[tuple[str, ...]] = ("z", "trained")
    forgets: ClassVar[bool] = True
    needs_edges: ClassVar[bool] = True
    constant: ClassVar[bool] = True
    stacked: ClassVar[bool] = True
    revision: ClassVar[int] = 2  # 1 took the model that a device received next for the one that its update had entered

    def __init__(self, corrections: str = "both") -> None:
        self.corrections = one_of("training.rule.options.corrections", corrections, ("both", "devices", "edges"))

    def start(self, size: int, num_edges: int) -> State:
        """Return y_m = 0 of each edge, (M, P)."""
        return {"y": np.zeros((num_edges, size), dtype=np.float32)}

    def sends(self, state: State, edge: int) -> Mapping[str, Vector]:
        """Return y_m, if it is wanted."""
        return {} if self.corrections == "devices" else {"y": state["y"][edge]}

    def begin(self, received: Received, memory: Memory) -> Memory:
        """Return zₙ with what the device has learned about itself from the model that its update has entered."""
        if not memory:
            return {"z": np.zeros_like(received.model), "trained": received.model}
        if not received.mean_rate:  # it has entered none
            return {"z": memory["z"], "trained": received.model}
        entered = received.model if received.entered is None else received.entered
        return {"z": memory["z"] + (memory["trained"] - entered) / received.mean_rate, "trained": received.model}

    def correction(self, weights: Any, received: Any, vectors: Mapping[str, Any], memory: Mapping[str, Any]) -> Any:
        """Return zₙ + y_m, or the half of it that is wanted."""
        if self.corrections == "both":
            return memory["z"] + vectors["y"]
        return memory["z"] if self.corrections == "devices" else vectors["y"]

    def finish(
        self, received: Received, trained: Vector, rate: float, memory: Memory
    ) -> tuple[Memory, Mapping[str, Vector]]:
        """Return zₙ and the trained model, which the next reception needs."""
        return {"z": memory["z"], "trained": trained}, {}

    def cloud(self, report: CloudReport, state: State) -> tuple[Vector | None, State]:
        """Return y_m of each edge after the round."""
        if self.corrections == "devices":
            return None, state
        change = np.zeros_like(state["y"], dtype=report.mean.dtype)
        for edge, reported in report.edges.items():
            if not reported.rate:
                continue
            change[edge] = (reported.model - report.mean) / reported.rate
        return None, {"y": state["y"] + change}
