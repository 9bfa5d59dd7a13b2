"""What happens inside a round, as one small value: the local rule, the aggregators and the compressors.

It travels to every actor, with the texts behind its references (`hflray.support.references`). It imports no torch,
because edges have no use for it.
"""

from __future__ import annotations

import functools
import inspect
import json
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np

from hflray import registry
from hflray.aggregation import Aggregator
from hflray.compression import Compressor, Whole
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.arrays import FloatArray
from hflray.support.returned import Contract
from hflray.training.memory import after_turn
from hflray.training.privacy.mechanism import Mechanism
from hflray.training.refusals import check_rule, check_secrecy, check_statistics
from hflray.training.rules import LocalRule
from hflray.training.rules.base import corrects
from hflray.training.rules.own import OwnTraining
from hflray.world.faulty import Faulty


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
        return _built(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.kind, self.name, self.options_json, references.sources_of([self.name]))


def _unpickled(kind: registry.Kind, name: str, options_json: str, sources: object) -> Spec:
    """Return a part whose text this process holds, because it was adopted when it was unpickled."""
    return Spec(kind, name, options_json)


@functools.lru_cache(maxsize=64)
def _built(spec: Spec) -> Any:
    bases: dict[str, type[Any]] = {"aggregator": Aggregator, "local_rule": LocalRule, "compressor": Compressor}
    if spec.kind == "local_rule":
        thing = registry.resolve(spec.kind, spec.name)
        if inspect.isfunction(thing):
            return OwnTraining(thing, references.spoken(spec.name), spec.options)
    made = registry.build(spec.kind, spec.name, **spec.options)
    base = bases[spec.kind]
    if not isinstance(made, base):
        raise ConfigError(
            f"{references.spoken(spec.name)} is not a {base.__name__}, which every {spec.kind} is; write it as in: "
            f"class {references.short(spec.name)}({base.__name__})"
        )
    return made


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
        faulty, regions = config.world.faulty, config.tree.region
        of_regions: dict[str, Any] = {}
        if regions is not None:
            of_regions = {
                "region": Spec.of("aggregator", regions.aggregation),
                "region_compressor": Spec.of("compressor", regions.compression),
                "region_iterations": regions.iterations,
            }
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
            **of_regions,
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
        plain = Method()
        return self.measured or any(getattr(self, name) != getattr(plain, name) for name in MEASURED_WITH)

    def parts(self) -> Parts:
        """Return the built parts. Raises ConfigError: one is wrong, or two do not go together."""
        return _parts(self)

    def device_bits(self, sizes: tuple[int, ...], statistics: int, edge_iterations: int = 1) -> float:
        """Return the bits of a device's upload, for tensors of so many trained numbers, and statistics.

        Vectors that are sent once a round (`LocalRule.once`) are spread over its Q uploads, the `edge_iterations`.
        """
        return self._bits("device", sizes, statistics, edge_iterations if self.parts().rule.once else 1)

    def edge_bits(self, sizes: tuple[int, ...], statistics: int) -> float:
        """Return the bits that an edge sends to the cloud, or to its region; see `device_bits`."""
        return self._bits("edge", sizes, statistics, 1)

    def region_bits(self, sizes: tuple[int, ...], statistics: int) -> float:
        """Return the bits that a region sends to the cloud; see `device_bits`."""
        return self._bits("region", sizes, statistics, 1)

    def kept_bytes(self, size: int, num_devices: int, num_edges: int) -> int:
        """Return the most bytes that devices and edges keep between rounds, for `size` trained numbers."""
        parts = self.parts()
        each = len(after_turn(parts.rule, dict.fromkeys(parts.rule.memory))) + parts.device_compressor.remembers
        return 4 * size * (num_devices * each + num_edges * parts.edge_compressor.remembers)

    def _bits(
        self, place: Literal["device", "edge", "region"], sizes: tuple[int, ...], statistics: int, uploads: int
    ) -> float:
        parts, name = self.parts(), f"{place}_compressor"
        compressor, spec = getattr(parts, name), getattr(self, name)
        check_statistics(self, statistics)
        contract = Contract.of(f"compression.{place}.name", spec.name, "a number of bits", "mend its method bits")
        bits, whole = contract.number(compressor.bits(sizes)), Whole().bits(sizes)
        if not 0 < bits <= whole:
            raise ConfigError(
                f"compression.{place}.name: {references.spoken(spec.name)} sends {bits:,.0f} bits for an update of "
                f"{whole:,.0f}; accepted: more than 0 and no more than the update has; change its options, or set it "
                "to none"
            )
        return bits + parts.rule.vectors[place != "device"] * whole / uploads + Whole().bits([statistics])


@dataclass(frozen=True, eq=False)
class Parts:
    """The built parts of a method, and what follows from them.

    Attributes:
        rule, edge, cloud, device_compressor, edge_compressor, region, region_compressor: see `Method`.
        plain_steps: whether a kernel's step of SGD is all that a device does with a gradient.
        compresses: whether a device's update is not sent whole.
        scales: whether the rule scales updates.
        remembers: whether devices keep something between edge iterations.
        lasts: whether they keep something between rounds.
        adds_totals: whether the cloud adds the sums of the edges, and never needs the model of an edge.
    """

    rule: LocalRule
    edge: Aggregator
    cloud: Aggregator
    device_compressor: Compressor
    edge_compressor: Compressor
    region: Aggregator
    region_compressor: Compressor
    plain_steps: bool
    compresses: bool
    scales: bool
    remembers: bool
    lasts: bool
    adds_totals: bool


@functools.lru_cache(maxsize=64)
def _parts(method: Method) -> Parts:
    rule: LocalRule = method.rule.build()
    edge, cloud = _aggregator(method.edge, "edge"), _aggregator(method.cloud, "cloud")
    to_edge: Compressor = method.device_compressor.build()
    to_cloud: Compressor = method.edge_compressor.build()
    defaults = {each.name: each.default for each in fields(Method)}
    shared = ("momentum", "weight_decay", "clip", "decay")
    changed = [name for name in shared if getattr(method, name) != defaults[name]]
    plain = not changed and not corrects(rule)
    compresses, hop_is_whole = not isinstance(to_edge, Whole), isinstance(to_cloud, Whole)
    scaled = type(rule).scales is not LocalRule.scales
    check_rule(method, rule, changed)
    check_secrecy(method, edge, rule)
    remembers = bool(rule.memory) or type(rule).begin is not LocalRule.begin
    return Parts(
        rule=rule,
        edge=edge,
        cloud=cloud,
        device_compressor=to_edge,
        edge_compressor=to_cloud,
        region=_aggregator(method.region, "region"),
        region_compressor=method.region_compressor.build(),
        plain_steps=plain,
        compresses=compresses,
        scales=scaled,
        remembers=remembers or to_edge.remembers,
        lasts=(remembers and rule.forgets is not True) or to_edge.remembers,
        adds_totals=edge.linear and cloud.linear and hop_is_whole and not rule.needs_edges and not scaled,
    )


def _aggregator(spec: Spec, place: Literal["edge", "region", "cloud"]) -> Aggregator:
    made: Aggregator = spec.build()
    if not (made.at_cloud if place == "cloud" else made.at_edge):
        other = "edge" if place == "cloud" else "cloud"
        raise ConfigError(
            f"aggregation.{place}.name: {references.spoken(spec.name)} combines at the {other} only; accepted: one for "
            f"this place; write it as aggregation.{other}"
        )
    return made
