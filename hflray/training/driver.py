"""The driver of a round: it submits the steps of a program (`hflray.training.program`) to an executor, and waits.

The whole round is submitted before anything is waited for. A round is a function of the state before it, so that it can
be repeated after a lost actor, and gives the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from hflray import metrics
from hflray.aggregation import FloatVector
from hflray.support.arrays import FloatArray, squared_norm
from hflray.training.cloud import Cloud, combine, mix_edges
from hflray.training.exchange import Lifted, Ref, Version
from hflray.training.executor import Executor
from hflray.training.program import AnyTask, Arrive, Combine, Fetch, Key, Meet, Mix, Program, Train, program_of
from hflray.training.rules.base import after_turn
from hflray.training.rules.own import vectors_for
from hflray.training.state import Losses, RoundResult, TrainingSetting, TrainingState


def train_round(executor: Executor, setting: TrainingSetting, task: AnyTask, before: TrainingState) -> RoundResult:
    """Train one round.

    Args:
        executor: where it is trained.
        setting: what is the same in all rounds.
        task: what the round trains.
        before: the state before the round.

    Raises:
        DivergedError: weights are not finite.
    """
    shared_start = not vectors_for(setting.method.parts().rule, before.rule, 0, sum(setting.sizes))
    return _Driver(executor, setting, program_of(task, setting, executor.hosts, shared_start), before).run()


class _Driver:
    """Runs one program over an executor."""

    def __init__(self, executor: Executor, setting: TrainingSetting, program: Program, before: TrainingState) -> None:
        self.executor, self.setting, self.program, self.before = executor, setting, program, before
        self.parts = setting.method.parts()
        self.refs: dict[Key, Ref] = {}
        self.beside: dict[Key, list[Ref]] = {}  # what was handed up beside models, by the version that they made
        self.measured: list[tuple[Sequence[Sequence[int]], Ref]] = []
        self.cloud: Ref = None
        self.memories: dict[int, Ref] = {}
        self.residuals: dict[int, Ref] = {}  # of the edges of each region
        if self.parts.remembers:
            for host, devices in program.members().items():
                self.memories[host] = executor.put({device: before.memories.get(device, {}) for device in devices})

    def run(self) -> RoundResult:
        """Submit the whole round, wait for it, and combine the edges."""
        if self.program.together is None:
            before = self.before
            self.cloud = self.executor.put(Cloud(before.model, before.rule, before.cloud, before.residuals))
        for step in self.program.steps:
            match step:
                case Fetch():
                    self.refs[step.key] = self.executor.put(self._of_before(step))
                case Train():
                    self._train(step)
                case Combine():
                    self._combine(step)
                case Mix(edge, frame, share, part, version, after):
                    before, arrival = self.refs[version], self.refs.pop(part)
                    self.refs[after], self.beside[after] = self.executor.mix(edge, frame, share, before, arrival)
                case Meet():
                    self._meet(step)
                case Arrive():
                    beside = [ref for key in step.combined for ref in self.beside[key]]
                    trained, fetched = self.refs[step.trained], self.refs[step.fetched]
                    self.refs[step.after], self.cloud = self.executor.merge(
                        step.merge, self.cloud, trained, fetched, beside
                    )
        return self._collect()

    def _of_before(self, step: Fetch) -> Version:
        """Return the version with which an edge begins."""
        before = self.before
        if step.origin == "fetched" and step.edge is not None:
            return before.fetched[step.edge]
        if isinstance(step.origin, int) and step.edge is not None:
            return Version(before.versions[step.edge, step.origin])
        if step.origin == "own" and step.edge is not None:
            return Version(before.edges.get(step.edge, before.model))
        vectors = vectors_for(self.parts.rule, before.rule, step.edge or 0, sum(self.setting.sizes))
        return Version(before.model, vectors)

    def _train(self, step: Train) -> None:
        versions = [self.refs[key] for key in step.versions]
        if any(step.ending):
            self.measured.append((step.ending, self.executor.losses(step.host, step.ending, versions)))
        done = self.executor.train(step.host, step.task, versions, self.memories.get(step.host))
        if done.memories is not None:
            self.memories[step.host] = done.memories
        self.refs |= dict(zip(step.parts, done.parts, strict=True))

    def _combine(self, step: Combine) -> None:
        parts = [(host, self.refs.pop(key)) for host, key in step.parts]
        if step.closes:
            self.refs[step.after] = self.executor.close(step.edge, step.frame, parts)
            return
        before = self.refs[step.before]
        self.refs[step.after], self.beside[step.after] = self.executor.finish(step.edge, step.frame, parts, before)

    def _meet(self, step: Meet) -> None:
        region, regions = step.gather.frame.index, self.setting.tree.regions
        assert regions is not None
        if region not in self.residuals:
            members, residuals = np.flatnonzero(regions.parent == region).tolist(), self.before.residuals
            self.residuals[region] = {edge: residuals[edge] for edge in members if edge in residuals}
        versions, before = [self.refs[key] for key in step.parts], self.refs[step.before]
        self.refs[step.after], self.residuals[region] = self.executor.gather(
            step.gather, before, versions, self.residuals[region]
        )

    def _collect(self) -> RoundResult:
        """Wait for the round, and return its result."""
        program, before, method = self.program, self.before, self.setting.method
        together, keys = program.together, (program.ends, program.under_way, program.keeps)
        beside = [ref for refs in self.beside.values() for ref in refs] if method.measures or together else []
        lasting = list(self.memories.values()) if self.parts.lasts else []
        groups = [
            [] if together else [self.cloud],
            *([self.refs[key] for key in by_place.values()] for by_place in keys),
            lasting, beside, [ref for _, ref in self.measured], list(self.residuals.values()),
        ]  # fmt: skip
        flat = iter(self.executor.get([ref for group in groups for ref in group]))
        clouds, ends, fetched, in_use, memory, handed, rows, residuals = (
            [next(flat) for _ in group] for group in groups
        )
        remembered = {
            device: after_turn(self.parts.rule, kept_by) for part in memory for device, kept_by in part.items()
        }
        state = replace(
            before,
            memories={**before.memories, **remembered},
            fetched=dict(zip(program.under_way, fetched, strict=True)),
            versions={key: version.model for key, version in zip(program.keeps, in_use, strict=True)},
        )
        for by_edge in residuals:
            state = replace(state, residuals={**state.residuals, **by_edge})
        models = dict(zip(program.ends, ends, strict=True))
        if together and self.setting.tree.graph is not None:
            state = mix_edges(together, state, {edge: version.model for edge, version in models.items()})
        elif together:
            state = combine(together, state, models, program.weights, [lifted.extra for lifted in handed])
        for cloud in clouds:
            state = replace(
                state, model=cloud.model, residuals=cloud.residuals, rule=cloud.rule, cloud=cloud.stored
            )  # fmt: skip
        losses = losses_of((devices for ending, _ in self.measured for devices in ending), rows)
        if not method.measures:
            return RoundResult(state, losses)
        lifted = [result for result in (*ends, *handed) if isinstance(result, Lifted)]
        return RoundResult(state, losses, measures_of(self.setting, before.model, state.model, lifted))


def measures_of(
    setting: TrainingSetting, before: FloatVector, after: FloatVector, handed: Iterable[Lifted]
) -> dict[str, float]:
    """Return the metrics of the round's updates; sums are exact, so that they do not depend on the hosts.

    Args:
        setting: what is the same in all rounds.
        before, after: the global model before and after the round, (P,).
        handed: what hosts handed up.
    """
    rows = [row for part in handed for row in part.measured.values()]
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
    every = [row for part in rows for row in part]
    return {device: (float(mean), float(utility)) for device, (mean, utility) in zip(flat, every, strict=True)}
