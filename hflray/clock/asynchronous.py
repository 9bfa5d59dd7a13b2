"""The asynchronous cloud: it takes each edge's model when it arrives, with a share that falls with its age.

The age, or *staleness* τ, of an update counts the versions of the global model that the cloud has made since the edge
fetched the one that it trained from. An update of the present version has τ = 0 and is not damped.

* FedAsync (Xie, Koyejo, Gupta: "Asynchronous federated optimization", 2019): w ← (1 − α) w + α w_m with
  α = min(1, a · D_m / D̄ · s(τ)). The factor of the samples is ours, and ``weight: none`` leaves it out. The paper's
  proximal term in the loss of a device is not here.
* FedBuff (Nguyen et al.: "Federated learning with buffered asynchronous aggregation", 2022): after K updates
  w ← w + a / K · Σ s(τ) (w_m − w_fetched), which makes one version.
* FedAT (Chai et al.: "FedAT: A high-performance and communication-efficient federated learning system with
  asynchronous tiers", 2021): w = Σ_m U_(M + 1 − rank m) · w_m / ΣU over the newest models of the edges that have sent,
  where U_r is the number of updates of the edge with rank r. The paper's tiers are devices of like latency; here each
  edge is one, whatever its devices are. Its compression is not here.

In all three an update is that of an edge. Here s(τ) = (1 + τ)^−e, or by a hinge 1 up to τ = b and
1 / (a (τ − b) + 1) above it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from hflray.config.clock import AsynchronousConfig, AsynchronousEdgeConfig

Way = tuple[float, int, Any]  # when something under way ends, the number of its edge or device, and what it is
MIXING, STEP = 0.6, 1.0  # a without and with a buffer


@dataclass(frozen=True)
class Asynchrony:
    """How the cloud takes updates of edges, or an edge those of devices.

    Attributes:
        updates: U, the updates of a round.
        mixing: a.
        exponent: e.
        hinge: (a, b) of the hinge in place of the exponent; None: the exponent counts.
        weighs: whether the samples of an edge count.
        buffer: K; 1 is no buffer.
        fedat: whether the weights are FedAT's.
    """

    updates: int
    mixing: float = MIXING
    exponent: float = 0.5
    hinge: tuple[float, float] | None = None
    weighs: bool = True
    buffer: int = 1
    fedat: bool = False

    @classmethod
    def of(cls, config: AsynchronousConfig, num_edges: int) -> Self:
        """Return what a section says for M edges."""
        default = MIXING if config.buffer == 1 else STEP
        return cls(
            updates=config.updates or num_edges,
            mixing=default if config.mixing is None else config.mixing,
            exponent=config.staleness.exponent,
            hinge=config.staleness.hinge,
            weighs=config.weight == "samples",
            buffer=config.buffer,
            fedat=config.rule == "fedat",
        )

    @classmethod
    def of_edge(cls, config: AsynchronousEdgeConfig, num_devices: int) -> Self:
        """Return what a section says for an edge to which the plan gives so many devices."""
        return cls(
            updates=config.updates or num_devices,
            mixing=config.mixing,
            exponent=config.staleness.exponent,
            hinge=config.staleness.hinge,
        )

    def damping(self, staleness: int) -> float:
        """Return s(τ)."""
        if self.hinge is None:
            return float((1 + staleness) ** -self.exponent)
        slope, flat = self.hinge
        return 1.0 if staleness <= flat else 1.0 / (slope * (staleness - flat) + 1.0)

    def share(self, weight: float, mean_weight: float, staleness: int) -> float:
        """Return α of an update, or with a buffer the factor a / K · s(τ) of its difference.

        Args:
            weight: D_m, the samples of the last edge iteration of the turn in which any counted.
            mean_weight: D̄, the samples of the plan over its edges with devices.
            staleness: τ.
        """
        if self.buffer > 1:
            return self.mixing / self.buffer * self.damping(staleness)
        relative = weight / mean_weight if self.weighs else 1.0
        return min(1.0, self.mixing * relative * self.damping(staleness))


def in_order(ways: list[Way], goes_on: Callable[[], bool]) -> Iterator[Any]:
    """Yield what is under way, in the order of time, as long as it `goes_on`; the lower number wins ties.

    Args:
        ways: a heap of what is under way; the caller may push to it in between, and what is left at the end is there.
        goes_on: whether another may end.
    """
    heapq.heapify(ways)
    while ways and goes_on():
        yield heapq.heappop(ways)[-1]


def fedat_shares(updates: Mapping[int, int]) -> dict[int, float]:
    """Return the share of each edge's newest model, by edge, from the number of its updates so far, which is above 0.

    The edge with the fewest updates has rank 1 and the number of the edge with the most. The lower edge wins ties.
    """
    ranked = sorted(updates, key=lambda edge: (updates[edge], edge))
    total = sum(updates.values())
    return {edge: updates[other] / total for edge, other in zip(ranked, reversed(ranked), strict=True)}
