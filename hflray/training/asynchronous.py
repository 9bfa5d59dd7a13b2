"""A round of an asynchronous cloud over an `Executor`: the turns whose updates arrive in it, in the order of time.

The order of all updates is known before training (`hflray.world.turns`). So all jobs are submitted at once, each with a
reference to the version that it needs, and a round is as parallel, and as repeatable, as a synchronous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hflray.cost import Schedule
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.training.algorithm1 import Executor, losses_of, measures_of
from hflray.training.amounts import Amounts
from hflray.training.exchange import Lifted, Ref, Version
from hflray.training.memory import after_turn
from hflray.training.merging import Cloud, Merge
from hflray.training.returned import vectors_for
from hflray.training.rules.base import Memory
from hflray.training.state import RoundResult, RoundTask, Setting, TrainingState


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


class _Turn:
    """A turn while its jobs are submitted."""

    def __init__(self, setting: Setting, task: TurnTask, hosts: int, host: IntArray) -> None:
        schedule = Schedule(task.devices, np.full(len(task.devices), task.edge))
        position = RoundTask(task.round_index, schedule, task.participates)
        self.task, self.amounts = task, Amounts(setting, position, hosts, task.first, host)
        self.fetched: Ref = None
        self.version: Ref = None  # of the next edge iteration
        self.beside: list[Ref] = []


def train_turns(executor: Executor, setting: Setting, task: TurnsTask, before: TrainingState) -> RoundResult:
    """Train one round; see `hflray.training.algorithm1.train_round`."""
    rule = setting.method.parts().rule
    cloud = executor.put(Cloud(before.model, before.rule, before.cloud, before.residuals))
    hosts = _hosts(setting, task.turns, executor.hosts)
    turns = [_Turn(setting, each, executor.hosts, host) for each, host in zip(task.turns, hosts, strict=True)]
    memories = _memories(executor, setting, turns, before)
    results: list[Ref] = []  # what an edge fetches after each update
    measured: list[tuple[list[tuple[int, ...]], Ref]] = []
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
        edge, amounts = turn.task.edge, turn.amounts
        if q is None:
            trained, started = turn.version, turn.fetched
            version, cloud = executor.merge(_merge(setting, task, turn), cloud, trained, started, turn.beside)
            results.append(version)
            continue
        if turn.fetched is None:
            turn.fetched = turn.version = fetched(edge, turn.task.source)
        parts: list[tuple[int, Ref]] = []
        for host, share in enumerate(amounts.plan.iterations[q].shares):
            if not share:
                continue
            ending = amounts.plan.leaving(q, edge, share[edge]) if task.wants_losses else ()
            if ending:
                measured.append(([ending], executor.losses(host, [ending], [turn.version])))
            done = executor.train(host, amounts.task(q, share), [turn.version], memories.get(host))
            if done.memories is not None:
                memories[host] = done.memories
            parts.append((host, done.parts[0]))
        if parts:
            turn.version, rest = executor.finish(edge, amounts.edge_frame(q, edge), parts, turn.version)
            turn.beside += [] if rest is None else [rest]
    under_way = {edge: fetched(edge, source) for edge, source in task.under_way.items()}
    return _collect(executor, setting, before, cloud, under_way, turns, memories, measured)


def _collect(
    executor: Executor,
    setting: Setting,
    before: TrainingState,
    cloud: Ref,
    under_way: Mapping[int, Ref],
    turns: Sequence[_Turn],
    memories: Mapping[int, Ref],
    measured: Sequence[tuple[list[tuple[int, ...]], Ref]],
) -> RoundResult:
    """Wait for the round, and return its result."""
    parts, method = setting.method.parts(), setting.method
    beside = [ref for turn in turns for ref in turn.beside] if method.measures else []
    lasting = list(memories.values()) if parts.lasts else []
    groups = [[cloud], list(under_way.values()), lasting, beside, [ref for _, ref in measured]]
    flat = iter(executor.get([ref for group in groups for ref in group]))
    (after,), versions, memory, handed, rows = ([next(flat) for _ in group] for group in groups)
    remembered = {device: after_turn(parts.rule, each) for part in memory for device, each in part.items()}
    state = replace(
        before,
        model=after.model,
        memories={**before.memories, **remembered},
        residuals=after.residuals,
        rule=after.rule,
        cloud=after.stored,
        fetched=dict(zip(under_way, versions, strict=True)),
    )
    losses = losses_of((devices for ending, _ in measured for devices in ending), rows)
    if not method.measures:
        return RoundResult(state, losses)
    lifted: list[Lifted] = handed
    return RoundResult(state, losses, measures_of(setting, before.model, state.model, lifted))


def _hosts(setting: Setting, turns: Sequence[TurnTask], hosts: int) -> list[IntArray]:
    """Deal the devices of each turn to hosts, longest first, each to the host with the least work so far.

    A device of two turns keeps its host, where its memory is.
    """
    load, host_of = np.zeros(hosts, dtype=np.int64), dict[int, int]()
    for turn in turns:
        for device in turn.devices[np.argsort(-setting.samples[turn.devices], kind="stable")].tolist():
            host = host_of.setdefault(device, int(load.argmin()))
            load[host] += setting.samples[device]
    return [np.array([host_of[device] for device in turn.devices.tolist()], dtype=np.intp) for turn in turns]


def _memories(executor: Executor, setting: Setting, turns: Sequence[_Turn], before: TrainingState) -> dict[int, Ref]:
    """Return what the devices of each host keep; nothing where no rule or compressor keeps anything."""
    if not setting.method.parts().remembers:
        return {}
    members: dict[int, dict[int, Memory]] = {}
    for turn in turns:
        for iteration in turn.amounts.plan.iterations:
            for host, share in enumerate(iteration.shares):
                for device in (device for devices in share.values() for device in devices):
                    members.setdefault(host, {})[device] = before.memories.get(device, {})
    return {host: executor.put(each) for host, each in members.items()}


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


def _merge(setting: Setting, task: TurnsTask, turn: _Turn) -> Merge:
    """Return the update of a turn."""
    one, amounts = turn.task, turn.amounts
    return Merge(
        method=setting.method,
        seed=setting.seed,
        sizes=setting.sizes,
        num_devices=len(setting.samples),
        position=(one.round_index, one.first + len(one.participates) - 1),
        edge=one.edge,
        rate=amounts.rate_of(one.edge),
        extra_bits=amounts.extra_bits,
        share=one.share,
        shares=tuple(one.shares.items()),
        buffers=task.buffers,
        steps=one.steps,
    )
