"""The numbers of a round that follow from its plan: who sends how much, with which weight, after how many steps.

Nothing here depends on a model, so that every number is known before anything is trained.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hflray.aggregation import Frame
from hflray.aggregation.fixed_point import fraction_bits
from hflray.clock.synchronous import EdgeTurn, turns
from hflray.support.arrays import FloatArray, IntArray
from hflray.training.exchange import EdgeTask, Share
from hflray.training.plan import RoundPlan, plan_round
from hflray.training.returned import scaled
from hflray.training.state import RoundTask, Setting


class Amounts:
    """The numbers of one round, or of one turn of an edge.

    Args:
        setting: what is the same in all rounds.
        task: what the round trains.
        hosts: the number of hosts that train devices.
        first: the number of the first edge iteration among those that the edges begin in the round.
        host: the host of each scheduled device, (H,); None: they are dealt here.

    Attributes:
        plan: which host trains what.
        turns: the turns of the edges.
        iterations: Q.
        extra_bits: the binary places of the sums of a rule's vectors.
    """

    def __init__(
        self, setting: Setting, task: RoundTask, hosts: int, first: int = 0, host: IntArray | None = None
    ) -> None:
        (devices, edges), participates = task.schedule, task.participates
        self.setting, self.index, self.iterations = setting, task.round_index, len(participates)
        self._parts, self._first = setting.method.parts(), first
        self._deviation = 0.0 if setting.method.privacy is None else setting.method.privacy.deviation
        weights = setting.weights if setting.method.uniform else None
        self.plan: RoundPlan = plan_round(setting.samples, devices, edges, hosts, participates, weights, host)
        self.turns: list[EdgeTurn] = turns(edges, participates)
        self.extra_bits = fraction_bits(self.iterations * len(setting.samples))  # each row has the weight 1

    def task(self, q: int, share: Mapping[int, tuple[int, ...]]) -> EdgeTask:
        """Return the task of a host in an edge iteration, for its devices by edge."""
        shares = []
        for edge, devices in share.items():
            by_device = self._scales(q, edge)
            scales = tuple(by_device[0][device] for device in devices) if by_device is not None else ()
            rate = self._mean_rate(q - 1, edge) if self._parts.remembers and q else 0.0
            shares.append(Share(self.edge_frame(q, edge), devices, scales, rate))
        last = q == self.iterations - 1
        return EdgeTask(self.index, self._first + q, tuple(shares), self.extra_bits, self._first, last)

    def edge_frame(self, q: int, edge: int) -> Frame:
        """Return where and when an edge combines its devices."""
        iteration, setting = self.plan.iterations[q], self.setting
        size = sum(len(share.get(edge, ())) for share in iteration.shares)
        return Frame(
            "edge", edge, self.index, self._first + q, size, iteration.edge_weights[edge], setting.statistics,
            self.plan.fraction_bits, setting.seed, self._deviation,
        )  # fmt: skip

    def cloud_frame(self) -> Frame:
        """Return where and when the cloud combines the edges."""
        weights, setting = self.edge_weights(), self.setting
        return Frame(
            "cloud", 0, self.index, 0, len(weights), sum(weights.values()), setting.statistics,
            self.plan.fraction_bits, setting.seed,
        )  # fmt: skip

    def edge_weights(self) -> dict[int, int]:
        """Return the weight of each edge at the cloud: that of its last edge iteration with devices."""
        return {turn.edge: self.plan.iterations[turn.last].edge_weights[turn.edge] for turn in self.turns}

    def edge_scales(self, edges: list[int]) -> FloatArray:
        """Return the factor of the update of each of some edges at the cloud, (n,); see `LocalRule.scales`."""
        if not self._parts.scales:
            return np.ones(len(edges))
        weights = self.edge_weights()
        shares = np.array([weights[edge] for edge in edges], dtype=np.float64)
        steps = np.array([self._effective_steps(edge) for edge in edges])
        made = self._parts.rule.scales("cloud", steps, shares / shares.sum(), self.setting.method.momentum)
        scales = scaled(self._parts.rule, made, len(edges))
        return np.ones(len(edges)) if scales is None else scales[0]

    def rate_of(self, edge: int) -> float:
        """Return Σ Kβ over the edge iterations of an edge, each the mean over its devices by weight."""
        return sum(self._mean_rate(q, edge) for q in self._iterations_of(edge))

    def _iterations_of(self, edge: int) -> list[int]:
        """Return the edge iterations in which an edge has devices."""
        return [q for q, iteration in enumerate(self.plan.iterations) if edge in iteration.edge_weights]

    def _members(self, q: int, edge: int) -> IntArray:
        """Return the devices of an edge in an edge iteration, in ascending order."""
        return np.sort([device for share in self.plan.iterations[q].shares for device in share.get(edge, ())])

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
        """Return Kβ of an edge's iteration, the mean over its devices by weight; of an empty one, that of the last."""
        while q >= 0 and edge not in self.plan.iterations[q].edge_weights:
            q -= 1
        if q < 0:
            return 0.0
        devices, setting = self._members(q, edge), self.setting
        weights, decay = setting.weights[devices].astype(np.float64), setting.method.decay
        position = self.index, self._first + q
        total = setting.method.total_rate
        sums = np.array(
            [total(decay.rates(setting.rate, position, self.iterations, int(k))) for k in setting.steps[devices]]
        )
        return float(weights @ sums / weights.sum())
