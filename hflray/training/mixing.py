"""A round in which edges are asynchronous, over an `Executor`: each device's model is mixed in when it arrives.

The order of all arrivals is known before training (`hflray.clock.mixing`). So all jobs are submitted at once, in the
order of time, each with a reference to the version of the edge that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hflray.clock.mixing import Mix
from hflray.cost import Schedule
from hflray.training.algorithm1 import LossRows, placed_memories, results_of, with_measures
from hflray.training.cloud import Cloud, Merge, after_merges, combine_edges
from hflray.training.exchange import Ref, Version
from hflray.training.executor import Executor
from hflray.training.plan import RoundPlan
from hflray.training.state import RoundResult, RoundTask, TrainingSetting, TrainingState


class MixTask(NamedTuple):
    """A turn of an asynchronous edge whose update arrives in the round.

    Attributes:
        edge: the edge.
        round_index: the round in which it began.
        first: how many turns the edge had begun before in that round.
        version: the version of the edge that the fetch from the cloud made.
        begin_s, arrives_s: when it begins, and when its update arrives, s since the start of the first round.
        mixes: its arrivals, in their order.
        source, share, shares, steps: see `hflray.training.asynchronous.TurnTask`.
    """

    edge: int
    round_index: int
    first: int
    version: int
    begin_s: float
    arrives_s: float
    mixes: tuple[Mix, ...]
    source: int | None
    share: float
    shares: Mapping[int, float]
    steps: bool


class MixesTask(NamedTuple):
    """What a round with asynchronous edges trains.

    Attributes:
        round_index: i, from 1.
        turns: the turns whose updates arrive, in the order of their arrivals.
        under_way: see `hflray.training.asynchronous.TurnsTask`.
        keeps: edge and version of each model of an edge that a device under way has fetched, among those that the
            round has.
        together: whether the cloud combines the edges at one moment.
        buffers: whether it has a buffer.
        wants_losses: whether the losses of the devices are computed.
    """

    round_index: int
    turns: tuple[MixTask, ...]
    under_way: Mapping[int, int | None]
    keeps: tuple[tuple[int, int], ...]
    together: bool
    buffers: bool = False
    wants_losses: bool = False


def train_mixes(executor: Executor, setting: TrainingSetting, task: MixesTask, before: TrainingState) -> RoundResult:
    """Train one round; see `hflray.training.algorithm1.train_round`."""
    return _MixingRound(executor, setting, task, before).run()


class _MixingRound:
    """One round with asynchronous edges over an executor.

    Attributes:
        versions: the model of each edge by its version.
        results: what an edge fetches after each update.
    """

    def __init__(self, executor: Executor, setting: TrainingSetting, task: MixesTask, before: TrainingState) -> None:
        self.executor, self.setting, self.task, self.before = executor, setting, task, before
        self.parts = setting.method.parts()
        self.versions: dict[tuple[int, int], Ref] = {}
        self.results: list[Ref] = []
        self.beside: list[Ref] = []
        self.losses: list[LossRows] = []
        self.fetched_before: dict[int, Ref] = {}
        self.cloud = executor.put(Cloud(before.model, before.rule, before.cloud, before.residuals))
        self.load = np.zeros(executor.hosts, dtype=np.int64)
        self.host_of: dict[int, int] = {}
        self.arrivals: dict[tuple[int, int], tuple[Ref, RoundPlan]] = {}
        self.last = {
            mix.arrival.device: (number, k) for number, turn in enumerate(task.turns)
            for k, mix in enumerate(turn.mixes)
        }  # fmt: skip
        if self.parts.remembers:  # the memory of a device stays at one host in this round
            for device in (mix.arrival.device for turn in task.turns for mix in turn.mixes):
                host = self.host_of.setdefault(device, int(self.load.argmin()))
                self.load[host] += setting.samples[device]
        by_host = [[device for device, host in self.host_of.items() if host == h] for h in range(executor.hosts)]
        self.memories = placed_memories(executor, setting, before, by_host)

    def run(self) -> RoundResult:
        """Submit the whole round, wait for it, and combine the edges."""
        for _, number, _, step in self._in_time:
            turn = self.task.turns[number]
            if step is None:
                if not self.task.together:
                    self._merge(turn)
            elif step == "fetch":
                self.versions[turn.edge, turn.version] = self._fetched(turn.edge, turn.source)
            elif isinstance(step, tuple):
                self._train(number, *step)
            elif isinstance(step, int):
                self._mix(number, step)
        return self._collect()

    @cached_property
    def _in_time(self) -> list[tuple[float, int, int, int | str | tuple[int] | None]]:
        """Return what is submitted, in the order of time, so that no actor waits behind work that is not ready.

        An event is its moment, the number of its turn, its place in the turn, and what it is: an update (None), the
        "fetch" from the cloud, the training of an arrival (a tuple with its number), or its mixing (its number).
        Moments grow in a turn, so that rounding cannot order an event before one that it needs.
        """
        events: list[tuple[float, int, int, int | str | tuple[int] | None]] = []
        made: dict[tuple[int, int], float] = {}  # when a version of an edge is made
        updates: list[float] = []
        for number, turn in enumerate(self.task.turns):
            ready_s = updates[turn.source - 1] if turn.source else turn.begin_s
            now_s = made[turn.edge, turn.version] = max(turn.begin_s, ready_s)
            events.append((now_s, number, -1, "fetch"))
            for k, mix in enumerate(turn.mixes):
                key = turn.edge, mix.arrival.version
                begin_s = max(mix.arrival.begin_s, made.get(key, mix.arrival.begin_s))
                now_s = made[turn.edge, turn.version + k + 1] = max(now_s, mix.moment_s, begin_s)
                events.append((begin_s, number, 2 * max(0, mix.arrival.version - turn.version) + 1, (k,)))
                events.append((now_s, number, 2 * k + 2, k))
            updates.append(max([now_s, turn.arrives_s, *updates[-1:]]))
            events.append((updates[-1], number, 2 * len(turn.mixes) + 3, None))
        return sorted(events, key=lambda event: event[:3])

    def _fetched(self, edge: int, source: int | None) -> Ref:
        """Return what an edge fetched after so many updates of this round."""
        if source:
            return self.results[source - 1]
        if edge not in self.fetched_before:
            old = self.before.fetched[edge] if source is None else Version(self.before.model)
            self.fetched_before[edge] = self.executor.put(old)
        return self.fetched_before[edge]

    def _version(self, edge: int, number: int) -> Ref:
        """Return a version of an edge."""
        if (edge, number) not in self.versions:
            self.versions[edge, number] = self.executor.put(Version(self.before.versions[edge, number]))
        return self.versions[edge, number]

    def _train(self, number: int, k: int) -> None:
        """Submit the training of an arrival."""
        turn, setting = self.task.turns[number], self.setting
        edge, arrival = turn.edge, turn.mixes[k].arrival
        host = self.host_of.get(arrival.device)
        if host is None:
            host = int(self.load.argmin())
            self.load[host] += setting.samples[arrival.device]
        schedule = Schedule(np.array([arrival.device]), np.array([edge]))
        task = RoundTask(arrival.round, schedule, np.ones((1, 1), dtype=bool))
        plan = RoundPlan(setting, task, self.executor.hosts, arrival.number, np.array([host]))
        version = self._version(edge, arrival.version)
        if self.task.wants_losses and self.last[arrival.device] == (number, k):
            ending = [(arrival.device,)]
            self.losses.append((ending, self.executor.losses(host, ending, [version])))
        trained = self.executor.train(host, plan.task(0, {edge: (arrival.device,)}), [version], self.memories.get(host))
        if trained.memories is not None:
            self.memories[host] = trained.memories
        self.arrivals[number, k] = trained.parts[0], plan

    def _mix(self, number: int, k: int) -> None:
        """Submit the mixing of an arrival."""
        turn = self.task.turns[number]
        edge, version = turn.edge, turn.version + k
        part, plan = self.arrivals.pop((number, k))
        self.versions[edge, version + 1], rest = self.executor.mix(
            edge, plan.edge_frame(0, edge), turn.mixes[k].share, self.versions[edge, version], part
        )
        self.beside += rest

    def _plan_of(self, turns: tuple[MixTask, ...]) -> RoundPlan:
        """Return the plan of some turns as of one edge iteration in which each device counts once."""
        pairs = sorted({(turn.edge, mix.arrival.device) for turn in turns for mix in turn.mixes})
        edges, devices = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
        present = np.ones((1, len(devices)), dtype=bool)
        return RoundPlan(self.setting, RoundTask(self.task.round_index, Schedule(devices, edges), present), 1)

    def _merge(self, turn: MixTask) -> None:
        """Submit the update of a turn."""
        merge = Merge.of(self._plan_of((turn,)), turn, self.task.buffers)
        trained = self.versions[turn.edge, turn.version + len(turn.mixes)]
        fetched = self.versions[turn.edge, turn.version]
        version, self.cloud = self.executor.merge(merge, self.cloud, trained, fetched, [])
        self.results.append(version)

    def _collect(self) -> RoundResult:
        """Wait for the round, and return its result."""
        task, before = self.task, self.before
        edges = {turn.edge: self.versions[turn.edge, turn.version + len(turn.mixes)] for turn in task.turns}
        under_way = {edge: self._fetched(edge, source) for edge, source in task.under_way.items()}
        in_use = {key: self._version(*key) for key in task.keeps}
        groups = [
            [self.cloud], list(edges.values()) if task.together else [], list(under_way.values()),
            list(in_use.values()), self.beside if self.setting.method.measures else [],
        ]  # fmt: skip
        found, remembered, losses = results_of(self.executor, self.setting, self.memories, self.losses, groups)
        (after,), models, fetched, versions, handed = found
        state = after_merges(before, after, remembered, dict(zip(under_way, fetched, strict=True)))
        kept = {key: version.model for key, version in zip(in_use, versions, strict=True)}
        state = replace(state, versions=kept)
        if task.together and task.turns:
            state = combine_edges(self._plan_of(task.turns), state, dict(zip(edges, models, strict=True)), [])
        return with_measures(self.setting, before, RoundResult(state, losses), handed)
