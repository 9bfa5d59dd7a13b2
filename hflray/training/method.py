"""What happens inside a round, as one small value: the local rule, the aggregators and the compressors.

It travels to every actor, with the texts behind its references (`hflray.support.references`). It imports no torch,
because edges have no use for it.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np

from hflray import registry
from hflray.aggregation import Aggregator, Mean
from hflray.compression import Compressor, Whole
from hflray.config import ExperimentConfig
from hflray.config.system import RegionConfig
from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.arrays import FloatArray
from hflray.support.contract import Contract
from hflray.training.privacy import Mechanism
from hflray.training.rules.base import LocalRule, State, after_turn, corrects
from hflray.training.rules.own import OwnTraining, vectors_for
from hflray.world.faults import Faulty


@dataclass(frozen=True)
class Spec:
    """A part by name, with its options.

    Attributes:
        kind: the kind of the registry.
        name: a registered name, or a pinned reference.
        options_json: the options of its constructor as JSON with sorted keys, so that the value is hashable.
    """

    kind: registry.Kind
    name: str
    options_json: str = "{}"

    @classmethod
    def of(cls, kind: registry.Kind, section: Any) -> Self:
        """Return the part that a section with ``name`` and ``options`` names."""
        return cls(kind, section.name, json.dumps(section.options, sort_keys=True))

    @property
    def options(self) -> dict[str, Any]:
        """The options of its constructor."""
        options: dict[str, Any] = json.loads(self.options_json)
        return options

    def build(self) -> Any:
        """Return the part. A process builds it once, because parts keep no state.

        Raises:
            ConfigError: the name is unknown, or an option is unknown or wrong.
        """
        return _built(self, registry.revision())

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.kind, self.name, self.options_json, references.sources_of([self.name]))


def _unpickled(kind: registry.Kind, name: str, options_json: str, sources: object) -> Spec:
    """Return a part whose text this process holds, because it was adopted when it was unpickled."""
    return Spec(kind, name, options_json)


BASES: dict[str, type[Any]] = {"aggregator": Aggregator, "local_rule": LocalRule, "compressor": Compressor}


@functools.lru_cache(maxsize=64)
def _built(spec: Spec, revision: int) -> Any:
    if spec.kind == "local_rule":
        thing = registry.resolve(spec.kind, spec.name)
        if inspect.isfunction(thing):
            return OwnTraining(thing, references.spoken(spec.name), spec.options)
    made = registry.build(spec.kind, spec.name, **spec.options)
    base = BASES[spec.kind]
    if not isinstance(made, base):
        raise ConfigError(
            f"{references.spoken(spec.name)} is not a {base.__name__}, which every {spec.kind} is; write it as in: "
            f"class {references.short(spec.name)}({base.__name__})"
        )
    return made


Sender = Literal["device", "edge", "region"]
WITH_EVERY_RULE = ("momentum", "weight_decay", "clip", "decay")
# With one of these changed, updates are measured.
MEASURED_WITH = ("rule", "edge", "cloud", "device_compressor", "edge_compressor", "privacy")


@dataclass(frozen=True)
class RateDecay:
    """How the learning rate falls.

    Attributes:
        factor: by which it is multiplied.
        every: after a round, an edge iteration or a step of a device.
    """

    factor: float = 1.0
    every: Literal["round", "iteration", "step"] = "round"

    def rates(self, rate: float, position: tuple[int, int], edge_iterations: int, steps: int) -> FloatArray:
        """Return the learning rate of each step of a device in an edge iteration, (K,).

        Args:
            rate: β.
            position: the round, from 1, and the edge iteration, from 0.
            edge_iterations: Q.
            steps: K. A device counts K steps in every edge iteration of the past, whether it took part or not.
        """
        index, iteration = position
        passed = (index - 1) * edge_iterations + iteration
        times = {"round": index - 1, "iteration": passed, "step": passed * steps + np.arange(steps)}[self.every]
        return np.broadcast_to(rate * self.factor ** np.asarray(times, dtype=np.float64), steps)


@dataclass(frozen=True)
class Method:
    """What happens inside a round.

    Attributes:
        rule: what a device does with its gradients.
        momentum, weight_decay, clip, decay: what belongs to every rule; clip is the largest L2 norm of a gradient, and
            None is no limit.
        edge, cloud: how an edge combines devices, and the cloud edges.
        uniform: whether all devices have the weight 1 in place of their samples.
        device_compressor, edge_compressor: how a device shortens what it sends to its edge, and an edge what it sends.
        region, region_compressor: how a region combines its edges, and shortens what it sends to the cloud.
        region_iterations: how often a region combines its edges in a round; 1 without regions.
        privacy: how updates are made private; None: they are not.
        hides: whether an edge learns only the sum of what devices send (``cost.secure_aggregation``).
        measured: whether updates are measured even if all else is the default.
        faulty: which devices send something else, and what; None: no device does.
    """

    rule: Spec = Spec("local_rule", "sgd")
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    decay: RateDecay = RateDecay()
    edge: Spec = Spec("aggregator", "mean")
    cloud: Spec = Spec("aggregator", "mean")
    uniform: bool = False
    device_compressor: Spec = Spec("compressor", "none")
    edge_compressor: Spec = Spec("compressor", "none")
    region: Spec = Spec("aggregator", "mean")
    region_compressor: Spec = Spec("compressor", "none")
    region_iterations: int = 1
    privacy: Mechanism | None = None
    hides: bool = False
    measured: bool = False
    faulty: Faulty | None = None

    @classmethod
    def of(cls, config: ExperimentConfig) -> Self:
        """Return what a configuration says."""
        training, aggregation, compression = config.training, config.aggregation, config.compression
        clip, noise_multiplier = config.privacy.clip, config.privacy.noise_multiplier
        hides = config.cost.secure_aggregation.shares is not None
        faulty, regions = config.world.faulty, config.tree.region or RegionConfig(count=1)
        return cls(
            rule=Spec.of("local_rule", training.rule),
            momentum=training.momentum,
            weight_decay=training.weight_decay,
            clip=training.clip,
            decay=RateDecay(**training.learning_rate_decay.model_dump()),
            edge=Spec.of("aggregator", aggregation.edge),
            cloud=Spec.of("aggregator", aggregation.cloud),
            uniform=aggregation.weights == "uniform",
            device_compressor=Spec.of("compressor", compression.device),
            edge_compressor=Spec.of("compressor", compression.edge),
            region=Spec.of("aggregator", regions.aggregation),
            region_compressor=Spec.of("compressor", regions.compression),
            region_iterations=regions.iterations,
            privacy=None if clip is None else Mechanism(clip, noise_multiplier),
            hides=hides,
            measured=training.measure_updates,
            faulty=Faulty(**faulty.model_dump()) if faulty.share else None,
        )

    def total_rate(self, rates: FloatArray) -> float:
        """Return by how much a constant gradient of 1 moves a device in K steps with these learning rates, (K,).

        Without momentum it is Kβ, the sum of the rates. With momentum ρ the step k of 0 to K − 1 goes on in the steps
        after it, and counts (1 − ρ^(K − k))/(1 − ρ) times. A rule that reconstructs a gradient from a model divides by
        this.
        """
        if not self.momentum or not len(rates):
            return float(rates.sum())
        carried = (1 - self.momentum ** np.arange(len(rates), 0, -1)) / (1 - self.momentum)
        return float(rates @ carried)

    @property
    def measures(self) -> bool:
        """Whether devices' updates are measured: if it is asked for, or if a part is not the default."""
        return self.measured or bool(self.differing(MEASURED_WITH))

    def differing(self, names: Iterable[str]) -> list[str]:
        """Return which of some attributes are not at their defaults."""
        plain = Method()
        return [name for name in names if getattr(self, name) != getattr(plain, name)]

    def parts(self) -> Parts:
        """Return the built parts. Raises ConfigError: one is wrong, or two do not go together."""
        return _parts(self, registry.revision())

    def download_bits(self, sizes: tuple[int, ...], statistics: int, state: State) -> float:
        """Return the bits of a device's download: the whole model, and the vectors of the rule in a `state`."""
        vectors = len(vectors_for(self.parts().rule, state, 0, sum(sizes)))
        return Whole().bits(sizes) * (1 + vectors) + Whole().bits([statistics])

    def kept_bytes(self, size: int, num_devices: int, num_edges: int) -> int:
        """Return the most bytes that devices and edges keep between rounds, for `size` trained numbers."""
        parts = self.parts()
        of_device = len(after_turn(parts.rule, dict.fromkeys(parts.rule.memory))) + parts.device_compressor.remembers
        return 4 * size * (num_devices * of_device + num_edges * parts.edge_compressor.remembers)

    def sent_bits(self, place: Sender, sizes: tuple[int, ...], statistics: int, edge_iterations: int = 1) -> float:
        """Return the bits of what a device sends to its edge, or an edge or a region upwards.

        Vectors that devices send once a round (`LocalRule.once`) are spread over its Q uploads, the `edge_iterations`,
        and those of an edge, which are sums over the round, over its uploads to a region.

        Args:
            place: the sender.
            sizes: how many numbers each trained tensor has.
            statistics: how many numbers are statistics.
            edge_iterations: Q.

        Raises:
            ConfigError: the compressor sends more than the whole update, or statistics would have no noise.
        """
        parts, name = self.parts(), getattr(self, f"{place}_compressor").name
        if self.privacy is not None and statistics:
            raise _refused(
                "training.buffers",
                f"average {self.privacy.beside}, and the {statistics:,} statistics of the network's normalisation "
                "layers would be sent without noise",
                "local", "set it",
            )  # fmt: skip
        contract = Contract.of(f"compression.{place}.name", name, "a number of bits", "mend its method bits")
        bits, whole = contract.number(parts.compressor(place).bits(sizes)), Whole().bits(sizes)
        if not 0 < bits <= whole:
            raise ConfigError(
                f"compression.{place}.name: {references.spoken(name)} sends {bits:,.0f} bits for an update of "
                f"{whole:,.0f}; accepted: more than 0 and no more than the update has; change its options, or set it "
                "to none"
            )
        of_device = edge_iterations if parts.rule.once else 1
        uploads = {"device": of_device, "edge": self.region_iterations, "region": 1}[place]
        return bits + parts.rule.vectors[place != "device"] * whole / uploads + Whole().bits([statistics])


class Parts:
    """The built parts of a method, and what follows from them.

    Attributes:
        rule, edge, region, cloud, device_compressor, edge_compressor, region_compressor: see `Method`.
        changed: what belongs to every rule and is not the default: momentum, weight_decay, clip, decay.
        plain_steps: whether a kernel's step of SGD is all that a device does with a gradient.
        compresses: whether a device's update is not sent whole.
        scales: whether the rule scales updates.
        remembers: whether devices keep something between edge iterations.
        lasts: whether they keep something between rounds.
        adds_totals: whether the cloud adds the sums of the edges, and never needs the model of an edge.
    """

    def __init__(self, method: Method) -> None:
        rule: LocalRule = method.rule.build()
        self.rule, self.changed = rule, method.differing(WITH_EVERY_RULE)
        self.edge, self.cloud = _aggregator(method.edge, "edge"), _aggregator(method.cloud, "cloud")
        self.region = _aggregator(method.region, "region")
        self.device_compressor: Compressor = method.device_compressor.build()
        self.edge_compressor: Compressor = method.edge_compressor.build()
        self.region_compressor: Compressor = method.region_compressor.build()
        self.plain_steps = not self.changed and not corrects(rule)
        self.compresses = not isinstance(self.device_compressor, Whole)
        self.scales = type(rule).scales is not LocalRule.scales
        made = type(rule)
        remembers = bool(rule.memory) or (made.begin, made.finish) != (LocalRule.begin, LocalRule.finish)
        self.remembers = remembers or self.device_compressor.remembers
        self.lasts = (remembers and rule.forgets is not True) or self.device_compressor.remembers
        linear = self.edge.linear and self.cloud.linear and isinstance(self.edge_compressor, Whole)
        self.adds_totals = linear and not (rule.needs_edges or self.scales)

    def compressor(self, place: Sender) -> Compressor:
        """Return how a device, an edge or a region shortens what it sends."""
        return {"device": self.device_compressor, "edge": self.edge_compressor, "region": self.region_compressor}[place]


@functools.lru_cache(maxsize=64)
def _parts(method: Method, revision: int) -> Parts:
    parts = Parts(method)
    _check_parts(method, parts)
    return parts


def _aggregator(spec: Spec, place: Literal["edge", "region", "cloud"]) -> Aggregator:
    made: Aggregator = spec.build()
    if not (made.at_cloud if place == "cloud" else made.at_edge):
        other = "edge" if place == "cloud" else "cloud"
        raise ConfigError(
            f"aggregation.{place}.name: {references.spoken(spec.name)} combines at the {other} only; accepted: one for "
            f"this place; write it as aggregation.{other}"
        )
    return made


def _refused(setting: str, got: str, accepted: str, fix: str) -> ConfigError:
    """Return the error of two settings that do not go together."""
    return ConfigError(f"{setting}: got {got}; accepted with it: {accepted}; {fix}")


def _refuse(cases: Iterable[tuple[object, str, str, str, str]]) -> None:
    """Raise the error of the first case that applies: whether it does, and what `_refused` takes."""
    for applies, setting, got, accepted, fix in cases:
        if applies:
            raise _refused(setting, got, accepted, fix)


def _check_parts(method: Method, parts: Parts) -> None:
    """Raise ConfigError if two parts of a method do not go together."""
    rule, plain, spoken = parts.rule, Method(), references.spoken
    name, of_edge, of_cloud = spoken(method.rule.name), spoken(method.edge.name), spoken(method.cloud.name)
    steps = [setting for setting in parts.changed if setting != "decay"] if isinstance(rule, OwnTraining) else []
    _refuse([
        *((True, f"training.{setting}", f"{getattr(method, setting)} with a function of your own as training.rule, "
           "which makes its own steps", "the default", "let the function do it") for setting in steps),
        (rule.needs_uniform and not method.uniform, "training.rule.name",
         f"{name}, which gives all devices the same weight", "aggregation.weights = uniform", "set it"),
        (rule.makes_model and method.cloud != plain.cloud, "aggregation.cloud.name",
         f"{of_cloud} with the rule {name}, which makes the global model", "mean", "remove it"),
        (rule.extra and not rule.vectors[0] and method.device_compressor != plain.device_compressor,
         "compression.device.name",
         f"{spoken(method.device_compressor.name)} with the rule {name}, for which edges need whole models",
         "none", "remove it"),
        (parts.scales and method.decay.factor < 1 and method.decay.every != "round",
         "training.learning_rate_decay.every",
         f"{method.decay.every} with the rule {name}, which counts steps of one rate in a round",
         "round", "set it, or factor to 1"),
        (method.hides and not parts.edge.linear, "aggregation.edge.name",
         f"{of_edge} with cost.secure_aggregation.shares, which hides each model from its edge",
         "mean", "remove one of them"),
        (method.hides and method.device_compressor != plain.device_compressor, "compression.device.name",
         f"{spoken(method.device_compressor.name)} with cost.secure_aggregation.shares, whose masks make each message "
         "as long as a whole model", "none", "remove one of them"),
    ])  # fmt: skip
    if method.privacy is not None:
        beside = method.privacy.beside
        _refuse([
            (not method.uniform, "aggregation.weights",
             f"samples {beside}, and a device would change a sum by more than its clipped update", "uniform", "set it"),
            (type(parts.edge) is not Mean, "aggregation.edge.name",
             f"{of_edge} {beside}, whose noise belongs to a sum", "mean", "remove it"),
            (rule.extra or rule.vectors[0], "training.rule.name",
             f"{name} {beside}, and its further vectors would leave a device without noise",
             "sgd, fedprox, fednova, or your own without `extra`", "take one of them"),
        ])  # fmt: skip


def check_revision(method: Method, revision: int, edge_iterations: int) -> None:
    """Raise ConfigError if a checkpoint's run has begun with another revision of its rule (`LocalRule.revision`)."""
    if edge_iterations > 1 and revision != (now := method.parts().rule.revision):
        raise ConfigError(
            f"training.rule.name: the run began with revision {revision} of {references.spoken(method.rule.name)}, and "
            f"this hflray has revision {now}, which computes something else; accepted: {now}; begin the run anew"
        )


def check_surroundings(method: Method, config: ExperimentConfig) -> None:
    """Raise ConfigError if a part needs another tree, or clocks that wait, where the configuration has others.

    With regions, and with a cloud that does not wait, nobody has the models of all edges at one moment. Without a cloud
    nobody has them at all, and an asynchronous edge takes one device's model at a time.
    """
    parts, plain, privacy = method.parts(), Method(), method.privacy
    rule, name = parts.rule, references.spoken(method.rule.name)
    needs_edges, has_vectors = rule.needs_edges or parts.scales, bool(rule.extra or any(rule.vectors))
    needs_all = needs_edges or rule.makes_model
    gossips, has_regions = config.tree.gossip is not None, config.tree.region is not None
    cloud, edges = config.clock.cloud.asynchronous is not None, config.clock.edge.asynchronous is not None
    of_cloud, kind = "with an asynchronous clock.cloud", config.clock.cloud.kind
    counts = "where an edge may make another number of edge iterations than training.edge_iterations"
    clock = "clock.edge.asynchronous" if kind == "synchronous" else f"clock.cloud = {kind}"
    of_edges = "with clock.edge.asynchronous, whose edges take one device's model at a time"
    _refuse([
        (gossips and (has_vectors or needs_all), "training.rule.name", f"{name} with tree.gossip, and it needs a cloud",
         "sgd, fedprox, or your own without vectors", "take one of them"),
        (has_regions and needs_edges, "training.rule.name", f"{name} with tree.region, for which it is not defined",
         "sgd, fedprox, scaffold, feddyn, or your own that needs no edge's model", "take one of them"),
        (gossips and method.edge_compressor != plain.edge_compressor, "compression.edge.name",
         f"{references.spoken(method.edge_compressor.name)} with tree.gossip, whose edges mix whole models", "none",
         "remove it"),
        (cloud and needs_all, "training.rule.name",
         f"{name} {of_cloud}, and it needs the models of all edges at one moment",
         "sgd, fedprox, scaffold, or your own that needs no other edge", "take one of them, or another cloud"),
        (cloud and method.cloud != plain.cloud, "aggregation.cloud.name",
         f"{references.spoken(method.cloud.name)} {of_cloud}, which never combines several edges", "mean",
         "remove one of them"),
        (kind == "semi_synchronous" and rule.once, "training.rule.name",
         f"{name} with {clock}, {counts}, over which its vectors are spread",
         "sgd, fedprox, feddyn, fednova, mtgc, or your own without `once`", "take one of them, or another cloud"),
        ((edges or kind != "synchronous") and method.decay.factor < 1 and method.decay.every != "round",
         "training.learning_rate_decay.every", f"{method.decay.every} with {clock}, {counts}", "round",
         "set it, or factor to 1"),
        (edges and type(parts.edge) is not Mean, "aggregation.edge.name",
         f"{references.spoken(method.edge.name)} {of_edges}", "mean", "remove one of them"),
        (edges and (has_vectors or needs_all), "training.rule.name", f"{name} {of_edges}",
         "sgd, fedprox, or your own without vectors", "take one of them"),
        (edges and privacy is not None, "privacy.clip",
         f"{privacy.clip if privacy else 0:g} {of_edges}, and its noise belongs to a sum of several", "null",
         "remove one of them"),
        (edges and method.hides, "cost.secure_aggregation.shares", f"a number {of_edges}", "null",
         "remove one of them"),
    ])  # fmt: skip
