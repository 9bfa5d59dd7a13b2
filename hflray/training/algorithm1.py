"""Algorithm 1 of the paper: the only loop over edge iterations and edges. It trains a round whose plan is complete.

The loop talks to an `Executor`, which is this process (`hflray.training.serial`) or Ray's actors
(`hflray.training.hierarchy`). A `Ref` is a value in the former, and a reference to an object in the latter. The whole
round is submitted before anything is waited for. A round is a function of the state before it, so that it can be
repeated after a lost actor, and gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation import Aggregator, FloatVector, Frame, Mean, Sent, State, SumVector
from hflray.aggregation.fixed_point import fraction_bits, mean
from hflray.arrays import BoolArray, FloatArray, IntArray
from hflray.clock.synchronous import Turn, turns
from hflray.compression import Compressor, Whole
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.training.method import Method
from hflray.training.plan import RoundPlan, plan_round
from hflray.training.rules.base import CloudReport, EdgeReport, Memory

PREFIX = "training."  # of the names of arrays in a checkpoint
RESIDUAL = "residual"  # the name, among what a device keeps, of what its compressor has not sent yet
Ref = Any  # a value, or a reference to it
Losses = Mapping[int, tuple[float, float]]  # mean loss and utility, by device


class Version(NamedTuple):
    """What a device or an edge starts from.

    Attributes:
        model: (P,).
        vectors: the local rule's vectors for the devices of this edge, (P,) each.
    """

    model: FloatVector
    vectors: Mapping[str, FloatVector] = {}


class Lifted(NamedTuple):
    """What some devices of an edge hand up.

    Attributes:
        part: their models, as the edge's aggregator lifts and combines them.
        extra: the exact sums of the rule's further vectors, (P,) each, by name.
    """

    part: Any
    extra: Mapping[str, SumVector] = {}


class Share(NamedTuple):
    """What one host trains for one edge in one edge iteration.

    Attributes:
        frame: where and when the models will be combined.
        devices: the devices.
        scales: the factor of each device's update; empty: all are 1.
        mean_rate: see `hflray.training.rules.Received`.
    """

    frame: Frame
    devices: tuple[int, ...]
    scales: tuple[float, ...] = ()
    mean_rate: float = 0.0


class EdgeTask(NamedTuple):
    """One host's part of one edge iteration.

    Attributes:
        round, edge_iteration: the position in the training; both select the order of mini-batches.
        shares: what is trained for each edge, in the order of the versions that come with the task.
        extra_bits: the binary places of the sums of a rule's vectors.
    """

    round: int
    edge_iteration: int
    shares: tuple[Share, ...]
    extra_bits: int = 0


class Trained(NamedTuple):
    """What a host returns.

    Attributes:
        parts: a `Lifted` for each edge of the task.
        memories: what its devices keep now, by device; None where the rule keeps nothing.
    """

    parts: Sequence[Ref]
    memories: Ref | None


class Executor(Protocol):
    """Where the steps of a round are done."""

    @property
    def hosts(self) -> int:
        """The number of hosts that train devices."""

    def put(self, value: Any) -> Ref:
        """Return a reference to a value."""

    def train(self, host: int, task: EdgeTask, versions: Sequence[Ref], memories: Ref | None) -> Trained:
        """Train the devices of a task; see `hflray.training.local.DeviceHost.train`."""

    def losses(self, host: int, devices: Sequence[Sequence[int]], versions: Sequence[Ref]) -> Ref:
        """Return the losses of devices under the versions that they receive, see `DeviceHost.losses`."""

    def total(self, edge: int, parts: Sequence[tuple[int, Ref]]) -> Ref:
        """Return the `Lifted` of all devices of an edge, given that of each host."""

    def finish(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Ref]], before: Ref) -> tuple[Ref, Ref | None]:
        """Return the next `Version` of an edge (see `finish`), and the sums of the rule's vectors, if there are any."""

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        """Return the values of references."""


@dataclass(frozen=True, eq=False)
class TrainingState:
    """All that a round's training depends on, beside its plan. It does not change: a round returns the next one.

    Attributes:
        model: the global model, (P,) float32.
        memories: what each device keeps, by device.
        residuals: what each edge keeps of its compressed updates, by edge.
        rule: what the cloud keeps for the local rule, by name.
        cloud: what the cloud's aggregator keeps, by name.
    """

    model: FloatVector
    memories: Mapping[int, Memory] = field(default_factory=dict)
    residuals: Mapping[int, FloatVector] = field(default_factory=dict)
    rule: State = field(default_factory=dict)
    cloud: State = field(default_factory=dict)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all but the model as arrays by name, for a checkpoint; there are none where nothing is kept."""
        named: dict[str, NDArray[Any]] = {}
        for device, memory in self.memories.items():
            named |= {f"{PREFIX}memory.{device}.{name}": np.asarray(value) for name, value in memory.items()}
        named |= {f"{PREFIX}residual.{edge}": residual for edge, residual in self.residuals.items()}
        named |= {f"{PREFIX}rule.{name}": np.asarray(value) for name, value in self.rule.items()}
        return named | {f"{PREFIX}cloud.{name}": np.asarray(value) for name, value in self.cloud.items()}

    @classmethod
    def of_arrays(cls, model: FloatVector, named: Mapping[str, Any]) -> TrainingState:
        """Return the state of `arrays`; other names are ignored."""
        memories: dict[int, dict[str, Any]] = {}
        state: dict[str, dict[Any, Any]] = {"residual": {}, "rule": {}, "cloud": {}}
        for key, value in named.items():
            if not key.startswith(PREFIX):
                continue
            part, _, name = key.removeprefix(PREFIX).partition(".")
            if part == "memory":
                device, _, name = name.partition(".")
                memories.setdefault(int(device), {})[name] = value if value.ndim else value[()]
            else:
                state[part][int(name) if part == "residual" else name] = value
        return cls(model, memories, state["residual"], state["rule"], state["cloud"])


class RoundResult(NamedTuple):
    """What a round's training returns.

    Attributes:
        state: the state after the round.
        losses: the losses of each device that took part, of the model that it received in its last edge iteration;
            empty unless they were asked for.
    """

    state: TrainingState
    losses: Losses


@dataclass(frozen=True, eq=False)
class Setting:
    """What is the same in all rounds of an experiment.

    Attributes:
        method: what happens inside a round.
        seed: the experiment's seed.
        samples: D_n of all devices, (N,).
        num_edges: M.
        steps: the gradient steps of each device in an edge iteration, (N,).
        rate: β.
        sizes: how many numbers each trained tensor of the network has.
        statistics: how many numbers at the end of a model are statistics of normalisation layers.
    """

    method: Method
    seed: int
    samples: NDArray[np.int64]
    num_edges: int
    steps: NDArray[np.int64]
    rate: float
    sizes: tuple[int, ...]
    statistics: int = 0

    @property
    def weights(self) -> NDArray[np.int64]:
        """The weight of each device's model, (N,)."""
        return np.ones_like(self.samples) if self.method.uniform else self.samples

    def start(self, model: FloatVector) -> TrainingState:
        """Return the state before round 1."""
        parts, size = self.method.parts(), sum(self.sizes)
        return TrainingState(model, rule=parts.rule.start(size, self.num_edges), cloud=parts.cloud.start(size))


class _Round:
    """One round of Algorithm 1 over an executor."""

    def __init__(
        self,
        executor: Executor,
        setting: Setting,
        index: int,
        before: TrainingState,
        devices: IntArray,
        edges: IntArray,
        participates: BoolArray,
    ) -> None:
        self.executor, self.setting, self.index, self.before = executor, setting, index, before
        self.parts = setting.method.parts()
        weights = setting.weights
        self.plan: RoundPlan = plan_round(
            setting.samples, devices, edges, executor.hosts, participates, weights if setting.method.uniform else None
        )
        self.turns: list[Turn] = turns(edges, participates)
        self.iterations = len(participates)
        self.extra_bits = fraction_bits(self.iterations * len(setting.samples))  # each row has the weight 1

    def run(self, wants_losses: bool) -> RoundResult:
        """Submit the whole round, wait for it, and combine the edges."""
        executor, parts, rule = self.executor, self.parts, self.parts.rule
        start = executor.put(Version(self.before.model)) if not rule.sends(self.before.rule, 0) else None
        versions: dict[int, Ref] = {}
        for turn in self.turns:
            vectors = rule.sends(self.before.rule, turn.edge)
            versions[turn.edge] = start if start is not None else executor.put(Version(self.before.model, vectors))
        memories = self._memories()
        last = {turn.edge: turn.last for turn in self.turns}
        measured: list[tuple[list[tuple[int, ...]], Ref]] = []
        extras: dict[int, list[Ref]] = {turn.edge: [] for turn in self.turns}
        for q, iteration in enumerate(self.plan.iterations):
            gathered: dict[int, list[tuple[int, Ref]]] = {edge: [] for edge in iteration.edge_weights}
            for host, share in enumerate(iteration.shares):
                if not share:
                    continue
                received = [versions[edge] for edge in share]
                ending = [self.plan.leaving(q, edge, each) for edge, each in share.items()] if wants_losses else []
                if any(ending):
                    measured.append((ending, executor.losses(host, ending, received)))
                trained = executor.train(host, self._task(q, share), received, memories.get(host))
                if trained.memories is not None:
                    memories[host] = trained.memories
                for edge, part in zip(share, trained.parts, strict=True):
                    gathered[edge].append((host, part))
            for edge, each in gathered.items():
                if q == last[edge] and parts.adds_totals:
                    versions[edge] = executor.total(edge, each)
                else:
                    versions[edge], extra = executor.finish(edge, self._frame(q, edge), each, versions[edge])
                    extras[edge] += [] if extra is None else [extra]
        flat = [ref for refs in extras.values() for ref in refs]
        lasting = list(memories.values()) if parts.lasts else []
        results = executor.get([*versions.values(), *lasting, *flat, *(ref for _, ref in measured)])
        models, rest = dict(zip(versions, results, strict=False)), results[len(versions) :]
        kept, rest = rest[: len(lasting)], rest[len(lasting) :]
        sums, rows = rest[: len(flat)], rest[len(flat) :]
        remembered = {device: self._lasting(memory) for part in kept for device, memory in part.items()}
        state = self._cloud(models, sums, {**self.before.memories, **remembered})
        losses = _losses((devices for ending, _ in measured for devices in ending), rows)
        return RoundResult(state, losses)

    def _memories(self) -> dict[int, Ref]:
        """Return what the devices of each host keep; nothing where no rule or compressor keeps anything."""
        if not self.parts.remembers:
            return {}
        members: dict[int, dict[int, Memory]] = {}
        for iteration in self.plan.iterations:
            for host, share in enumerate(iteration.shares):
                for device in (device for devices in share.values() for device in devices):
                    members.setdefault(host, {})[device] = self.before.memories.get(device, {})
        return {host: self.executor.put(each) for host, each in members.items()}

    def _lasting(self, memory: Memory) -> Memory:
        """Return what of a device's memory lasts beyond the round."""
        if not self.parts.rule.forgets:
            return memory
        return {name: value for name, value in memory.items() if name == RESIDUAL}

    def _frame(self, q: int, edge: int) -> Frame:
        iteration, setting = self.plan.iterations[q], self.setting
        size = sum(len(share.get(edge, ())) for share in iteration.shares)
        return Frame(
            "edge", edge, self.index, q, size, iteration.edge_weights[edge], setting.statistics,
            self.plan.fraction_bits, setting.seed,
        )  # fmt: skip

    def _members(self, q: int, edge: int) -> IntArray:
        """Return the devices of an edge in an edge iteration, in ascending order."""
        return np.sort([device for share in self.plan.iterations[q].shares for device in share.get(edge, ())])

    def _task(self, q: int, share: Mapping[int, tuple[int, ...]]) -> EdgeTask:
        shares = []
        for edge, devices in share.items():
            by_device = self._scales(q, edge)
            scales = tuple(by_device[0][device] for device in devices) if by_device is not None else ()
            rate = self._mean_rate(q - 1, edge) if self.parts.remembers and q else 0.0
            shares.append(Share(self._frame(q, edge), devices, scales, rate))
        return EdgeTask(self.index, q, tuple(shares), self.extra_bits)

    def _scales(self, q: int, edge: int) -> tuple[dict[int, float], float] | None:
        """Return the factor of the update of each device of an edge, and the effective steps (`LocalRule.scales`)."""
        if not self.parts.scales:
            return None
        devices, setting = self._members(q, edge), self.setting
        weights = setting.weights[devices].astype(np.float64)
        steps = setting.steps[devices].astype(np.float64)
        scales = self.parts.rule.scales("edge", steps, weights / weights.sum(), setting.method.momentum)
        return None if scales is None else (dict(zip(devices.tolist(), scales[0].tolist(), strict=True)), scales[1])

    def _mean_rate(self, q: int, edge: int) -> float:
        """Return Kβ of an edge's iteration, the mean over its devices by weight; of an empty one, that of the last."""
        while q >= 0 and edge not in self.plan.iterations[q].edge_weights:
            q -= 1
        return 0.0 if q < 0 else mean_rate(self.setting, self._members(q, edge), self.index, q, self.iterations)

    def _cloud(
        self, models: Mapping[int, Any], sums: Iterable[Mapping[str, SumVector]], memories: Mapping[int, Memory]
    ) -> TrainingState:
        """Combine the edges (equations 3 and 16), and return the state after the round."""
        before, setting, parts = self.before, self.setting, self.parts
        if len(models) < parts.cloud.least:
            return replace(before, memories=memories)
        weights = {turn.edge: self.plan.iterations[turn.last].edge_weights[turn.edge] for turn in self.turns}
        bits = self.plan.fraction_bits
        frame = Frame(
            "cloud", 0, self.index, 0, len(models), sum(weights[edge] for edge in models), setting.statistics, bits,
            setting.seed,
        )  # fmt: skip
        end = len(before.model) - setting.statistics
        residuals = dict(before.residuals)
        reports: dict[int, EdgeReport] = {}
        if parts.adds_totals:
            ordered = [models[edge] for edge in sorted(models)]
            lifted = [each.part for each in ordered]
            sums = [each.extra for each in ordered] + list(sums)
            arrived = None
        else:
            arrived = self._arrivals(models, weights, residuals)
            reports = {sent.sender: EdgeReport(sent.model[:end], self._rate_of(sent.sender)) for sent in arrived}
            lifted = [parts.cloud.lift(sent, frame) for sent in arrived]
        combined = parts.cloud.combine(lifted)
        model, cloud = parts.cloud.finish(combined, before.model, before.cloud, frame)
        extra = {name: mean(total, 1, self.extra_bits) for name, total in add_extra(sums).items()}
        plain = model if arrived is None else _plain_mean(arrived, frame)
        report = CloudReport(before.model[:end], plain[:end], reports, extra, len(setting.samples))
        own, rule = parts.rule.cloud(report, before.rule)
        if own is not None:
            model = np.concatenate([own, model[end:]]).astype(np.float32)
        if not np.isfinite(model).all():
            raise DivergedError(f"round {self.index}: the global model is not finite; lower training.learning_rate")
        return TrainingState(model, memories, residuals, rule, cloud)

    def _rate_of(self, edge: int) -> float:
        """Return Σ Kβ over the edge iterations of an edge."""
        every = range(self.iterations)
        return sum(self._mean_rate(q, edge) for q in every if edge in self.plan.iterations[q].edge_weights)

    def _arrivals(
        self, models: Mapping[int, Version], weights: Mapping[int, int], residuals: dict[int, FloatVector]
    ) -> list[Sent]:
        """Return the edges' models as they arrive at the cloud: scaled by the rule and compressed; see `delivered`."""
        setting, edges = self.setting, sorted(models)
        shares = np.array([weights[edge] for edge in edges], dtype=np.float64)
        steps = np.array([self._effective_steps(edge) for edge in edges])
        scales = self.parts.rule.scales("cloud", steps, shares / shares.sum(), setting.method.momentum)
        factors = np.ones(len(edges)) if scales is None else scales[0]
        arrived = []
        for edge, factor in zip(edges, factors, strict=True):
            rng = stream(setting.seed, "compression of edges", self.index, edge)
            model, residual = delivered(
                models[edge].model, self.before.model, float(factor), self.parts.edge_compressor, setting.sizes, rng,
                residuals.get(edge),
            )  # fmt: skip
            if residual is not None:
                residuals[edge] = residual
            arrived.append(Sent(model, self.before.model, weights[edge], edge))
        return arrived

    def _effective_steps(self, edge: int) -> float:
        """Return the effective steps of an edge over its iterations, for a rule that scales updates; else 0."""
        effective = 0.0
        for q in range(self.iterations):
            if edge in self.plan.iterations[q].edge_weights:
                scales = self._scales(q, edge)
                effective += 0.0 if scales is None else scales[1]
        return effective


def train_round(
    executor: Executor,
    setting: Setting,
    index: int,
    before: TrainingState,
    devices: IntArray,
    edges: IntArray,
    participates: BoolArray,
    wants_losses: bool = False,
) -> RoundResult:
    """Train one round.

    Args:
        executor: where it is trained.
        setting: what is the same in all rounds.
        index: i, from 1.
        before: the state before the round.
        devices, edges: the scheduled devices and the edge of each, (H,).
        participates: whether a device takes part in an edge iteration, (Q, H). An edge keeps its model in an iteration
            without devices. Its weight at the cloud is that of its last iteration with some; without any it has none,
            and if no edge has any, the global model stays.
        wants_losses: whether the losses of the devices are computed.

    Raises:
        DivergedError: weights are not finite.
    """
    return _Round(executor, setting, index, before, devices, edges, participates).run(wants_losses)


def finish(aggregator: Aggregator, lifted: Sequence[Lifted], before: Version, frame: Frame) -> Version:
    """Return the next version of an edge (equation 2), given what each host, or each node, hands up.

    With fewer devices than the aggregator needs, the edge keeps its model.
    """
    if frame.size < aggregator.least:
        return before
    total = aggregator.combine([each.part for each in lifted])
    model, _ = aggregator.finish(total, before.model, aggregator.start(len(before.model) - frame.statistics), frame)
    return Version(model, before.vectors)


def add_up(aggregator: Aggregator, lifted: Sequence[Lifted]) -> Lifted:
    """Return what several hosts hand up together."""
    return Lifted(aggregator.combine([each.part for each in lifted]), add_extra(each.extra for each in lifted))


def add_extra(extras: Iterable[Mapping[str, SumVector]]) -> dict[str, SumVector]:
    """Return the exact sums of vectors by name."""
    sums: dict[str, SumVector] = {}
    for extra in extras:
        for name, vector in extra.items():
            sums[name] = vector if name not in sums else sums[name] + vector
    return sums


def delivered(
    model: FloatVector,
    received: FloatVector,
    scale: float,
    compressor: Compressor,
    sizes: Sequence[int],
    rng: np.random.Generator,
    residual: FloatVector | None,
) -> tuple[FloatVector, FloatVector | None]:
    """Return a model as it arrives, (P,), and the sender's next residual.

    The update of the trained numbers is scaled and compressed; statistics travel whole.

    Args:
        model: what the sender has, (P,).
        received: what it started from, (P,).
        scale: the factor of its update.
        compressor: how the update is sent (`hflray.compression.Compressor`).
        sizes: how many numbers each trained tensor has.
        rng: draws of the compressor.
        residual: what the sender kept; None: nothing.
    """
    whole = isinstance(compressor, Whole)
    if whole and scale == 1.0:
        return model, residual
    end = sum(sizes)
    update = np.float32(scale) * (model[:end] - received[:end])
    if not whole:
        if not np.isfinite(update).all():  # a compressor might not send what is not finite
            raise DivergedError("the trained weights are not finite; lower training.learning_rate")
        update, residual = compressor.send(update, sizes, rng, residual)
    return np.concatenate([received[:end] + update, model[end:]]).astype(np.float32), residual


def mean_rate(setting: Setting, devices: IntArray, index: int, iteration: int, iterations: int) -> float:
    """Return Kβ of an edge iteration, the mean over some devices by weight."""
    weights = setting.weights[devices].astype(np.float64)
    decay = setting.method.decay
    sums: FloatArray = np.array(
        [decay.rates(setting.rate, (index, iteration), iterations, int(k)).sum() for k in setting.steps[devices]]
    )
    return float(weights @ sums / weights.sum())


def _plain_mean(arrived: Sequence[Sent], frame: Frame) -> FloatVector:
    """Return the weighted mean of the edges' models, (P,), before any step of the cloud's aggregator."""
    plain = Mean()
    model, _ = plain.finish(plain.combine([plain.lift(sent, frame) for sent in arrived]), arrived[0].model, {}, frame)
    return model


def _losses(groups: Iterable[Sequence[int]], rows: Iterable[FloatArray]) -> Losses:
    """Return the rows of `DeviceHost.losses` by device."""
    flat = [device for group in groups for device in group]
    each = [row for part in rows for row in part]
    return {device: (float(mean), float(utility)) for device, (mean, utility) in zip(flat, each, strict=True)}
