"""The cloud of Algorithm 1: it combines the edges into the global model (equations 3 and 16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hflray.aggregation import FloatVector, Frame, Mean, Sent, SumVector, finished
from hflray.aggregation.fixed_point import mean
from hflray.errors import DivergedError
from hflray.seeding import stream
from hflray.training.exchange import Lifted, Version, add_extra, delivered
from hflray.training.iterations import Iterations
from hflray.training.returned import at_cloud
from hflray.training.rules.base import CloudReport, EdgeReport
from hflray.training.state import TrainingState


def combine_edges(
    iterations: Iterations, before: TrainingState, models: Mapping[int, Any], sums: Iterable[Mapping[str, SumVector]]
) -> TrainingState:
    """Return the state after a round; what devices keep is that of `before`.

    Args:
        iterations: the edge iterations of the round.
        before: the state before it, with what its devices keep now.
        models: what each edge hands up, by edge: a `Version`, or a `Lifted` where the cloud adds the edges' sums.
        sums: the sums of the rule's vectors, of each edge and edge iteration.

    Raises:
        DivergedError: the global model is not finite.
    """
    setting = iterations.setting
    parts, frame = setting.method.parts(), iterations.cloud_frame()
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
        arrived = _arrivals(iterations, before, models, residuals)
        reports = {sent.sender: EdgeReport(sent.model[:end], iterations.rate_of(sent.sender)) for sent in arrived}
        lifted = [parts.cloud.lift(sent, frame) for sent in arrived]
    model, cloud = finished(parts.cloud, parts.cloud.combine(lifted), before.model, before.cloud, frame)
    extra = {name: mean(total, 1, iterations.extra_bits) for name, total in add_extra(sums).items()}
    plain = _plain_mean(arrived, frame) if arrived else model
    report = CloudReport(before.model[:end], plain[:end], reports, extra, len(setting.samples))
    own, rule = at_cloud(parts.rule, report, before.rule)
    if own is not None:
        model = np.concatenate([own, model[end:]]).astype(np.float32)
    if not np.isfinite(model).all():
        raise DivergedError(f"round {iterations.index}: the global model is not finite; lower training.learning_rate")
    return replace(before, model=model, residuals=residuals, rule=rule, cloud=cloud)


def _arrivals(
    iterations: Iterations, before: TrainingState, models: Mapping[int, Version], residuals: dict[int, FloatVector]
) -> list[Sent]:
    """Return the edges' models as they arrive: scaled by the rule and compressed; see `delivered`."""
    setting, edges, weights = iterations.setting, sorted(models), iterations.edge_weights()
    arrived = []
    for edge, factor in zip(edges, iterations.edge_scales(edges), strict=True):
        rng = stream(setting.seed, "compression of edges", iterations.index, edge)
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
