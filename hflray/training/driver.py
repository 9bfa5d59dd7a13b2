"""The driver of a round: it submits the steps of a program (`hflray.training.program`) to an executor, and waits.

The whole round is submitted before anything is waited for. A round is a function of the state before it, so that it can
be repeated after a lost actor, and gives the same bits.

An `Executor` says where the steps are done: by objects of this process (`LocalPool`), or by Ray's actors. A `Ref` is a
value in the former, and a reference to an object of Ray in the latter. A method that is called returns a tuple if it
has several results. Nothing is waited for but by `Executor.get`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hflray import metrics
from hflray.aggregation import FloatVector
from hflray.support.arrays import squared_norm
from hflray.training.actor_pool import ActorPool
from hflray.training.exchange import Lifted, Ref, Version
from hflray.training.job import DeviceData, LocalJob
from hflray.training.local import DeviceHost
from hflray.training.method import Spec
from hflray.training.nodes import Cloud, EdgeWorker, combine, mix_edges
from hflray.training.program import Key, Program, program_of
from hflray.training.rules.base import after_turn
from hflray.training.rules.own import vectors_for
from hflray.training.state import RoundResult, RoundTask, TrainingSetting, TrainingState


class LocalPool:
    """One host of all devices and one worker for all edges in this process; a reference is the value itself."""

    def __init__(self, job: LocalJob, data: DeviceData) -> None:
        self.devices: list[Any] = [DeviceHost(job, data)]
        self.edges: list[Any] = [EdgeWorker()]

    def put(self, value: Any) -> Ref:
        """Return a reference to a value."""
        return value

    def get(self, refs: Sequence[Ref]) -> list[Any]:
        """Return the values of references."""
        return list(refs)

    def call(self, worker: Any, method: str, *arguments: Any, results: int = 1) -> list[Ref]:
        """Call a method of a host or an edge; return its results."""
        made = getattr(worker, method)(*arguments)
        return [made] if results == 1 else list(made)

    def gather(self, edge: int, parts: Sequence[tuple[int, Ref]], aggregator: Spec) -> list[Ref]:
        """Return what the edge of this index combines of what hosts, by their index, hand up."""
        return [ref for _, ref in parts]

    def close(self) -> None:
        """Do nothing, because there is nothing to end."""


Executor = LocalPool | ActorPool


def train_round(executor: Executor, setting: TrainingSetting, task: RoundTask, before: TrainingState) -> RoundResult:
    """Train one round.

    Args:
        executor: where it is trained.
        setting: what is the same in all rounds.
        task: what the round trains.
        before: the state before the round.

    Raises:
        DivergedError: weights are not finite.
    """
    parts, method = setting.method.parts(), setting.method
    shared_start = not vectors_for(parts.rule, before.rule, 0, sum(setting.sizes))
    program = program_of(task, setting, len(executor.devices), shared_start)
    kinds = {"losses", "residuals"} | ({"memory"} if parts.lasts else set())
    kinds |= {"beside"} if method.measures or program.together else set()
    kinds |= {"cloud"} if program.together is None else set()
    made = dict.fromkeys(key for step in program.steps for key in step.writes if key[0] in kinds)
    results = [*program.ends.values(), *program.under_way.values(), *program.keeps.values(), *made]
    left = Counter([*results, *(key for step in program.steps for key in step.reads)])
    refs: dict[Key, Ref] = {}

    def ref(key: Key) -> Ref:
        if key not in refs:
            refs[key] = executor.put(_before(key, program, setting, before))
        return refs[key]

    for step in program.steps:
        workers, reads = getattr(executor, step.at), [ref(key) for key in step.reads]
        place, first = step.place % len(workers), len(reads) - len(step.hosts)
        if step.hosts:
            reads[first:] = executor.gather(place, list(zip(step.hosts, reads[first:], strict=True)), method.edge)
        done = executor.call(workers[place], step.does, *step.arguments, *reads, results=len(step.writes))
        refs.update(zip(step.writes, done, strict=True))
        left.subtract(step.reads)
        for key in step.reads:  # what is not needed any more may go from memory
            if not left[key]:
                refs.pop(key, None)
    values = dict(zip(results, executor.get([ref(key) for key in results]), strict=True))
    return _result(program, setting, before, values)


def _before(key: Key, program: Program, setting: TrainingSetting, before: TrainingState) -> Any:
    """Return what a key of the state before the round stands for; see `hflray.training.program.Step`."""
    match key:
        case ("fetched", edge):
            return before.fetched[edge]
        case ("version", edge, number):
            return Version(before.versions[edge, number])
        case ("own", edge):
            return Version(before.edges.get(edge, before.model))
        case ("memory", host):
            return {device: before.memories.get(device, {}) for device in program.members(host)}
        case ("residuals", region):
            assert setting.tree.regions is not None
            members = np.flatnonzero(setting.tree.regions.parent == region).tolist()
            return {edge: before.residuals[edge] for edge in members if edge in before.residuals}
        case ("cloud",):
            return Cloud(before.model, before.rule, before.cloud, before.residuals)
    rule = setting.method.parts().rule
    return Version(before.model, vectors_for(rule, before.rule, key[1] or 0, sum(setting.sizes)))


def _result(program: Program, setting: TrainingSetting, before: TrainingState, values: dict[Key, Any]) -> RoundResult:
    """Return the result of a round, whose edges the cloud may still have to combine, from what it has made."""
    together, rule = program.together, setting.method.parts().rule

    def of(kind: str) -> list[Any]:
        return [value for key, value in values.items() if key[0] == kind]

    memories = {device: after_turn(rule, memory) for part in of("memory") for device, memory in part.items()}
    state = replace(
        before,
        memories={**before.memories, **memories},
        residuals={edge: residual for part in (before.residuals, *of("residuals")) for edge, residual in part.items()},
        fetched={edge: values[key] for edge, key in program.under_way.items()},
        versions={version: values[key].model for version, key in program.keeps.items()},
    )
    ends, beside = {edge: values[key] for edge, key in program.ends.items()}, of("beside")
    if together and setting.tree.graph is not None:
        state = mix_edges(together, state, {edge: version.model for edge, version in ends.items()})
    elif together:
        state = combine(together, state, ends, program.weights, [lifted.extra for lifted in beside])
    for cloud in of("cloud"):
        state = replace(state, model=cloud.model, residuals=cloud.residuals, rule=cloud.rule, cloud=cloud.stored)
    measured = (group for step in program.steps if step.does == "losses" for group in step.arguments[0])
    devices, rows = (device for group in measured for device in group), (row for part in of("losses") for row in part)
    losses = {device: (float(loss), float(utility)) for device, (loss, utility) in zip(devices, rows, strict=True)}
    if not setting.method.measures:
        return RoundResult(state, losses)
    lifted = [result for result in (*ends.values(), *beside) if isinstance(result, Lifted)]
    return RoundResult(state, losses, measures_of(setting, before.model, state.model, lifted))


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
