"""A round of an asynchronous cloud over an `Executor`: the turns whose updates arrive in it, in the order of time.

The order of all updates is known before training (`hflray.world.turns`). So all jobs are submitted at once, each with a
reference to the version that it needs, and a round is as parallel, and as repeatable, as a synchronous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hflray.cost import Schedule
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.training.algorithm1 import LossRows, placed_memories, results_of, with_measures
from hflray.training.cloud import Cloud, Merge, after_merges
from hflray.training.exchange import Ref, Version
from hflray.training.executor import Executor
from hflray.training.plan import RoundPlan
from hflray.training.rules.own import vectors_for
from hflray.training.state import RoundResult, RoundTask, TrainingSetting, TrainingState


class TurnTask(NamedTuple):
    """A turn whose update arrives in the round.

    Attributes:
        edge: the edge.
        round_index: the round in which it began; it selects the draws.
        first: the number of its first edge iteration among those of the edge in that round.
        devices: its devices, (n,).
        participates: whether a device takes part in an edge iteration, (Q, n).
        begin_s: when each edge iteration begins, (Q,), s since the start of the first round.
        arrives_s: when its update arrives, s since the start of the first round.
        source: how many updates this round had before the edge fetched; None: it fetched in an earlier round.
        share: `hflray.clock.asynchronous.Asynchrony.share`.
        shares: the share of each edge's newest model with FedAT, by edge.
        steps: whether the global model changes.
    """

    edge: int
    round_index: int
    first: int
    devices: IntArray
    participates: BoolArray
    begin_s: FloatArray
    arrives_s: float
    source: int | None
    share: float
    shares: Mapping[int, float]
    steps: bool


class TurnsTask(NamedTuple):
    """What a round of an asynchronous cloud trains.

    Attributes:
        round_index: i, from 1.
        turns: the turns whose updates arrive, in the order of their arrivals.
        under_way: for each edge that is under way at the end of the round, how many updates the round had before it
            fetched; None: it fetched in an earlier round.
        buffers: whether the cloud has a buffer.
        wants_losses: whether the losses of the devices are computed.
    """

    round_index: int
    turns: tuple[TurnTask, ...]
    under_way: Mapping[int, int | None]
    buffers: bool = False
    wants_losses: bool = False


class _TurnUnderWay:
    """A turn while its jobs are submitted: what it fetched, its next version, and what is beside its models."""

    def __init__(self, setting: TrainingSetting, task: TurnTask, hosts: int, host: IntArray) -> None:
        schedule = Schedule(task.devices, np.full(len(task.devices), task.edge))
        position = RoundTask(task.round_index, schedule, task.participates)
        self.task, self.plan = task, RoundPlan(setting, position, hosts, task.first, host)
        self.fetched: Ref = None
        self.version: Ref = None
        self.beside: list[Ref] = []


def train_turns(executor: Executor, setting: TrainingSetting, task: TurnsTask, before: TrainingState) -> RoundResult:
    """Train one round; see `hflray.training.algorithm1.train_round`."""
    rule = setting.method.parts().rule
    cloud = executor.put(Cloud(before.model, before.rule, before.cloud, before.residuals))
    hosts = _hosts(setting, task.turns, executor.hosts)
    turns = [_TurnUnderWay(setting, turn, executor.hosts, host) for turn, host in zip(task.turns, hosts, strict=True)]
    by_host: list[dict[int, None]] = [{} for _ in range(executor.hosts)]
    for turn in turns:
        for devices, members in zip(by_host, turn.plan.devices_by_host(), strict=False):
            devices.update(dict.fromkeys(members))
    memories = placed_memories(executor, setting, before, by_host)
    results: list[Ref] = []  # what an edge fetches after each update
    losses: list[LossRows] = []
    first: dict[int, Ref] = {}

    def fetched(edge: int, source: int | None) -> Ref:
        """Return what an edge fetched after so many updates of this round."""
        if source:
            return results[source - 1]
        if edge not in first:
            if source is None:
                version = before.fetched[edge]
            else:
                version = Version(before.model, vectors_for(rule, before.rule, edge, sum(setting.sizes)))
            first[edge] = executor.put(version)
        return first[edge]

    for number, q in _in_time(task.turns):
        turn = turns[number]
        edge, plan = turn.task.edge, turn.plan
        if q is None:
            merge = Merge.of(plan, turn.task, task.buffers)
            version, cloud = executor.merge(merge, cloud, turn.version, turn.fetched, turn.beside)
            results.append(version)
            continue
        if turn.fetched is None:
            turn.fetched = turn.version = fetched(edge, turn.task.source)
        parts: list[tuple[int, Ref]] = []
        for host, share in enumerate(plan.iterations[q].shares):
            if not share:
                continue
            if ending := plan.leaving(q, edge, share[edge]) if task.wants_losses else ():
                losses.append(([ending], executor.losses(host, [ending], [turn.version])))
            trained = executor.train(host, plan.task(q, share), [turn.version], memories.get(host))
            if trained.memories is not None:
                memories[host] = trained.memories
            parts.append((host, trained.parts[0]))
        if parts:
            turn.version, rest = executor.finish(edge, plan.edge_frame(q, edge), parts, turn.version)
            turn.beside += rest
    under_way = {edge: fetched(edge, source) for edge, source in task.under_way.items()}
    beside = [ref for turn in turns for ref in turn.beside] if setting.method.measures else []
    groups = [[cloud], list(under_way.values()), beside]
    ((after,), versions, handed), remembered, made = results_of(executor, setting, memories, losses, groups)
    state = after_merges(before, after, remembered, dict(zip(under_way, versions, strict=True)))
    return with_measures(setting, before, RoundResult(state, made), handed)


def _hosts(setting: TrainingSetting, turns: Sequence[TurnTask], hosts: int) -> list[IntArray]:
    """Deal the devices of each turn to hosts, longest first, each to the host with the least work so far.

    A device of two turns keeps its host, where its memory is.
    """
    load, host_of = np.zeros(hosts, dtype=np.int64), dict[int, int]()
    for turn in turns:
        for device in turn.devices[np.argsort(-setting.samples[turn.devices], kind="stable")].tolist():
            host = host_of.setdefault(device, int(load.argmin()))
            load[host] += setting.samples[device]
    return [np.array([host_of[device] for device in turn.devices.tolist()], dtype=np.intp) for turn in turns]


def _in_time(turns: Sequence[TurnTask]) -> list[tuple[int, int | None]]:
    """Return the number of a turn and its edge iteration, None for its update, in the order of time.

    An update comes before an edge iteration that begins at the same moment, because the edge of that iteration may have
    fetched what the update made. Updates keep their order.
    """
    events: list[tuple[float, int, int, int, int | None]] = []
    for number, turn in enumerate(turns):
        events.append((turn.arrives_s, 0, number, 0, None))
        events += [(float(begin_s), 1, number, q, q) for q, begin_s in enumerate(turn.begin_s)]
    return [(number, q) for *_, number, _, q in sorted(events, key=lambda event: event[:4])]
