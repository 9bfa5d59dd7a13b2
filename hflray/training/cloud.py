"""The cloud of Algorithm 1: it combines all edges at one moment (equations 3 and 16), or takes each when it arrives.

No Ray, no torch. The updates of an asynchronous cloud are those of `hflray.clock.asynchronous`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from hflray.aggregation import FloatVector, Frame, Mean, Sent, State, SumVector, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.exchange import Lifted, Version, add_extra, delivered
from hflray.training.method import Method
from hflray.training.plan import RoundPlan
from hflray.training.rules.base import CloudReport, EdgeReport, Memory
from hflray.training.rules.own import at_cloud, vectors_for
from hflray.training.state import TrainingState

if TYPE_CHECKING:
    from hflray.training.asynchronous import TurnTask
    from hflray.training.mixing import MixTask

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
    shares: tuple[tuple[int, float], ...]
    buffers: bool
    steps: bool

    @classmethod
    def of(cls, plan: RoundPlan, turn: TurnTask | MixTask, buffers: bool) -> Self:
        """Return the update of an edge's turn with the plan of its edge iterations."""
        setting = plan.setting
        return cls(
            method=setting.method,
            seed=setting.seed,
            sizes=setting.sizes,
            num_devices=len(setting.samples),
            position=(turn.round_index, turn.first + len(plan.iterations) - 1),
            edge=turn.edge,
            rate=plan.rate_of(turn.edge),
            extra_bits=plan.extra_bits,
            share=turn.share,
            shares=tuple(turn.shares.items()),
            buffers=buffers,
            steps=turn.steps,
        )


def towards(model: FloatVector, arriving: FloatVector, share: float) -> FloatArray:
    """Return (1 − α) w + α w', (P,) float64, for the share α."""
    return np.asarray((1.0 - share) * model.astype(np.float64) + share * arriving)


def combine_edges(
    plan: RoundPlan, before: TrainingState, models: Mapping[int, Any], sums: Iterable[Mapping[str, SumVector]]
) -> TrainingState:
    """Return the state after a round; what devices keep is that of `before`.

    Args:
        plan: the plan of the round.
        before: the state before it, with what its devices keep now.
        models: what each edge hands up, by edge: a `Version`, or a `Lifted` where the cloud adds the edges' sums.
        sums: the sums of the rule's vectors, of each edge and edge iteration.

    Raises:
        DivergedError: the global model is not finite.
    """
    setting = plan.setting
    parts, frame = setting.method.parts(), plan.cloud_frame()
    if len(models) < parts.cloud.least:
        return before
    end = len(before.model) - setting.statistics
    residuals = dict(before.residuals)
    reports: dict[int, EdgeReport] = {}
    arrived: list[Sent] = []
    if all(isinstance(model, Lifted) for model in models.values()):
        totals = [models[edge] for edge in sorted(models)]
        lifted, sums = [total.part for total in totals], [*(total.extra for total in totals), *sums]
    else:
        arrived = _arrivals(plan, before, models, residuals)
        reports = {sent.sender: EdgeReport(sent.model[:end], plan.rate_of(sent.sender)) for sent in arrived}
        lifted = [parts.cloud.lift(sent, frame) for sent in arrived]
    model, cloud = finished(parts.cloud, parts.cloud.combine(lifted), before.model, before.cloud, frame)
    extra = {name: mean(total, 1, plan.extra_bits) for name, total in add_extra(sums).items()}
    plain = _plain_mean(arrived, frame) if arrived else model
    report = CloudReport(before.model[:end], plain[:end], reports, extra, len(setting.samples))
    trained, rule = at_cloud(parts.rule, report, before.rule)
    if trained is not None:
        model = np.concatenate([trained, model[end:]]).astype(np.float32)
    if not np.isfinite(model).all():
        raise DivergedError(f"round {plan.index}: the global model is not finite; lower training.learning_rate")
    return replace(before, model=model, residuals=residuals, rule=rule, cloud=cloud)


def _arrivals(
    plan: RoundPlan, before: TrainingState, models: Mapping[int, Version], residuals: dict[int, FloatVector]
) -> list[Sent]:
    """Return the edges' models as they arrive: scaled by the rule and compressed; see `delivered`."""
    setting, edges, weights = plan.setting, sorted(models), plan.edge_weights()
    arrived = []
    for edge, factor in zip(edges, plan.edge_scales(edges), strict=True):
        rng = stream(setting.seed, "compression of edges", plan.index, edge)
        model, residual = delivered(
            models[edge].model, before.model, float(factor), setting.method.parts().edge_compressor, setting.sizes, rng,
            residuals.get(edge), "edge",
        )  # fmt: skip
        if residual is not None:
            residuals[edge] = residual
        arrived.append(Sent(model, before.model, weights[edge], edge))
    return arrived


def _plain_mean(arrived: Sequence[Sent], frame: Frame) -> FloatVector:
    """Return the weighted mean of the edges' models, (P,), before any step of the cloud's aggregator."""
    plain = Mean()
    model, _ = plain.finish(plain.combine([plain.lift(sent, frame) for sent in arrived]), arrived[0].model, {}, frame)
    return model


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


def after_merges(
    before: TrainingState, cloud: Cloud, memories: Mapping[int, Memory], fetched: Mapping[int, Version]
) -> TrainingState:
    """Return the state after a round of updates, given what its devices keep now and the edges under way fetched."""
    return replace(
        before, model=cloud.model, memories={**before.memories, **memories}, residuals=cloud.residuals,
        rule=cloud.rule, cloud=cloud.stored, fetched=fetched,
    )  # fmt: skip
