"""Algorithm 1 of the paper: the only loop over edge iterations and edges. It trains a round whose plan is complete.

The loop talks to an `Executor`, which is this process (`hflray.training.serial`) or Ray's actors
(`hflray.training.hierarchy`). A `Ref` is a value in the former, and a reference to an object in the latter. The whole
round is submitted before anything is waited for. A round is a function of the state before it, so that it can be
repeated after a lost actor, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from hflray import metrics
from hflray.aggregation import FloatVector, Frame
from hflray.support.arrays import FloatArray, squared_norm
from hflray.training.amounts import Amounts
from hflray.training.cloud import combine_edges
from hflray.training.exchange import EdgeTask, Lifted, Ref, Trained, Version
from hflray.training.memory import after_turn
from hflray.training.merging import Merge
from hflray.training.returned import vectors_for
from hflray.training.rules.base import Memory
from hflray.training.state import Losses, RoundResult, RoundTask, Setting, TrainingState


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

    def close(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Ref]]) -> Ref:
        """Return the `Lifted` of all devices of an edge, given that of each host; see `close`."""

    def finish(self, edge: int, frame: Frame, parts: Sequence[tuple[int, Ref]], before: Ref) -> tuple[Ref, Ref | None]:
        """Return the next `Version` of an edge (see `finish`), and what hosts handed up beside models, if anything."""

    def mix(
        self, edge: int, frame: Frame, share: float, before: Ref, arrival: tuple[int, Ref]
    ) -> tuple[Ref, Ref | None]:
        """Return the next `Version` of an asynchronous edge (`hflray.training.merging.mixed`), and what is beside it.

        The arrival is the number of a host, and what it handed up for the device.
        """

    def merge(self, merge: Merge, cloud: Ref, trained: Ref, fetched: Ref, beside: Sequence[Ref]) -> tuple[Ref, Ref]:
        """Return what an edge fetches after its update, and the cloud (`hflray.training.merging.merged`)."""

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        """Return the values of references."""


class _Round:
    """One round of Algorithm 1 over an executor."""

    def __init__(self, executor: Executor, before: TrainingState, amounts: Amounts) -> None:
        self.executor, self.before, self.amounts = executor, before, amounts
        self.parts = amounts.setting.method.parts()

    def run(self, wants_losses: bool) -> RoundResult:
        """Submit the whole round, wait for it, and combine the edges."""
        executor, amounts, parts, rule = self.executor, self.amounts, self.parts, self.parts.rule
        size, cloud_state = sum(amounts.setting.sizes), self.before.rule
        start = executor.put(Version(self.before.model)) if not vectors_for(rule, cloud_state, 0, size) else None
        versions: dict[int, Ref] = {}
        for turn in amounts.turns:
            vectors = vectors_for(rule, cloud_state, turn.edge, size)
            versions[turn.edge] = start if start is not None else executor.put(Version(self.before.model, vectors))
        memories = self._memories()
        last = {turn.edge: turn.last for turn in amounts.turns}
        measured: list[tuple[list[tuple[int, ...]], Ref]] = []
        rests: dict[int, list[Ref]] = {turn.edge: [] for turn in amounts.turns}
        for q, iteration in enumerate(amounts.plan.iterations):
            gathered: dict[int, list[tuple[int, Ref]]] = {edge: [] for edge in iteration.edge_weights}
            for host, share in enumerate(iteration.shares):
                if not share:
                    continue
                received = [versions[edge] for edge in share]
                ending = [amounts.plan.leaving(q, edge, each) for edge, each in share.items()] if wants_losses else []
                if any(ending):
                    measured.append((ending, executor.losses(host, ending, received)))
                trained = executor.train(host, amounts.task(q, share), received, memories.get(host))
                if trained.memories is not None:
                    memories[host] = trained.memories
                for edge, part in zip(share, trained.parts, strict=True):
                    gathered[edge].append((host, part))
            for edge, each in gathered.items():
                frame = amounts.edge_frame(q, edge)
                if q == last[edge] and parts.adds_totals:
                    versions[edge] = executor.close(edge, frame, each)
                else:
                    versions[edge], rest = executor.finish(edge, frame, each, versions[edge])
                    rests[edge] += [] if rest is None else [rest]
        flat = [ref for refs in rests.values() for ref in refs]
        lasting = list(memories.values()) if parts.lasts else []
        results = executor.get([*versions.values(), *lasting, *flat, *(ref for _, ref in measured)])
        models, rest = dict(zip(versions, results, strict=False)), results[len(versions) :]
        memory, rest = rest[: len(lasting)], rest[len(lasting) :]
        beside, rows = rest[: len(flat)], rest[len(flat) :]
        remembered = {device: after_turn(parts.rule, each) for part in memory for device, each in part.items()}
        before = replace(self.before, memories={**self.before.memories, **remembered})
        state = combine_edges(amounts, before, models, [each.extra for each in beside])
        losses = losses_of((devices for ending, _ in measured for devices in ending), rows)
        if not amounts.setting.method.measures:
            return RoundResult(state, losses)
        handed = [each for each in (*models.values(), *beside) if isinstance(each, Lifted)]
        return RoundResult(state, losses, measures_of(amounts.setting, before.model, state.model, handed))

    def _memories(self) -> dict[int, Ref]:
        """Return what the devices of each host keep; nothing where no rule or compressor keeps anything."""
        if not self.parts.remembers:
            return {}
        members: dict[int, dict[int, Memory]] = {}
        for iteration in self.amounts.plan.iterations:
            for host, share in enumerate(iteration.shares):
                for device in (device for devices in share.values() for device in devices):
                    members.setdefault(host, {})[device] = self.before.memories.get(device, {})
        return {host: self.executor.put(each) for host, each in members.items()}


def train_round(executor: Executor, setting: Setting, task: RoundTask, before: TrainingState) -> RoundResult:
    """Train one round of a cloud that waits for the edges.

    Args:
        executor: where it is trained.
        setting: what is the same in all rounds.
        task: what the round trains.
        before: the state before the round.

    Raises:
        DivergedError: weights are not finite.
    """
    return _Round(executor, before, Amounts(setting, task, executor.hosts)).run(task.wants_losses)


def measures_of(
    setting: Setting, before: FloatVector, after: FloatVector, handed: Iterable[Lifted]
) -> dict[str, float]:
    """Return the metrics of the round's updates; sums are exact, so that they do not depend on the hosts.

    Args:
        setting: what is the same in all rounds.
        before, after: the global model before and after the round, (P,).
        handed: what hosts handed up.
    """
    rows = [each for part in handed for each in part.measured.values()]
    moved = (after.astype(np.float64) - before)[: sum(setting.sizes)]
    values = {metrics.UPDATE_NORM: math.sqrt(squared_norm(moved))}
    if rows:
        values[metrics.UPDATE_DRIFT] = math.sqrt(math.fsum(row.drift for row in rows) / len(rows))
    if setting.method.parts().compresses and (whole := math.fsum(row.whole for row in rows)):
        values[metrics.COMPRESSION_ERROR] = math.sqrt(math.fsum(row.lost for row in rows) / whole)
    return values


def losses_of(groups: Iterable[Sequence[int]], rows: Iterable[FloatArray]) -> Losses:
    """Return the rows of `DeviceHost.losses` by device."""
    flat = [device for group in groups for device in group]
    each = [row for part in rows for row in part]
    return {device: (float(mean), float(utility)) for device, (mean, utility) in zip(flat, each, strict=True)}
