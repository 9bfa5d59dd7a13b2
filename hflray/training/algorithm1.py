"""Algorithm 1 of the paper: the only loop over edge iterations and edges. It trains a round whose plan is complete.

The loop talks to an `hflray.training.executor.Executor`. The whole round is submitted before anything is waited for. A
round is a function of the state before it, so that it can be repeated after a lost actor, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hflray import metrics
from hflray.support.arrays import FloatArray, squared_norm
from hflray.training.cloud import combine_edges
from hflray.training.exchange import Lifted, Ref, Version
from hflray.training.executor import Executor
from hflray.training.plan import RoundPlan
from hflray.training.rules.base import Memory, after_turn
from hflray.training.rules.own import vectors_for
from hflray.training.state import Losses, RoundResult, RoundTask, TrainingSetting, TrainingState

LossRows = tuple[Sequence[Sequence[int]], Ref]  # groups of devices, and the rows of their losses


def train_round(executor: Executor, setting: TrainingSetting, task: RoundTask, before: TrainingState) -> RoundResult:
    """Train one round of a cloud that waits for the edges.

    Args:
        executor: where it is trained.
        setting: what is the same in all rounds.
        task: what the round trains.
        before: the state before the round.

    Raises:
        DivergedError: weights are not finite.
    """
    plan, parts = RoundPlan(setting, task, executor.hosts), setting.method.parts()
    last = {turn.edge: turn.last for turn in plan.turns}
    versions = _fetched(executor, setting, before, list(last))
    memories = placed_memories(executor, setting, before, plan.devices_by_host())
    beside: dict[int, list[Ref]] = {edge: [] for edge in last}
    losses: list[LossRows] = []
    for q, iteration in enumerate(plan.iterations):
        gathered: dict[int, list[tuple[int, Ref]]] = {edge: [] for edge in iteration.edge_weights}
        for host, share in enumerate(iteration.shares):
            if not share:
                continue
            received = [versions[edge] for edge in share]
            if task.wants_losses and any(ending := [plan.leaving(q, edge, devices) for edge, devices in share.items()]):
                losses.append((ending, executor.losses(host, ending, received)))
            trained = executor.train(host, plan.task(q, share), received, memories.get(host))
            if trained.memories is not None:
                memories[host] = trained.memories
            for edge, part in zip(share, trained.parts, strict=True):
                gathered[edge].append((host, part))
        for edge, handed in gathered.items():
            frame = plan.edge_frame(q, edge)
            if q == last[edge] and parts.adds_totals:
                versions[edge] = executor.close(edge, frame, handed)
            else:
                versions[edge], rest = executor.finish(edge, frame, handed, versions[edge])
                beside[edge] += rest
    refs = [ref for rest in beside.values() for ref in rest]
    found, remembered, made = results_of(executor, setting, memories, losses, [list(versions.values()), refs])
    models = dict(zip(versions, found[0], strict=True))
    kept = replace(before, memories={**before.memories, **remembered})
    state = combine_edges(plan, kept, models, [handed.extra for handed in found[1]])
    return with_measures(setting, before, RoundResult(state, made), [*models.values(), *found[1]])


def _fetched(
    executor: Executor, setting: TrainingSetting, before: TrainingState, edges: Sequence[int]
) -> dict[int, Ref]:
    """Return the version that each edge begins a round with; edges share one where the rule sends no vectors."""
    rule, size = setting.method.parts().rule, sum(setting.sizes)
    if not vectors_for(rule, before.rule, 0, size):
        return dict.fromkeys(edges, executor.put(Version(before.model)))
    return {edge: executor.put(Version(before.model, vectors_for(rule, before.rule, edge, size))) for edge in edges}


def placed_memories(
    executor: Executor, setting: TrainingSetting, before: TrainingState, devices: Iterable[Iterable[int]]
) -> dict[int, Ref]:
    """Return what the devices of each host keep; nothing where no rule or compressor keeps anything.

    Args:
        executor: where the round is trained.
        setting: what is the same in all rounds.
        before: the state before the round.
        devices: the devices of each host.
    """
    if not setting.method.parts().remembers:
        return {}
    kept = [{device: before.memories.get(device, {}) for device in members} for members in devices]
    return {host: executor.put(memory_of) for host, memory_of in enumerate(kept) if memory_of}


def results_of(
    executor: Executor,
    setting: TrainingSetting,
    memories: Mapping[int, Ref],
    losses: Sequence[LossRows],
    groups: Sequence[Sequence[Ref]],
) -> tuple[list[list[Any]], dict[int, Memory], Losses]:
    """Wait for a round; return the values of `groups`, what devices keep now, and their losses."""
    parts = setting.method.parts()
    lasting = list(memories.values()) if parts.lasts else []
    every = [*groups, lasting, [ref for _, ref in losses]]
    flat = iter(executor.get([ref for group in every for ref in group]))
    *found, kept, rows = ([next(flat) for _ in group] for group in every)
    remembered: dict[int, Memory] = {
        device: after_turn(parts.rule, memory) for part in kept for device, memory in part.items()
    }
    return found, remembered, losses_of((devices for groups, _ in losses for devices in groups), rows)


def with_measures(
    setting: TrainingSetting, before: TrainingState, result: RoundResult, handed: Iterable[object]
) -> RoundResult:
    """Return a round's result with the metrics of its updates, if they are measured.

    Sums are exact, so that they do not depend on the hosts.

    Args:
        setting: what is the same in all rounds.
        before: the state before the round.
        result: the result without them.
        handed: what hosts handed up, among other things.
    """
    if not setting.method.measures:
        return result
    rows = [row for part in handed if isinstance(part, Lifted) for row in part.measured.values()]
    moved = (result.state.model.astype(np.float64) - before.model)[: sum(setting.sizes)]
    values = {metrics.UPDATE_NORM: math.sqrt(squared_norm(moved))}
    if rows:
        values[metrics.UPDATE_DRIFT] = math.sqrt(math.fsum(row.drift for row in rows) / len(rows))
    if setting.method.parts().compresses and (whole := math.fsum(row.whole for row in rows)):
        values[metrics.COMPRESSION_ERROR] = math.sqrt(math.fsum(row.lost for row in rows) / whole)
    return result._replace(measures=values)


def losses_of(groups: Iterable[Sequence[int]], rows: Iterable[FloatArray]) -> Losses:
    """Return the rows of `DeviceHost.losses` by device."""
    flat = [device for group in groups for device in group]
    values = [row for part in rows for row in part]
    return {device: (float(mean), float(utility)) for device, (mean, utility) in zip(flat, values, strict=True)}
