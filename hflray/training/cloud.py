"""The root of a round: the cloud combines edges or regions (equations 3 and 16), or edges mix without a cloud."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hflray.aggregation import FloatVector, Frame, Mean, Sent, SumVector, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from hflray.training.exchange import Lifted, Version, add_extra, delivered
from hflray.training.iterations import Iterations
from hflray.training.returned import at_cloud
from hflray.training.rules.base import CloudReport, EdgeReport
from hflray.training.state import Setting, TrainingState


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
    if all(isinstance(each, Lifted) for each in models.values()):
        ordered = [models[edge] for edge in sorted(models)]
        lifted, sums = [each.part for each in ordered], [*(each.extra for each in ordered), *sums]
    else:
        arrived = _arrivals(iterations, before, models, weights, residuals)
        if setting.tree.regions is None:
            reports = {sent.sender: EdgeReport(sent.model[:end], iterations.rate_of(sent.sender)) for sent in arrived}
        lifted = [parts.cloud.lift(sent, frame) for sent in arrived]
    model, cloud = finished(parts.cloud, parts.cloud.combine(lifted), before.model, before.cloud, frame)
    extra = {name: mean(total, 1, iterations.extra_bits) for name, total in add_extra(sums).items()}
    plain = _plain_mean(arrived, frame) if arrived else model
    report = CloudReport(before.model[:end], plain[:end], reports, extra, len(setting.samples))
    own, rule = at_cloud(parts.rule, report, before.rule)
    if own is not None:
        model = np.concatenate([own, model[end:]]).astype(np.float32)
    _check_finite(model, iterations.index)
    return replace(before, model=model, residuals=residuals, rule=rule, cloud=cloud)


def mix_edges(setting: Setting, before: TrainingState, models: Mapping[int, FloatVector]) -> TrainingState:
    """Return the state after a round without a cloud, in which some edges have sent their models to their neighbours.

    The new model of an edge is Σ_j W_ij w_j, in float64 and in the order of the edges, and that of one that is down
    stays. The global model, which nobody trains on, is the mean over all edges.

    Args:
        setting: what is the same in all rounds.
        before: the state before it, with what its devices keep now.
        models: the model of each edge that mixes, by edge.

    Raises:
        DivergedError: a model is not finite.
    """
    graph, count = setting.tree.graph, setting.num_edges
    assert graph is not None
    mixes = np.isin(np.arange(count), list(models))
    weights = graph.weights_among(mixes)
    own = {edge: before.edges.get(edge, before.model) for edge in range(count)} | dict(models)
    mixed = dict(own)
    for edge in models:
        neighbours = np.flatnonzero(weights[edge]).tolist()
        mixed[edge] = _sum([weights[edge, m] * own[m].astype(np.float64) for m in neighbours]).astype(np.float32)
    model = (_sum([mixed[edge].astype(np.float64) for edge in range(count)]) / count).astype(np.float32)
    _check_finite(model, None)
    return replace(before, model=model, edges=mixed)


def _sum(parts: Sequence[FloatArray]) -> FloatArray:
    """Return a sum whose order is that of its parts, so that its bits are the same everywhere."""
    return functools.reduce(np.add, parts)


def _check_finite(model: FloatVector, index: int | None) -> None:
    if not np.isfinite(model).all():
        where = "" if index is None else f"round {index}: "
        raise DivergedError(f"{where}the global model is not finite; lower training.learning_rate")


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
