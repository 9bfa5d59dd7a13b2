"""What stands above the edges.

A cloud combines edges or regions at one moment (equations 3 and 16), or takes each edge's model when it arrives.
Regions combine their edges. Edges without a cloud mix their models with their neighbours'.

No Ray, no torch. The updates of an asynchronous cloud are those of `hflray.clock.asynchronous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from hflray.aggregation import FloatVector, Frame, Mean, Sent, State, SumVector, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.fleet.tree import mix
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.exchange import Lifted, Version, add_extra, delivered
from hflray.training.iterations import Iterations
from hflray.training.method import Method
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
        buffers: whether the cloud has a buffer.
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
    buffers: bool = False
    steps: bool = True


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
    """Return the state after a round; what devices keep is that of `before`.

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
    setting = iterations.setting
    parts = setting.method.parts()
    frame = iterations.frame_above("cloud", 0, 0, list(weights.values()))
    if len(models) < parts.cloud.least:
        return before
    end = len(before.model) - setting.statistics
    residuals = dict(before.residuals)
    reports: dict[int, EdgeReport] = {}
    arrived: list[Sent] = []
    if all(isinstance(model, Lifted) for model in models.values()):
        totals = [models[sender] for sender in sorted(models)]
        lifted, sums = [total.part for total in totals], [*(total.extra for total in totals), *sums]
    else:
        arrived = _arrivals(iterations, before, models, weights, residuals)
        if setting.tree.regions is None:
            reports = {sent.sender: EdgeReport(sent.model[:end], iterations.rate_of(sent.sender)) for sent in arrived}
        lifted = [parts.cloud.lift(sent, frame) for sent in arrived]
    model, cloud = finished(parts.cloud, parts.cloud.combine(lifted), before.model, before.cloud, frame)
    extra = {name: mean(total, 1, iterations.extra_bits) for name, total in add_extra(sums).items()}
    plain = _plain_mean(arrived, frame) if arrived else model
    report = CloudReport(before.model[:end], plain[:end], reports, extra, len(setting.samples))
    trained, rule = at_cloud(parts.rule, report, before.rule)
    if trained is not None:
        model = np.concatenate([trained, model[end:]]).astype(np.float32)
    _check_finite(model, iterations.index)
    return replace(before, model=model, residuals=residuals, rule=rule, cloud=cloud)


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
    mean_model = (total / len(edges)).astype(np.float32)
    _check_finite(mean_model, iterations.index)
    return replace(before, model=mean_model, edges=dict(zip(edges, mixed, strict=True)))


def _check_finite(model: FloatVector, index: int) -> None:
    if not np.isfinite(model).all():
        raise DivergedError(f"round {index}: the global model is not finite; lower training.learning_rate")


def _arrivals(
    iterations: Iterations,
    before: TrainingState,
    models: Mapping[int, Version],
    weights: Mapping[int, int],
    residuals: dict[int, FloatVector],
) -> list[Sent]:
    """Return models as they arrive at the cloud: scaled by the rule and compressed; see `delivered`."""
    place: Literal["edge", "region"] = "edge"
    setting, senders, parts = iterations.setting, sorted(models), iterations.setting.method.parts()
    if setting.tree.regions is None:
        scales, compressor = iterations.edge_scales(senders), parts.edge_compressor
    else:
        scales, compressor, place = np.ones(len(senders)), parts.region_compressor, "region"
    arrived = []
    for sender, factor in zip(senders, scales, strict=True):
        rng = stream(setting.seed, f"compression of {place}s", iterations.index, sender)
        model, residual = delivered(
            models[sender].model, before.model, float(factor), compressor, setting.sizes, rng,
            residuals.get(sender), place,
        )  # fmt: skip
        if residual is not None:
            residuals[sender] = residual
        arrived.append(Sent(model, before.model, weights[sender], sender))
    return arrived


def _plain_mean(arrived: Sequence[Sent], frame: Frame) -> FloatVector:
    """Return the weighted mean of the edges' models, (P,), before any step of the cloud's aggregator."""
    plain = Mean()
    model, _ = plain.finish(plain.combine([plain.lift(sent, frame) for sent in arrived]), arrived[0].model, {}, frame)
    return model


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


def gathered(
    gather: Gather, before: Version, versions: Sequence[Version], residuals: Mapping[int, FloatVector]
) -> tuple[Version, Mapping[int, FloatVector]]:
    """Return the next version of a region, and what its edges keep of their compressed updates.

    Args:
        gather: who sends.
        before: the region's version, with which its edges began.
        versions: the edges' models.
        residuals: what the edges have kept, by edge.

    Raises:
        DivergedError: the model is not finite.
    """
    parts, frame, residuals = gather.method.parts(), gather.frame, dict(residuals)
    if len(gather.edges) < parts.region.least:
        return before, residuals
    lifted = []
    for edge, weight, version in zip(gather.edges, gather.weights, versions, strict=True):
        rng = stream(frame.seed, "compression of edges", frame.round, frame.iteration, edge)
        model, residual = delivered(
            version.model, before.model, 1.0, parts.edge_compressor, gather.sizes, rng, residuals.get(edge), "edge"
        )
        if residual is not None:
            residuals[edge] = residual
        lifted.append(parts.region.lift(Sent(model, before.model, weight, edge), frame))
    start = parts.region.start(sum(gather.sizes))
    model, _ = finished(parts.region, parts.region.combine(lifted), before.model, start, frame)
    if not np.isfinite(model).all():
        raise DivergedError(
            f"round {frame.round}: the model of region {frame.index} is not finite; lower training.learning_rate"
        )
    return Version(model, before.vectors), residuals


def merged(
    merge: Merge, cloud: Cloud, trained: Version, fetched: Version, beside: Sequence[Lifted]
) -> tuple[Version, Cloud]:
    """Return what the edge fetches next, and the cloud after an update.

    Args:
        merge: the update.
        cloud: the cloud before it.
        trained: the edge's model.
        fetched: what the edge began with.
        beside: what the edge's devices handed up beside their models, of each edge iteration.

    Raises:
        DivergedError: the global model is not finite.
    """
    parts, edge, end = merge.method.parts(), merge.edge, sum(merge.sizes)
    residuals = dict(cloud.residuals)
    rng = stream(merge.seed, "compression of edges", *merge.position, edge)
    model, residual = delivered(
        trained.model, fetched.model, 1.0, parts.edge_compressor, merge.sizes, rng, residuals.get(edge), "edge"
    )
    if residual is not None:
        residuals[edge] = residual
    stored = dict(cloud.stored)
    after: FloatArray
    if merge.shares:
        stored[f"{NEWEST}{edge}"] = model
        newest = [share * stored[f"{NEWEST}{m}"].astype(np.float64) for m, share in merge.shares]
        after = np.sum(newest, axis=0)
    elif merge.buffers:
        moved = merge.share * (model.astype(np.float64) - fetched.model)
        stored[BUFFER] = stored[BUFFER] + moved if BUFFER in stored else moved
        after = cloud.model.astype(np.float64) + (stored.pop(BUFFER) if merge.steps else 0.0)
    else:
        after = towards(cloud.model, model, merge.share)
    new = after.astype(np.float32)
    if not np.isfinite(new).all():
        raise DivergedError(
            f"round {merge.position[0]}: the global model is not finite; lower training.learning_rate or "
            "clock.cloud.asynchronous.mixing"
        )
    extra = {name: mean(total, 1, merge.extra_bits) for name, total in add_extra(b.extra for b in beside).items()}
    report = CloudReport(
        cloud.model[:end], new[:end], {edge: EdgeReport(model[:end], merge.rate)}, extra, merge.num_devices
    )
    _, rule = at_cloud(parts.rule, report, cloud.rule)
    return Version(new, vectors_for(parts.rule, rule, edge, end)), Cloud(new, rule, stored, residuals)
