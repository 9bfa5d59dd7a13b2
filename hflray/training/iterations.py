"""The edge iterations of a round, or of one edge's turn: who trains where, with which weight, for how many steps.

Nothing here depends on a model, so that every number is known before anything is trained. No Ray, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import Frame
from hflray.aggregation.fixed_point import fraction_bits
from hflray.cost import Schedule
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.training.exchange import EdgeTask, Share
from hflray.training.plan import balance
from hflray.training.rules.own import scaled
from hflray.training.state import TrainingSetting


@dataclass(frozen=True)
class IterationPlan:
    """Which host trains which devices in an edge iteration.

    Attributes:
        edge_weights: the weight of each edge that has devices, by edge: the samples of its devices, or their number.
        shares: for each host, the devices that it trains, by edge.
    """

    edge_weights: dict[int, int]
    shares: list[dict[int, tuple[int, ...]]]


def deal(
    schedule: Schedule, participates: BoolArray, weight: NDArray[np.int64], host: IntArray, hosts: int
) -> list[IterationPlan]:
    """Return the plan of each edge iteration.

    Args:
        schedule: the scheduled devices and the edge of each, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H); see `hflray.timeline`.
        weight: the weight of each scheduled device's model, (H,).
        host: the host of each, (H,).
        hosts: the number of hosts.
    """
    devices, assignment = schedule
    plans: list[IterationPlan] = []
    for q, present in enumerate(participates):
        if q and (present == participates[q - 1]).all():
            plans.append(plans[-1])
            continue
        shares: list[dict[int, tuple[int, ...]]] = []
        for h in range(hosts):
            on_host = present & (host == h)
            edges = np.unique(assignment[on_host])
            shares.append({int(m): tuple(devices[on_host & (assignment == m)].tolist()) for m in edges})
        edges = np.unique(assignment[present])
        edge_weights = {int(m): int(weight[present & (assignment == m)].sum()) for m in edges}
        plans.append(IterationPlan(edge_weights, shares))
    return plans


class Iterations:
    """The edge iterations of edges that do them in lockstep: all edges of a round, or one edge in a turn.

    Args:
        setting: what is the same in all rounds.
        round_index: i, from 1; it selects the draws.
        schedule: the devices and the edge of each, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H).
        hosts: the number of hosts that train devices.
        first: the number of the first edge iteration among those that the edges begin in the round.
        host: the host of each device, (H,); None: they are dealt here, longest first.
        ends: the last edge iteration of each edge, (M,); None: that of all.

    Attributes:
        plans: which host trains what in each edge iteration.
        versions: what a program calls the version of an edge after an edge iteration, which it fills in.
        last: the last edge iteration in which an edge has devices, by edge; an edge without any is not among them.
        count: Q.
        extra_bits: the binary places of the sums of a rule's vectors.
        fraction_bits: the binary places of the sums of models; they follow from all scheduled devices.
    """

    def __init__(
        self,
        setting: TrainingSetting,
        round_index: int,
        schedule: Schedule,
        participates: BoolArray,
        hosts: int,
        first: int = 0,
        host: IntArray | None = None,
        ends: IntArray | None = None,
    ) -> None:
        self.setting, self.index, self.count = setting, round_index, len(participates)
        self._parts, self._first, self._ends = setting.method.parts(), first, ends
        self._deviation = 0.0 if setting.method.privacy is None else setting.method.privacy.deviation
        load, weight = setting.samples[schedule.devices], setting.weights[schedule.devices]
        host = balance(load, hosts) if host is None else host
        self.plans, self.versions = deal(schedule, participates, weight, host, hosts), dict[tuple[int, int], Any]()
        self.fraction_bits = fraction_bits(int(weight.sum()))
        last = {edge: q for q, plan in enumerate(self.plans) for edge in plan.edge_weights}
        self.last = {edge: last[edge] for edge in sorted(last)}
        self.extra_bits = fraction_bits(self.count * len(setting.samples))  # each row has the weight 1

    def task(self, q: int, share: Mapping[int, tuple[int, ...]]) -> EdgeTask:
        """Return the task of a host in an edge iteration, for its devices by edge."""
        shares, earlier = [], self.earlier(q, share)
        for edge, devices in share.items():
            by_device = self._scales(q, edge)
            scales = tuple(by_device[0][device] for device in devices) if by_device is not None else ()
            rate = self._mean_rate(q - 1, edge) if self._parts.remembers and q else 0.0
            is_last = q == (self.count - 1 if self._ends is None else int(self._ends[edge]))
            entered = {
                device: (len(share) + earlier.index((edge, p)), self._mean_rate(p, edge))
                if (edge, p) in earlier else (-1, 0.0)
                for device, p in self._returning(q, edge, devices).items()
            }  # fmt: skip
            shares.append(Share(self.edge_frame(q, edge), devices, scales, rate, is_last, entered))
        return EdgeTask(self.index, self._first + q, tuple(shares), self.extra_bits, self._first)

    def earlier(self, q: int, share: Mapping[int, tuple[int, ...]]) -> list[tuple[int, int]]:
        """Return which edges' versions after which earlier edge iterations a host's devices need besides the newest."""
        needed = {(edge, p) for edge, devices in share.items() for p in self._returning(q, edge, devices).values()}
        return sorted((edge, p) for edge, p in needed if self._combines(p, edge))

    def _returning(self, q: int, edge: int, devices: Sequence[int]) -> dict[int, int]:
        """Return the last edge iteration before `q` of the devices of which the newest version does not tell anything.

        The edge has combined others since, or it has not combined these. Only a rule that remembers something asks.
        """
        if not (self._parts.remembers and q) or (
            all(plan is self.plans[0] for plan in self.plans[:q]) and self._combines(0, edge)
        ):
            return {}
        newest = max((p for p in range(q) if self._combines(p, edge)), default=-1)
        last = {device: p for p in range(q) for device in self._members(p, edge).tolist()}
        return {device: last[device] for device in devices if last.get(device, newest) != newest}

    def leaving(self, q: int, edge: int, devices: Sequence[int]) -> tuple[int, ...]:
        """Return those of an edge's `devices` for which the edge iteration `q` is their last one."""
        later = {d for plan in self.plans[q + 1 :] for share in plan.shares for d in share.get(edge, ())}
        return tuple(device for device in devices if device not in later)

    def edge_frame(self, q: int, edge: int) -> Frame:
        """Return where and when an edge combines its devices."""
        plan, setting = self.plans[q], self.setting
        size = sum(len(share.get(edge, ())) for share in plan.shares)
        return Frame(
            "edge", edge, self.index, self._first + q, size, plan.edge_weights[edge], setting.statistics,
            self.fraction_bits, setting.seed, self._deviation,
        )  # fmt: skip

    def frame_above(self, place: Literal["region", "cloud"], index: int, q: int, weights: Sequence[int]) -> Frame:
        """Return where and when a region combines edges after the edge iteration `q`, or the cloud what is below it."""
        setting, iteration = self.setting, self._first + q if place == "region" else 0
        return Frame(
            place, index, self.index, iteration, len(weights), sum(weights), setting.statistics, self.fraction_bits,
            setting.seed,
        )  # fmt: skip

    def weights_in(self, begin: int, end: int) -> dict[int, int]:
        """Return the weight of each edge that has devices from one edge iteration to before another: the last one's."""
        return {edge: weight for plan in self.plans[begin:end] for edge, weight in plan.edge_weights.items()}

    def edge_scales(self, edges: list[int]) -> FloatArray:
        """Return the factor of the update of each of some edges at the cloud, (n,); see `LocalRule.scales`."""
        if not self._parts.scales:
            return np.ones(len(edges))
        weights = self.weights_in(0, self.count)
        shares = np.array([weights[edge] for edge in edges], dtype=np.float64)
        steps = np.array([self._effective_steps(edge) for edge in edges])
        made = self._parts.rule.scales("cloud", steps, shares / shares.sum(), self.setting.method.momentum)
        scales = scaled(self._parts.rule, made, len(edges))
        return np.ones(len(edges)) if scales is None else scales[0]

    def rate_of(self, edge: int) -> float:
        """Return Σ Kβ over the edge iterations of an edge, each the mean over its devices by weight."""
        return sum(self._mean_rate(q, edge) for q in self._iterations_of(edge))

    def _iterations_of(self, edge: int) -> list[int]:
        """Return the edge iterations in which an edge combines models."""
        return [q for q in range(self.count) if self._combines(q, edge)]

    def _combines(self, q: int, edge: int) -> bool:
        """Return whether an edge has devices in an edge iteration, and not too few for its aggregator."""
        return edge in self.plans[q].edge_weights and len(self._members(q, edge)) >= self._parts.edge.least

    def _members(self, q: int, edge: int) -> IntArray:
        """Return the devices of an edge in an edge iteration, in ascending order."""
        return np.sort([device for share in self.plans[q].shares for device in share.get(edge, ())])

    def _scales(self, q: int, edge: int) -> tuple[dict[int, float], float] | None:
        """Return the factor of the update of each device of an edge, and the effective steps (`LocalRule.scales`)."""
        if not self._parts.scales:
            return None
        devices, setting = self._members(q, edge), self.setting
        weights = setting.weights[devices].astype(np.float64)
        steps = setting.steps[devices].astype(np.float64)
        made = self._parts.rule.scales("edge", steps, weights / weights.sum(), setting.method.momentum)
        scales = scaled(self._parts.rule, made, len(devices))
        return None if scales is None else (dict(zip(devices.tolist(), scales[0].tolist(), strict=True)), scales[1])

    def _effective_steps(self, edge: int) -> float:
        """Return the effective steps of an edge over its iterations, for a rule that scales updates; else 0."""
        scales = (self._scales(q, edge) for q in self._iterations_of(edge))
        return sum(effective for _, effective in filter(None, scales))

    def _mean_rate(self, q: int, edge: int) -> float:
        """Return Kβ of an edge's iteration, the mean over its devices by weight; else of the last that combined any."""
        while q >= 0 and not self._combines(q, edge):
            q -= 1
        if q < 0:
            return 0.0
        devices, setting = self._members(q, edge), self.setting
        weights, decay = setting.weights[devices].astype(np.float64), setting.method.decay
        position = self.index, self._first + q
        total = setting.method.total_rate
        sums = np.array(
            [total(decay.rates(setting.rate, position, self.count, int(k))) for k in setting.steps[devices]]
        )
        return float(weights @ sums / weights.sum())
