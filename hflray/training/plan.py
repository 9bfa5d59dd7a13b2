"""The plan of a round: which host trains which devices, and every number that follows from that. No Ray, no torch.

Devices are dealt to hosts, longest first. Who sends how much, with which weight, after how many steps, depends on no
model, so that all of it is known before anything is trained.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import Frame
from hflray.aggregation.fixed_point import fraction_bits
from hflray.clock.synchronous import EdgeTurn, turns
from hflray.config import TrainingConfig
from hflray.support.arrays import FloatArray, IntArray
from hflray.training.exchange import EdgeTask, Share
from hflray.training.rules.own import scaled
from hflray.training.state import RoundTask, TrainingSetting


@dataclass(frozen=True)
class IterationPlan:
    """Which host trains which devices in an edge iteration.

    Attributes:
        edge_weights: the weight of each edge that has devices, by edge: the samples of its devices, or their number.
        shares: for each host, the devices that it trains, by edge.
    """

    edge_weights: dict[int, int]
    shares: list[dict[int, tuple[int, ...]]]

    def devices_of(self, edge: int) -> IntArray:
        """Return the devices of an edge, in ascending order."""
        return np.sort([device for share in self.shares for device in share.get(edge, ())])


def balance(load: NDArray[np.integer], hosts: int) -> NDArray[np.intp]:
    """Deal items to hosts, longest first, each to the least loaded host; return the host of each item, (H,).

    The lower index wins ties.
    """
    total = np.zeros(hosts, dtype=np.int64)
    host = np.empty(len(load), dtype=np.intp)
    for item in np.argsort(-load, kind="stable"):
        host[item] = total.argmin()
        total[host[item]] += load[item]
    return host


def plan_iterations(
    weights: NDArray[np.int64],
    devices: NDArray[np.intp],
    assignment: NDArray[np.intp],
    participates: NDArray[np.bool_],
    host: NDArray[np.intp],
    hosts: int,
) -> list[IterationPlan]:
    """Return the plan of each of the Q edge iterations.

    Args:
        weights: the weight of each device's model, (H,).
        devices: the scheduled devices, (H,).
        assignment: the edge of each scheduled device, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H); see `hflray.timeline`.
        host: the host of each scheduled device, (H,).
        hosts: number of hosts.
    """
    iterations: list[IterationPlan] = []
    for q, present in enumerate(participates):
        if q and (present == participates[q - 1]).all():
            iterations.append(iterations[-1])
            continue
        shares: list[dict[int, tuple[int, ...]]] = []
        for h in range(hosts):
            on_host = present & (host == h)
            edges = np.unique(assignment[on_host])
            shares.append({int(m): tuple(devices[on_host & (assignment == m)].tolist()) for m in edges})
        edges = np.unique(assignment[present])
        edge_weights = {int(m): int(weights[present & (assignment == m)].sum()) for m in edges}
        iterations.append(IterationPlan(edge_weights, shares))
    return iterations


class RoundPlan:
    """The plan of one round, or of one turn of an edge.

    Args:
        setting: what is the same in all rounds.
        task: what the round trains.
        hosts: the number of hosts that train devices.
        first: the number of the first edge iteration among those that the edges begin in the round.
        host: the host of each scheduled device, (H,); None: they are dealt here.

    Attributes:
        index: i, from 1.
        iterations: the plan of each of the Q edge iterations.
        turns: the turns of the edges.
        fraction_bits: binary places of the fixed-point sums; they follow from all scheduled devices.
        extra_bits: the binary places of the sums of a rule's vectors.
    """

    def __init__(
        self, setting: TrainingSetting, task: RoundTask, hosts: int, first: int = 0, host: IntArray | None = None
    ) -> None:
        (devices, edges), participates = task.schedule, task.participates
        self.setting, self.index, self._first = setting, task.round_index, first
        self._parts = setting.method.parts()
        self._deviation = 0.0 if setting.method.privacy is None else setting.method.privacy.deviation
        host = balance(setting.samples[devices], hosts) if host is None else host
        weights = setting.weights[devices]
        self.iterations = plan_iterations(weights, devices, edges, participates, host, hosts)
        self.turns: list[EdgeTurn] = turns(edges, participates)
        self.fraction_bits = fraction_bits(int(weights.sum()))
        self.extra_bits = fraction_bits(len(participates) * len(setting.samples))  # each row has the weight 1

    def leaving(self, index: int, edge: int, devices: Sequence[int]) -> tuple[int, ...]:
        """Return those of an edge's `devices` for which the edge iteration `index` is their last one."""
        if index + 1 == len(self.iterations):
            return tuple(devices)
        later = {d for it in self.iterations[index + 1 :] for share in it.shares for d in share.get(edge, ())}
        return tuple(device for device in devices if device not in later)

    def devices_by_host(self) -> list[list[int]]:
        """Return the devices that each host trains in any edge iteration."""
        by_host: list[dict[int, None]] = [{} for _ in self.iterations[0].shares] if self.iterations else []
        for iteration in self.iterations:
            for devices, share in zip(by_host, iteration.shares, strict=True):
                devices.update(dict.fromkeys(device for members in share.values() for device in members))
        return [list(devices) for devices in by_host]

    def task(self, q: int, share: Mapping[int, tuple[int, ...]]) -> EdgeTask:
        """Return the task of a host in an edge iteration, for its devices by edge."""
        shares = []
        for edge, devices in share.items():
            by_device = self._scales(q, edge)
            scales = tuple(by_device[0][device] for device in devices) if by_device is not None else ()
            rate = self._mean_rate(q - 1, edge) if self._parts.remembers and q else 0.0
            shares.append(Share(self.edge_frame(q, edge), devices, scales, rate))
        last = q == len(self.iterations) - 1
        return EdgeTask(self.index, self._first + q, tuple(shares), self.extra_bits, self._first, last)

    def edge_frame(self, q: int, edge: int) -> Frame:
        """Return where and when an edge combines its devices."""
        iteration, setting = self.iterations[q], self.setting
        size = sum(len(share.get(edge, ())) for share in iteration.shares)
        return Frame(
            "edge", edge, self.index, self._first + q, size, iteration.edge_weights[edge], setting.statistics,
            self.fraction_bits, setting.seed, self._deviation,
        )  # fmt: skip

    def cloud_frame(self) -> Frame:
        """Return where and when the cloud combines the edges."""
        weights, setting = self.edge_weights(), self.setting
        return Frame(
            "cloud", 0, self.index, 0, len(weights), sum(weights.values()), setting.statistics,
            self.fraction_bits, setting.seed,
        )  # fmt: skip

    def edge_weights(self) -> dict[int, int]:
        """Return the weight of each edge at the cloud: that of its last edge iteration with devices."""
        return {turn.edge: self.iterations[turn.last].edge_weights[turn.edge] for turn in self.turns}

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
        return [q for q, iteration in enumerate(self.iterations) if edge in iteration.edge_weights]

    def _scales(self, q: int, edge: int) -> tuple[dict[int, float], float] | None:
        """Return the factor of the update of each device of an edge, and the effective steps (`LocalRule.scales`)."""
        if not self._parts.scales:
            return None
        devices, setting = self.iterations[q].devices_of(edge), self.setting
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
        while q >= 0 and edge not in self.iterations[q].edge_weights:
            q -= 1
        if q < 0:
            return 0.0
        devices, setting = self.iterations[q].devices_of(edge), self.setting
        weights, decay = setting.weights[devices].astype(np.float64), setting.method.decay
        position = self.index, self._first + q
        total = setting.method.total_rate
        sums = np.array(
            [total(decay.rates(setting.rate, position, len(self.iterations), int(k))) for k in setting.steps[devices]]
        )
        return float(weights @ sums / weights.sum())


class PoolSize(NamedTuple):
    """How many device actors to start, and the CPUs and GPUs that each reserves."""

    actors: int
    cpus: float
    gpus: float = 0.0


def pool_size(config: TrainingConfig, num_scheduled: int, cpus: int, gpus: float = 0.0) -> PoolSize:
    """Return the size of the pool.

    There is one actor per GPU or per CPU (or per `threads` CPUs) unless `num_actors` or `devices_per_actor` says
    otherwise, and never more actors than scheduled devices. If there are more actors than CPUs, each reserves a part of
    a CPU; otherwise some would never start.

    Args:
        config: the training section.
        num_scheduled: H.
        cpus: CPUs available to the pool.
        gpus: GPUs available to the pool; a value below 1 is a part of one GPU. If it is above 0, GPUs instead of CPUs
            set the number of actors, and each actor uses one GPU or a part of it.
    """
    threads = config.threads or 1
    if config.devices_per_actor is not None:
        target = math.ceil(num_scheduled / config.devices_per_actor)
    else:
        target = config.num_actors or max(1, int(gpus) if gpus else cpus // threads)
    actors = min(target, num_scheduled)
    cpus_each = float(threads) if actors * threads <= cpus else _rounded_down(cpus / actors)
    # Every whole GPU is shared by the same number of actors: 3 actors with 2/3 each would not fit on 2 cards.
    share = gpus / actors if gpus < 1 else 1 / math.ceil(actors / gpus)
    return PoolSize(actors, cpus_each, _rounded_down(share) if gpus else 0.0)


def _rounded_down(amount: float) -> float:
    """Round down to a multiple of 1e-4, Ray's resolution, so that the sum does not exceed the available amount."""
    return math.floor(amount * 1e4 + 1e-6) / 1e4
