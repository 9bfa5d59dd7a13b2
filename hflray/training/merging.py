"""How a cloud takes the model of an edge, and an edge that of a device, when it arrives (`hflray.clock.asynchronous`).

No Ray, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hflray.aggregation import Aggregator, FloatVector, Frame, Sent, State, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.exchange import Lifted, Version, add_extra, delivered, finish
from hflray.training.method import Method
from hflray.training.returned import at_cloud, vectors_for
from hflray.training.rules.base import CloudReport, EdgeReport

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


def towards(model: FloatVector, arriving: FloatVector, share: float) -> FloatArray:
    """Return (1 − α) w + α w', (P,) float64, for the share α."""
    return np.asarray((1.0 - share) * model.astype(np.float64) + share * arriving)


def mixed(aggregator: Aggregator, frame: Frame, share: float, before: Version, arrival: Lifted) -> Version:
    """Return the next version of an asynchronous edge.

    Args:
        aggregator: the edge's aggregator, a mean.
        frame: where and when the device trained.
        share: α.
        before: the edge's version before it.
        arrival: what the device hands up.

    Raises:
        DivergedError: the edge's model is not finite.
    """
    trained = finish(aggregator, [arrival], before, frame)
    new = towards(before.model, trained.model, share).astype(np.float32)
    if not np.isfinite(new).all():
        raise DivergedError(
            f"round {frame.round}: the model of edge {frame.index} is not finite; lower training.learning_rate or "
            "clock.edge.asynchronous.mixing"
        )
    return Version(new, before.vectors)


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
