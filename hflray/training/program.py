"""The program of a round: what devices, edges and the cloud do, in the order in which it is submitted.

A round is known whole before it is trained: who trains on which version of which edge's model, and when a model is
combined, mixed in or merged. A program says it as a list of steps, which name models by keys, and
`hflray.training.driver` puts values, or references to them, in their place. There are these kinds of round:

* Cloud and edges wait: all edges of the round do their edge iterations in lockstep (Algorithm 1).
* Regions combine their edges several times in a round, and the cloud combines the regions at its end.
* There is no cloud: each edge goes on with its own model, and mixes its neighbours' models in at the end of the round.
* The cloud takes each edge's model when it arrives: each turn of an edge is a program of its own, and the steps of all
  turns stand in the order of time, so that no actor waits behind work that is not ready.
* Edges take each device's model when it arrives: one device's pass at a time is trained and mixed in, in that
  order, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

from hflray.aggregation import Frame
from hflray.cost import Schedule
from hflray.training.exchange import EdgeTask
from hflray.training.iterations import Iterations
from hflray.training.nodes import Gather, Merge
from hflray.training.state import RoundTask, TrainingSetting
from hflray.world.turns import AsynchronousRound, Turn

Key = tuple[Any, ...]
CLOUD: Key = ("cloud",)
Event = tuple[Any, ...]  # when it is in time, what orders it among those of one moment, and what writes it


class Step(NamedTuple):
    """A call of a host or an edge.

    Attributes:
        does: its method: ``losses``, ``train`` (`hflray.training.local.DeviceHost`), ``finish``, ``close``, ``mix``,
            ``gather`` or ``merge`` (`hflray.training.nodes.EdgeWorker`).
        at, place: among whom, and the number of the host, edge or region; edges share workers.
        arguments: the values that it gets.
        reads: the keys of what it gets after them: a model, or something else that was made before. What the round has
            not made is of the state before it: ``global`` (the model that an edge fetches, or all of them), ``fetched``
            (what an edge fetched in an earlier round), ``version`` (an asynchronous edge's, by number), ``own`` (an
            edge's without a cloud), ``memory`` (what devices of a host keep), ``residuals`` (what edges of a region
            keep) or ``cloud``.
        writes: the keys of its results.
        hosts: the hosts that have made the last of `reads`, which a pool may add up on the way.
    """

    does: str
    at: Literal["devices", "edges"]
    place: int
    arguments: tuple[Any, ...]
    reads: tuple[Key, ...]
    writes: tuple[Key, ...]
    hosts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Program:
    """The program of a round.

    Attributes:
        steps: its steps.
        ends: where the cloud combines all edges or regions at one moment, or edges mix without a cloud, the key of what
            each of them sends, by its number.
        weights: the weight of each at the cloud, by its number.
        together: the edge iterations before that; None: the cloud takes edges one by one.
        under_way: the key of what each edge has fetched that is under way at the end of the round, by edge.
        keeps: the keys of versions of asynchronous edges that later rounds need, by edge and number.
    """

    steps: Sequence[Step]
    ends: Mapping[int, Key] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)
    together: Iterations | None = None
    under_way: Mapping[int, Key] = field(default_factory=dict)
    keeps: Mapping[tuple[int, int], Key] = field(default_factory=dict)

    def members(self, host: int) -> list[int]:
        """Return the devices that a host trains; a device that remembers something has one host."""
        tasks: list[EdgeTask] = [s.arguments[0] for s in self.steps if s.does == "train" and s.place == host]
        return list(dict.fromkeys(device for task in tasks for share in task.shares for device in share.devices))


class _Writer:
    """Writes the steps of a program."""

    def __init__(self, setting: TrainingSetting, wants_losses: bool, shared_start: bool) -> None:
        self.setting, self.wants_losses, self._shared = setting, wants_losses, shared_start
        self.parts = setting.method.parts()
        self._tells = bool(self.parts.rule.extra) or setting.method.measures
        self.steps: list[Step] = []

    def key(self) -> Key:
        """Return a new key."""
        return ("made", len(self.steps))

    def fetch(self, edge: int, source: int | None) -> Key:
        """Return the key of what an edge fetched after so many updates of this round; None: in an earlier round."""
        if source:
            return ("arrived", source)
        return ("fetched", edge) if source is None else ("global", None if self._shared else edge)

    def train(
        self, host: int, task: EdgeTask, versions: tuple[Key, ...], ending: Sequence[tuple[int, ...]]
    ) -> tuple[Key, ...]:
        """Write that a host trains each share of a task from a version; return the keys of what is handed up.

        The losses of the devices in `ending`, of each share, are measured before.
        """
        if any(ending):
            reads = versions[: len(task.shares)]
            self.steps.append(Step("losses", "devices", host, (ending,), reads, (("losses", len(self.steps)),)))
        memory: tuple[Key, ...] = (("memory", host),) if self.parts.remembers else ()
        parts = tuple((*self.key(), k) for k in range(len(task.shares)))
        arguments = (task,) if memory else (task, None)
        self.steps.append(Step("train", "devices", host, arguments, (*memory, *versions), (*parts, *memory)))
        return parts

    def edge(
        self, does: str, edge: int, frame: Frame, reads: Sequence[Key], hosts: Sequence[int] = (), *more: Any
    ) -> Key:
        """Write that an edge makes a version, and perhaps hands on what is beside models; return the version's key."""
        after = self.key()
        tells = () if does == "close" else (self._tells,)
        beside = (("beside", after),) if any(tells) else ()
        arguments = (self.setting.method.edge, frame, *tells, *more)
        self.steps.append(Step(does, "edges", edge, arguments, tuple(reads), (after, *beside), tuple(hosts)))
        return after

    def iteration(self, edges: Iterations, q: int, version: Mapping[int, Key], closing: bool = False) -> dict[int, Key]:
        """Write an edge iteration; return the version of each edge after it.

        Args:
            edges: the edge iterations of some edges in lockstep.
            q: the number of this one.
            version: the version of each edge before it.
            closing: whether the last one of each edge hands its sum to the cloud (equation 16).
        """
        gathered: dict[int, list[tuple[int, Key]]] = {edge: [] for edge in edges.plans[q].edge_weights}
        for host, share in enumerate(edges.plans[q].shares):
            if not share:
                continue
            ending = [edges.leaving(q, edge, devices) for edge, devices in share.items() if self.wants_losses]
            earlier = (edges.versions[at] for at in edges.earlier(q, share))
            parts = self.train(host, edges.task(q, share), (*(version[edge] for edge in share), *earlier), ending)
            for edge, part in zip(share, parts, strict=True):
                gathered[edge].append((host, part))
        after = dict(version)
        for edge, every in gathered.items():
            closes, (hosts, parts) = closing and q == edges.last[edge], zip(*every, strict=True)
            does, before = ("close", ()) if closes else ("finish", (version[edge],))
            after[edge] = self.edge(does, edge, edges.edge_frame(q, edge), (*before, *parts), hosts)
            edges.versions[edge, q] = after[edge]
        return after

    def arrive(
        self, played: AsynchronousRound, number: int, edges: Iterations, trained: Key, fetched: Key,
        combined: Sequence[Key] = (),
    ) -> None:  # fmt: skip
        """Write that the cloud takes the model of an edge.

        Args:
            played: the round.
            number: the number of the update in it, from 0.
            edges: the edge iterations of its turn.
            trained, fetched: the keys of the model, and of what the edge began with.
            combined: the versions of the turn, whose devices may have handed up more than models.
        """
        update, setting = played.updates[number], self.setting
        turn = update.turn
        merge = Merge(
            method=setting.method,
            seed=setting.seed,
            sizes=setting.sizes,
            num_devices=len(setting.samples),
            position=(turn.round, turn.first + edges.count - 1),
            edge=turn.edge,
            rate=edges.rate_of(turn.edge),
            extra_bits=edges.extra_bits,
            share=update.share,
            shares=tuple(update.shares.items()),
            buffer=played.rule.buffer if played.rule is not None and played.rule.buffer > 1 else 0,
            steps=update.steps,
        )
        beside = [("beside", key) for key in combined if self._tells]
        reads = (CLOUD, trained, fetched, *beside)
        self.steps.append(Step("merge", "edges", 0, (merge,), reads, (("arrived", number + 1), CLOUD)))


def program_of(task: RoundTask, setting: TrainingSetting, hosts: int, shared_start: bool) -> Program:
    """Return the program of a round.

    Args:
        task: what the round trains.
        setting: what is the same in all rounds.
        hosts: the number of hosts that train devices.
        shared_start: whether all edges that fetch the global model get the same.
    """
    writer = _Writer(setting, task.wants_losses, shared_start)
    if task.played is not None:
        return _of_turns(writer, task.round_index, task.played, hosts)
    edges = Iterations(setting, task.round_index, task.schedule, task.participates, hosts, ends=task.ends)
    if setting.tree.graph is not None:
        return _of_gossip(writer, task, edges)
    return _of_a_cloud(writer, edges) if setting.tree.regions is None else _of_regions(writer, edges)


def _of_a_cloud(writer: _Writer, edges: Iterations) -> Program:
    """Return the program of Algorithm 1."""
    version = {edge: writer.fetch(edge, 0) for edge in edges.last}
    for q in range(edges.count):
        version = writer.iteration(edges, q, version, writer.parts.adds_totals)
    return Program(writer.steps, version, edges.weights_in(0, edges.count), edges)


def _of_regions(writer: _Writer, edges: Iterations) -> Program:
    """Return the program of a round in which regions combine their edges several times, and then send to the cloud.

    A region keeps its model where no edge of it has devices. Regions are numbered after the edges.
    """
    setting, regions = writer.setting, writer.setting.tree.regions
    assert regions is not None
    parent = {edge: int(regions.parent[edge]) for edge in edges.last}
    version = {edge: writer.fetch(edge, 0) for edge in parent}
    model: dict[int, Key] = {}  # of each region
    weight: dict[int, int] = {}
    block = edges.count // setting.method.region_iterations
    for q in range(edges.count):
        version = writer.iteration(edges, q, version)
        if (q + 1) % block:
            continue
        weights = edges.weights_in(q + 1 - block, q + 1)
        for region in sorted({parent[edge] for edge in weights}):
            members = tuple(sorted(edge for edge in weights if parent[edge] == region))
            sent = tuple(weights[edge] for edge in members)
            frame = edges.frame_above("region", region, q, sent)
            gather = Gather(setting.method, frame, setting.sizes, members, sent)
            before, residuals = model.get(region, writer.fetch(members[0], 0)), ("residuals", region)
            reads = (before, residuals, *(version[edge] for edge in members))
            model[region], weight[region] = writer.key(), sum(sent)
            writer.steps.append(Step("gather", "edges", region, (gather,), reads, (model[region], residuals)))
        version = {edge: model.get(parent[edge], key) for edge, key in version.items()}
    count = setting.num_edges
    ends = {count + region: key for region, key in model.items()}
    return Program(writer.steps, ends, {count + region: weight[region] for region in model}, edges)


def _of_gossip(writer: _Writer, task: RoundTask, edges: Iterations) -> Program:
    """Return the program of a round in which edges mix their models with those of their neighbours, without a cloud."""
    num_edges = writer.setting.num_edges
    mixing = range(num_edges) if task.mixes is None else np.flatnonzero(task.mixes).tolist()
    version: dict[int, Key] = {edge: ("own", edge) for edge in sorted({*edges.last, *mixing})}
    for q in range(edges.count):
        version = writer.iteration(edges, q, version)
    return Program(writer.steps, {edge: version[edge] for edge in mixing}, together=edges)


def _of_turns(writer: _Writer, index: int, played: AsynchronousRound, hosts: int) -> Program:
    """Return the program of turns, whose steps stand in the order of time."""
    turns, dealt = [update.turn for update in played.updates], _Dealt(writer.setting, hosts)
    versions: dict[tuple[int, int], Key] = {}  # of asynchronous edges, by edge and number
    if any(turn.passes is not None for turn in turns):
        events = _mixing(writer, index, played, dealt, versions)
    else:
        events = _waiting(writer, index, played, dealt)
    for *_, do in sorted(events, key=lambda event: event[:-1]):
        do()
    # What later rounds need: what edges under way have fetched, and versions of edges that exist now. Those that a turn
    # under way makes do not exist before its update arrives.
    after = played.after
    under_way = {turn.edge: writer.fetch(turn.edge, _source(turn, index)) for turn in after.turns}
    first = {turn.edge: turn.fetched for turn in after.turns}
    needed = [(turn.edge, mix.arrival.version) for turn in after.turns for mix in turn.mixes]
    needed += [(edge, waiting.version) for edge, waiting in after.waiting]
    exist = sorted({(edge, number) for edge, number in needed if edge not in first or number < first[edge]})
    keeps = {key: versions.get(key, ("version", *key)) for key in exist}
    if played.rule is not None or not turns:
        return Program(writer.steps, under_way=under_way, keeps=keeps)
    ends = {turn.edge: versions[turn.edge, turn.fetched + len(turn.mixes)] for turn in turns}
    together = _in_lockstep(writer.setting, index, turns)
    return Program(writer.steps, ends, together.weights_in(0, 1), together, under_way, keeps)


def _waiting(writer: _Writer, index: int, played: AsynchronousRound, dealt: _Dealt) -> list[Event]:
    """Return when what is written in turns in which edges wait for their devices.

    An update comes before an edge iteration that begins at the same moment, because the edge of that iteration may have
    fetched what the update made. Updates keep their order.
    """
    setting, turns = writer.setting, [update.turn for update in played.updates]
    versions: list[list[Key]] = [[writer.fetch(turn.edge, _source(turn, index))] for turn in turns]
    events: list[Event] = []

    def iterate(number: int, edges: Iterations, q: int) -> None:
        edge, before = turns[number].edge, versions[number][-1]
        after = writer.iteration(edges, q, {edge: before})[edge]
        versions[number] += [after] if after != before else []

    def arrive(number: int, edges: Iterations) -> None:
        fetched, *combined = versions[number]
        writer.arrive(played, number, edges, versions[number][-1], fetched, combined)

    for number, turn in enumerate(turns):
        rows = turn.happens
        order = np.argsort(-setting.samples[rows.devices], kind="stable")
        host = np.empty(len(order), dtype=np.intp)
        host[order] = [dealt.host(device) for device in rows.devices[order].tolist()]
        schedule = Schedule(rows.devices, np.full(len(rows.devices), turn.edge))
        edges = Iterations(setting, turn.round, schedule, rows.participates, dealt.hosts, turn.first, host)
        events.append((turn.end_s, 0, number, 0, partial(arrive, number, edges)))
        begins_s = turn.begin_s + np.concatenate([[0.0], rows.iteration_end_s[:-1, 0]])
        events += [(at_s, 1, number, q, partial(iterate, number, edges, q)) for q, at_s in enumerate(begins_s.tolist())]
    return events


def _mixing(
    writer: _Writer, index: int, played: AsynchronousRound, dealt: _Dealt, versions: dict[tuple[int, int], Key]
) -> list[Event]:
    """Return when what is written in turns in which edges take each device's model when it arrives.

    Moments grow in a turn, so that rounding cannot order an event before one that it needs: the fetch from the cloud,
    the training of an arrival, its mixing, and the update of the cloud.
    """
    setting, turns = writer.setting, [update.turn for update in played.updates]
    last = {mix.arrival.device: (number, k) for number, turn in enumerate(turns) for k, mix in enumerate(turn.mixes)}
    trained: dict[tuple[int, int], tuple[Frame, Key]] = {}

    def train(number: int, k: int) -> None:
        edge, arrival = turns[number].edge, turns[number].mixes[k].arrival
        host, devices = dealt.host(arrival.device), (arrival.device,)
        schedule, alone = Schedule(np.array(devices), np.array([edge])), np.ones((1, 1), dtype=bool)
        edges = Iterations(setting, arrival.round, schedule, alone, dealt.hosts, arrival.number, np.array([host]))
        ending = [devices] if writer.wants_losses and last[arrival.device] == (number, k) else []
        begins = versions.get((edge, arrival.version), ("version", edge, arrival.version))
        (part,) = writer.train(host, edges.task(0, {edge: devices}), (begins,), ending)
        trained[number, k] = edges.edge_frame(0, edge), part

    def mix(number: int, k: int) -> None:
        edge, before = turns[number].edge, turns[number].fetched + k
        frame, part = trained.pop((number, k))
        reads, share = (versions[edge, before], part), turns[number].mixes[k].share
        versions[edge, before + 1] = writer.edge("mix", edge, frame, reads, (), share)

    def arrive(number: int) -> None:
        turn = turns[number]
        fetched, trained = (versions[turn.edge, turn.fetched + k] for k in (0, len(turn.mixes)))
        writer.arrive(played, number, _in_lockstep(setting, index, [turn]), trained, fetched)

    events: list[Event] = []
    made: dict[tuple[int, int], float] = {}  # when a version of an edge is made
    updates: list[float] = [0.0]
    for number, turn in enumerate(turns):
        source = _source(turn, index)
        versions[turn.edge, turn.fetched] = writer.fetch(turn.edge, source)
        now_s = made[turn.edge, turn.fetched] = max(turn.begin_s, updates[source] if source else turn.begin_s)
        for k, arriving in enumerate(turn.mixes):
            arrival = arriving.arrival
            begin_s = max(arrival.begin_s, made.get((turn.edge, arrival.version), arrival.begin_s))
            now_s = made[turn.edge, turn.fetched + k + 1] = max(now_s, arriving.moment_s, begin_s)
            order = 2 * max(0, arrival.version - turn.fetched) + 1
            events.append((begin_s, number, order, partial(train, number, k)))
            events.append((now_s, number, 2 * k + 2, partial(mix, number, k)))
        updates.append(max(now_s, turn.end_s, updates[-1]))
        if played.rule is not None:
            events.append((updates[-1], number, 2 * len(turn.mixes) + 3, partial(arrive, number)))
    return events


class _Dealt:
    """Deals devices to hosts, each to the one with the least work so far; a device keeps its host, and its memory."""

    def __init__(self, setting: TrainingSetting, hosts: int) -> None:
        self.hosts, self._samples, self._load = hosts, setting.samples, np.zeros(hosts, dtype=np.int64)
        self._host: dict[int, int] = {}

    def host(self, device: int) -> int:
        """Return the host that trains a device once more."""
        host = self._host.setdefault(device, int(self._load.argmin()))
        self._load[host] += self._samples[device]
        return host


def _in_lockstep(setting: TrainingSetting, index: int, turns: Sequence[Turn]) -> Iterations:
    """Return turns of asynchronous edges as one edge iteration, in which each device of an edge counts once."""
    pairs = sorted({(turn.edge, mix.arrival.device) for turn in turns for mix in turn.mixes})
    edges, devices = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return Iterations(setting, index, Schedule(devices, edges), np.ones((1, len(devices)), dtype=bool), 1)


def _source(turn: Turn, index: int) -> int | None:
    """Return how many updates the round had before an edge fetched; None: it fetched in an earlier round."""
    return turn.position if turn.round == index else None
