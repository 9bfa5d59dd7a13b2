"""What edges do with the models of devices, and what stands above the edges with theirs.

An edge combines its devices (equation 2), at once or as they arrive. Regions combine their edges. A cloud combines
edges or regions at one moment (equations 3 and 16), or takes each edge's model when it arrives. Edges without a cloud
mix their models with their neighbours'.

No Ray, no torch. The updates of an asynchronous cloud are those of `hflray.clock.asynchronous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from hflray.aggregation import Aggregator, FloatVector, Frame, Mean, Sent, State, SumVector, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.fleet.tree import mix
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.exchange import Lifted, Version, add_extra, delivered
from hflray.training.iterations import Iterations
from hflray.training.method import Method, Spec
from hflray.training.privacy import noised
from hflray.training.rules.base import CloudReport, EdgeReport
from hflray.training.rules.own import at_cloud, vectors_for
from hflray.training.state import TrainingState

BUFFER, NEWEST = "buffer", "newest."  # names among what the cloud keeps


class Cloud(NamedTuple):
    """What the cloud has between two updates.

    Attributes:
        model: the global model, (P,).
        rule: what it keeps for the local rule, by name.
        stored: what it keeps for its clock, by name: the sum in the buffer, (P,) float64, or the newest models.
        residuals: what the edges keep of their compressed updates, by edge. Updates of an edge follow each other, so
            that these are up to date.
    """

    model: FloatVector
    rule: State
    stored: State
    residuals: Mapping[int, FloatVector]


@dataclass(frozen=True)
class Merge:
    """An update of the global model.

    Attributes:
        method: what happens inside a round.
        seed: the experiment's seed.
        sizes: how many numbers each trained tensor of the network has.
        num_devices: N.
        position: the round in which the edge's turn began, and the number of its last edge iteration in that round.
        edge: the edge.
        rate: Σ Kβ of the turn.
        extra_bits: the binary places of the sums of a rule's vectors.
        share: `hflray.clock.asynchronous.Asynchrony.share`.
        shares: the share of each edge's newest model with FedAT, by edge; empty otherwise.
        buffer: K, how many updates the cloud's buffer holds; 0: there is none.
        steps: whether the global model changes.
    """

    method: Method
    seed: int
    sizes: tuple[int, ...]
    num_devices: int
    position: tuple[int, int]
    edge: int
    rate: float
    extra_bits: int
    share: float
    shares: tuple[tuple[int, float], ...] = ()
    buffer: int = 0
    steps: bool = True


@dataclass(frozen=True)
class Gather:
    """A region combines its edges.

    Attributes:
        method: what happens inside a round.
        frame: where and when.
        sizes: how many numbers each trained tensor of the network has.
        edges: the edges whose models it combines.
        weights: the weight of each.
    """

    method: Method
    frame: Frame
    sizes: tuple[int, ...]
    edges: tuple[int, ...]
    weights: tuple[int, ...]


def add_up(aggregator: Aggregator, lifted: Sequence[Lifted]) -> Lifted:
    """Return what several hosts hand up together."""
    return beside(lifted)._replace(part=aggregator.combine([host.part for host in lifted]))


def beside(lifted: Sequence[Lifted]) -> Lifted:
    """Return what several hosts hand up together beside models."""
    measured = {device: row for part in lifted for device, row in part.measured.items()}
    return Lifted(None, add_extra(part.extra for part in lifted), measured)


class EdgeWorker:
    """Combines what the devices of an edge send; an actor of Ray hosts it, or this process.

    It keeps nothing, so that one worker may serve several edges, and regions. The first one also is the place of an
    asynchronous cloud. A method that `tells` returns also what hosts hand up beside models.

    All methods raise DivergedError if a model is not finite.
    """

    def finish(
        self, aggregator: Spec, frame: Frame, tells: bool, before: Version, *lifted: Lifted
    ) -> Version | tuple[Version, Lifted]:
        """Return the edge's version of the next edge iteration (equation 2), given what each host hands up.

        With fewer devices than the aggregator needs, the edge keeps its model.
        """
        version = _finished(aggregator.build(), frame, before, lifted)
        return (version, beside(lifted)) if tells else version

    def mix(
        self, aggregator: Spec, frame: Frame, tells: bool, share: float, before: Version, arrival: Lifted
    ) -> Version | tuple[Version, Lifted]:
        """Return the next version of an asynchronous edge, whose model moves towards a device's by the share α."""
        trained = _finished(aggregator.build(), frame, before, [arrival])
        new = towards(before.model, trained.model, share)
        noun, also = f"the model of edge {frame.index}", " or clock.edge.asynchronous.mixing"
        version = Version(_finite(new, frame.round, noun, also), before.vectors)
        return (version, beside([arrival])) if tells else version

    def close(self, aggregator: Spec, frame: Frame, *lifted: Lifted) -> Lifted:
        """Return what all hosts hand up together after the last edge iteration, with the noise of privacy.

        The cloud takes this in place of the edge's model, if it may add up edges.
        """
        total = add_up(aggregator.build(), lifted)
        return total._replace(part=noised(total.part, frame))

    def total(self, aggregator: Spec, *lifted: Lifted) -> Lifted:
        """Return what several hosts of one node hand up together."""
        return add_up(aggregator.build(), lifted)

    def gather(
        self, gather: Gather, before: Version, residuals: Mapping[int, FloatVector], *versions: Version
    ) -> tuple[Version, Mapping[int, FloatVector]]:
        """Return the next version of a region, and what its edges keep of their compressed updates, by edge.

        Args:
            gather: who sends.
            before: the region's version, with which its edges began.
            residuals: what the edges have kept.
            versions: the edges' models.
        """
        parts, frame, rests = gather.method.parts(), gather.frame, dict(residuals)
        if len(gather.edges) < parts.region.least:
            return before, rests
        models = dict(zip(gather.edges, (version.model for version in versions), strict=True))
        at = frame.seed, "edge", frame.round, frame.iteration
        arrived = _arrived(gather.method, gather.sizes, at, models, before.model, gather.weights, rests)
        start = parts.region.start(sum(gather.sizes))
        combined = parts.region.combine([parts.region.lift(sent, frame) for sent in arrived])
        model, _ = finished(parts.region, combined, before.model, start, frame)
        return Version(_finite(model, frame.round, f"the model of region {frame.index}"), before.vectors), rests

    def merge(
        self, merge: Merge, cloud: Cloud, trained: Version, fetched: Version, *beside: Lifted
    ) -> tuple[Version, Cloud]:
        """Return what the edge fetches next, and the cloud after an update.

        Args:
            merge: the update.
            cloud: the cloud before it.
            trained: the edge's model.
            fetched: what the edge began with.
            beside: what the edge's devices handed up beside their models, of each edge iteration.
        """
        parts, edge, end, rests = merge.method.parts(), merge.edge, sum(merge.sizes), dict(cloud.residuals)
        at = merge.seed, "edge", *merge.position
        ((model, *_),) = _arrived(merge.method, merge.sizes, at, {edge: trained.model}, fetched.model, [1], rests)
        stored = dict(cloud.stored)
        if merge.shares:
            stored[f"{NEWEST}{edge}"] = model
            newest = [share * stored[f"{NEWEST}{m}"].astype(np.float64) for m, share in merge.shares]
            after = np.sum(newest, axis=0)
        elif merge.buffer:
            moved = merge.share * (model.astype(np.float64) - fetched.model)
            # Statistics are means: differences from models that the cloud has left could make a variance negative.
            moved[end:] = min(merge.share, 1.0 / merge.buffer) * (model[end:].astype(np.float64) - cloud.model[end:])
            stored[BUFFER] = stored[BUFFER] + moved if BUFFER in stored else moved
            after = cloud.model.astype(np.float64) + (stored.pop(BUFFER) if merge.steps else 0.0)
        else:
            after = towards(cloud.model, model, merge.share)
        new = _finite(after, merge.position[0], also=" or clock.cloud.asynchronous.mixing")
        extra = {name: mean(total, 1, merge.extra_bits) for name, total in add_extra(b.extra for b in beside).items()}
        reports = {edge: EdgeReport(model[:end], merge.rate)}
        _, rule = at_cloud(
            parts.rule, CloudReport(cloud.model[:end], new[:end], reports, extra, merge.num_devices), cloud.rule
        )
        return Version(new, vectors_for(parts.rule, rule, edge, end)), Cloud(new, rule, stored, rests)


def _finished(aggregator: Aggregator, frame: Frame, before: Version, lifted: Sequence[Lifted]) -> Version:
    if frame.size < aggregator.least:
        return before
    total = noised(aggregator.combine([host.part for host in lifted]), frame)
    start = aggregator.start(len(before.model) - frame.statistics)
    model, _ = finished(aggregator, total, before.model, start, frame)
    return Version(model, before.vectors)


def _finite(model: FloatArray | FloatVector, index: int, noun: str = "the global model", also: str = "") -> FloatVector:
    """Return a model as float32. Raises DivergedError: it is not finite."""
    new = model.astype(np.float32)
    if not np.isfinite(new).all():
        raise DivergedError(f"round {index}: {noun} is not finite; lower training.learning_rate{also}")
    return new


def _arrived(
    method: Method,
    sizes: Sequence[int],
    at: tuple[Any, ...],
    models: Mapping[int, FloatVector],
    before: FloatVector,
    weights: Sequence[int],
    residuals: dict[int, FloatVector],
    scales: Iterable[float] | None = None,
) -> list[Sent]:
    """Return models as they arrive: scaled by the rule and compressed; see `delivered`.

    Args:
        method: what happens inside a round.
        sizes: how many numbers each trained tensor has.
        at: the seed, who sends (``edge`` or ``region``), and the position of the draws.
        models: the model of each sender.
        before: what all started from, (P,).
        weights: the weight of each.
        residuals: what the senders keep, which changes here.
        scales: the factor of each update; None: 1.
    """
    place: Literal["edge", "region"]
    seed, place, *position = at
    compressor, arrived = method.parts().compressor(place), []
    for (sender, model), weight, scale in zip(models.items(), weights, scales or [1.0] * len(models), strict=True):
        rng = stream(seed, f"compression of {place}s", *position, sender)
        sent, residual = delivered(model, before, scale, compressor, sizes, rng, residuals.get(sender), place)
        if residual is not None:
            residuals[sender] = residual
        arrived.append(Sent(sent, before, weight, sender))
    return arrived


def towards(model: FloatVector, arriving: FloatVector, share: float) -> FloatArray:
    """Return (1 − α) w + α w', (P,) float64, for the share α."""
    return np.asarray((1.0 - share) * model.astype(np.float64) + share * arriving)


def combine(
    iterations: Iterations,
    before: TrainingState,
    models: Mapping[int, Any],
    weights: Mapping[int, int],
    sums: Iterable[Mapping[str, SumVector]],
) -> TrainingState:
    """Return the state after a round of a cloud that waits; what devices keep is that of `before`.

    Args:
        iterations: the edge iterations of the round.
        before: the state before it, with what its devices keep now.
        models: what each edge or region hands up, by its number: a `Version`, or a `Lifted` where the cloud adds the
            edges' sums.
        weights: the weight of each, by its number.
        sums: the sums of the rule's vectors, of each edge and edge iteration.

    Raises:
        DivergedError: the global model is not finite.
    """
    setting, index, senders = iterations.setting, iterations.index, sorted(models)
    parts = setting.method.parts()
    frame = iterations.frame_above("cloud", 0, 0, list(weights.values()))
    if len(models) < parts.cloud.least:
        return before
    end = len(before.model) - setting.statistics
    residuals = dict(before.residuals)
    reports: dict[int, EdgeReport] = {}
    plain: FloatVector | None = None
    if all(isinstance(model, Lifted) for model in models.values()):
        totals = [models[sender] for sender in senders]
        lifted, sums = [total.part for total in totals], [*(total.extra for total in totals), *sums]
    else:
        is_edge = setting.tree.regions is None
        scales = iterations.edge_scales(senders).tolist() if is_edge else None
        sent, of_each = {sender: models[sender].model for sender in senders}, [weights[sender] for sender in senders]
        at = setting.seed, "edge" if is_edge else "region", index
        arrived = _arrived(setting.method, setting.sizes, at, sent, before.model, of_each, residuals, scales)
        if is_edge:
            reports = {of.sender: EdgeReport(of.model[:end], iterations.rate_of(of.sender)) for of in arrived}
        lifted = [parts.cloud.lift(of, frame) for of in arrived]
        # The weighted mean, before any step of the cloud's aggregator.
        total = Mean().combine([Mean().lift(of, frame) for of in arrived])
        plain, _ = Mean().finish(total, arrived[0].model, {}, frame)
    model, cloud = finished(parts.cloud, parts.cloud.combine(lifted), before.model, before.cloud, frame)
    extra = {name: mean(total, 1, iterations.extra_bits) for name, total in add_extra(sums).items()}
    mean_model = model if plain is None else plain
    report = CloudReport(before.model[:end], mean_model[:end], reports, extra, len(setting.samples))
    trained, rule = at_cloud(parts.rule, report, before.rule)
    if trained is not None:
        model = np.concatenate([trained, model[end:]])
    return replace(before, model=_finite(model, index), residuals=residuals, rule=rule, cloud=cloud)


def mix_edges(iterations: Iterations, before: TrainingState, models: Mapping[int, FloatVector]) -> TrainingState:
    """Return the state after a round without a cloud, in which some edges have sent their models to their neighbours.

    The new model of an edge is Σ_j W_ij w_j, in float64 and in the order of the edges, and that of one that is down
    stays. The global model, which nobody trains on, is the mean over all edges.

    Args:
        iterations: the edge iterations of the round.
        before: the state before it, with what its devices keep now.
        models: the model of each edge that mixes, by edge.

    Raises:
        DivergedError: a model is not finite.
    """
    graph, edges = iterations.setting.tree.graph, range(iterations.setting.num_edges)
    assert graph is not None
    weights = graph.weights_among(np.isin(edges, list(models)))
    sent = [models.get(edge, before.edges.get(edge, before.model)) for edge in edges]
    mixed = [model.astype(np.float32) for model in mix(weights, sent)]
    (total,) = mix(np.ones((1, len(edges))), mixed)
    mean_model = _finite(total / len(edges), iterations.index)
    return replace(before, model=mean_model, edges=dict(zip(edges, mixed, strict=True)))
