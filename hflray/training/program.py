"""The program of a round: what devices, edges and the cloud do, in the order in which it is submitted.

A round is known whole before it is trained: who trains on which version of which edge's model, and when a model is
combined, mixed in or merged. A program says it as a list of steps. It names models by keys, which are numbers, and
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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from hflray.aggregation import Frame
from hflray.cost import Schedule
from hflray.training.cloud import Gather, Merge
from hflray.training.exchange import EdgeTask
from hflray.training.iterations import Iterations
from hflray.training.state import RoundTask, TrainingSetting
from hflray.world.turns import AsynchronousRound, Turn

Key = int  # of a version of a model, or of what a host hands up


class PlayedTask(NamedTuple):
    """What a round trains whose cloud or edges do not wait: the turns whose updates arrive in it.

    Attributes:
        round_index: i, from 1.
        played: what happens in it.
        mixes: whether edges take each device's model when it arrives.
        together: whether the cloud combines the edges at one moment.
        buffers: whether it has a buffer.
        wants_losses: whether the losses of the devices are computed.
    """

    round_index: int
    played: AsynchronousRound
    mixes: bool = False
    together: bool = False
    buffers: bool = False
    wants_losses: bool = False


AnyTask = RoundTask | PlayedTask


class Fetch(NamedTuple):
    """An edge begins with a model of the state before the round.

    Attributes:
        key: of the model.
        edge: the edge; None: any, because all begin with the same.
        origin: "global": the global model; "fetched": what the edge fetched in an earlier round; "own": the model that
            an edge has without a cloud; or the number of a version of an asynchronous edge.
    """

    key: Key
    edge: int | None
    origin: str | int


class Train(NamedTuple):
    """A host trains devices of one or several edges.

    Attributes:
        host: the host.
        task: what it trains.
        versions: the version with which each share of the task begins.
        parts: the keys of what is handed up, one for each share.
        ending: for each share, the devices whose losses are measured.
    """

    host: int
    task: EdgeTask
    versions: tuple[Key, ...]
    parts: tuple[Key, ...]
    ending: tuple[tuple[int, ...], ...] = ()


class Combine(NamedTuple):
    """An edge combines its devices (equation 2).

    Attributes:
        edge: the edge.
        frame: where and when.
        parts: host and key of what is combined.
        before, after: the keys of the edge's version before and after it.
        closes: whether the edge hands its sum to a cloud that adds sums (equation 16).
    """

    edge: int
    frame: Frame
    parts: tuple[tuple[int, Key], ...]
    before: Key
    after: Key
    closes: bool = False


class Mix(NamedTuple):
    """An asynchronous edge takes the model of a device with a share; see `Combine` for the rest."""

    edge: int
    frame: Frame
    share: float
    part: Key
    before: Key
    after: Key


class Arrive(NamedTuple):
    """The cloud takes the model of an edge.

    Attributes:
        merge: how.
        trained, fetched: the keys of the model, and of what the edge began with.
        combined: the keys after the `Combine` steps of the turn, whose devices may have handed up more than models.
        after: the key of what the edge fetches next.
    """

    merge: Merge
    trained: Key
    fetched: Key
    combined: tuple[Key, ...]
    after: Key


class Meet(NamedTuple):
    """A region combines its edges.

    Attributes:
        gather: how.
        parts: the key of the model of each edge.
        before, after: the keys of the region's version before and after it.
    """

    gather: Gather
    parts: tuple[Key, ...]
    before: Key
    after: Key


Step = Fetch | Train | Combine | Mix | Meet | Arrive


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

    steps: tuple[Step, ...]
    ends: Mapping[int, Key] = field(default_factory=dict)
    weights: Mapping[int, int] = field(default_factory=dict)
    together: Iterations | None = None
    under_way: Mapping[int, Key] = field(default_factory=dict)
    keeps: Mapping[tuple[int, int], Key] = field(default_factory=dict)

    def members(self) -> dict[int, list[int]]:
        """Return the devices that each host trains, by host; a device that remembers something has one host."""
        trained: dict[int, dict[int, None]] = {}
        for step in self.steps:
            if isinstance(step, Train):
                every = (device for share in step.task.shares for device in share.devices)
                trained.setdefault(step.host, {}).update(dict.fromkeys(every))
        return {host: list(devices) for host, devices in trained.items()}


class _Writer:
    """Writes the steps of a program."""

    def __init__(self, setting: TrainingSetting, wants_losses: bool, shared_start: bool) -> None:
        self.setting, self.wants_losses, self._shared = setting, wants_losses, shared_start
        self.steps: list[Step] = []
        self.arrived: list[Key] = []  # what an edge fetches after each update of the round
        self._fetched: dict[tuple[int | None, str | int], Key] = {}
        self._keys = 0

    def key(self) -> Key:
        """Return a new key."""
        self._keys += 1
        return self._keys

    def before(self, edge: int | None, origin: str | int) -> Key:
        """Return the key of a model of the state before the round."""
        if (edge, origin) not in self._fetched:
            self._fetched[edge, origin] = self.key()
            self.steps.append(Fetch(self._fetched[edge, origin], edge, origin))
        return self._fetched[edge, origin]

    def fetch(self, edge: int, source: int | None) -> Key:
        """Return the key of what an edge fetched after so many updates of this round; None: in an earlier round."""
        if source:
            return self.arrived[source - 1]
        if source is None:
            return self.before(edge, "fetched")
        return self.before(None if self._shared else edge, "global")

    def iteration(self, edges: Iterations, q: int, version: Mapping[int, Key], closing: bool = False) -> dict[int, Key]:
        """Write an edge iteration; return the version of each edge after it.

        Args:
            edges: the edge iterations of some edges in lockstep.
            q: the number of this one.
            version: the version of each edge before it.
            closing: whether the last one of each edge hands its sum to the cloud.
        """
        gathered: dict[int, list[tuple[int, Key]]] = {edge: [] for edge in edges.plans[q].edge_weights}
        for host, share in enumerate(edges.plans[q].shares):
            if not share:
                continue
            ending = tuple(edges.leaving(q, edge, devices) for edge, devices in share.items() if self.wants_losses)
            parts = tuple(self.key() for _ in share)
            versions = tuple(version[edge] for edge in share)
            self.steps.append(Train(host, edges.task(q, share), versions, parts, ending))
            for edge, part in zip(share, parts, strict=True):
                gathered[edge].append((host, part))
        after = {edge: self.key() for edge in gathered}
        for edge, every in gathered.items():
            closes = closing and q == edges.last[edge]
            frame = edges.edge_frame(q, edge)
            self.steps.append(Combine(edge, frame, tuple(every), version[edge], after[edge], closes))
        return {**version, **after}

    def arrive(self, merge: Merge, trained: Key, fetched: Key, combined: Sequence[Key]) -> None:
        """Write that a model arrives at the cloud."""
        self.arrived.append(self.key())
        self.steps.append(Arrive(merge, trained, fetched, tuple(combined), self.arrived[-1]))


def program_of(task: AnyTask, setting: TrainingSetting, hosts: int, shared_start: bool) -> Program:
    """Return the program of a round.

    Args:
        task: what the round trains.
        setting: what is the same in all rounds.
        hosts: the number of hosts that train devices.
        shared_start: whether all edges that fetch the global model get the same.
    """
    writer = _Writer(setting, task.wants_losses, shared_start)
    if isinstance(task, RoundTask):
        edges = Iterations(setting, task.round_index, task.schedule, task.participates, hosts)
        if setting.tree.graph is not None:
            return _of_gossip(writer, task, edges)
        return _of_a_cloud(writer, edges) if setting.tree.regions is None else _of_regions(writer, edges)
    turns = [update.turn for update in task.played.updates]
    return (_of_mixing_edges if task.mixes else _of_waiting_edges)(writer, task, turns, hosts)


def _of_a_cloud(writer: _Writer, edges: Iterations) -> Program:
    """Return the program of Algorithm 1."""
    version = {edge: writer.fetch(edge, 0) for edge in edges.last}
    closing = writer.setting.method.parts().adds_totals
    for q in range(edges.count):
        version = writer.iteration(edges, q, version, closing)
    return Program(tuple(writer.steps), version, edges.weights_in(0, edges.count), edges)


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
            members = sorted(edge for edge in weights if parent[edge] == region)
            sent = tuple(weights[edge] for edge in members)
            frame = edges.frame_above("region", region, q, sent)
            gather = Gather(setting.method, frame, setting.sizes, tuple(members), sent)
            before = model.get(region, writer.fetch(members[0], 0))
            model[region], weight[region] = writer.key(), sum(sent)
            writer.steps.append(Meet(gather, tuple(version[edge] for edge in members), before, model[region]))
        version = {edge: model.get(parent[edge], key) for edge, key in version.items()}
    count = setting.num_edges
    ends = {count + region: key for region, key in model.items()}
    return Program(tuple(writer.steps), ends, {count + region: weight[region] for region in model}, edges)


def _of_gossip(writer: _Writer, task: RoundTask, edges: Iterations) -> Program:
    """Return the program of a round in which edges mix their models with those of their neighbours, without a cloud."""
    num_edges = writer.setting.num_edges
    mixing = range(num_edges) if task.mixes is None else np.flatnonzero(task.mixes).tolist()
    version = {edge: writer.before(edge, "own") for edge in sorted({*edges.last, *mixing})}
    for q in range(edges.count):
        version = writer.iteration(edges, q, version)
    return Program(tuple(writer.steps), {edge: version[edge] for edge in mixing}, together=edges)


def _of_waiting_edges(writer: _Writer, task: PlayedTask, turns: Sequence[Turn], hosts: int) -> Program:
    """Return the program of turns in which edges wait for their devices.

    An update comes before an edge iteration that begins at the same moment, because the edge of that iteration may have
    fetched what the update made. Updates keep their order.
    """
    setting, dealt = writer.setting, _Dealt(writer.setting, hosts)
    iterations = []
    for turn in turns:
        rows = turn.happens
        order = np.argsort(-setting.samples[rows.devices], kind="stable")
        host = np.empty(len(order), dtype=np.intp)
        host[order] = [dealt.host(device) for device in rows.devices[order].tolist()]
        schedule = Schedule(rows.devices, np.full(len(rows.devices), turn.edge))
        iterations.append(Iterations(setting, turn.round, schedule, rows.participates, hosts, turn.first, host))
    fetched: dict[int, Key] = {}
    version: dict[int, Key] = {}
    combined: list[list[Key]] = [[] for _ in turns]
    for number, q in _in_time(turns):
        turn, edge = turns[number], turns[number].edge
        if q is None:
            merge = _merge(task, number, iterations[number])
            writer.arrive(merge, version[number], fetched[number], combined[number])
            continue
        if number not in fetched:
            fetched[number] = version[number] = writer.fetch(edge, _source(turn, task.round_index))
        after = writer.iteration(iterations[number], q, {edge: version[number]})[edge]
        combined[number] += [after] if after != version[number] else []
        version[number] = after
    under_way = _under_way(writer, task)
    return Program(tuple(writer.steps), under_way=under_way)


def _in_time(turns: Sequence[Turn]) -> list[tuple[int, int | None]]:
    """Return the number of a turn and its edge iteration, None for its update, in the order of time."""
    events: list[tuple[float, int, int, int, int | None]] = []
    for number, turn in enumerate(turns):
        events.append((turn.end_s, 0, number, 0, None))
        begins_s = turn.begin_s + np.concatenate([[0.0], turn.happens.iteration_end_s[:-1, 0]])
        events += [(begin_s, 1, number, q, q) for q, begin_s in enumerate(begins_s.tolist())]
    return [(number, q) for *_, number, _, q in sorted(events, key=lambda event: event[:4])]


def _of_mixing_edges(writer: _Writer, task: PlayedTask, turns: Sequence[Turn], hosts: int) -> Program:
    """Return the program of turns in which edges take each device's model when it arrives."""
    setting, dealt = writer.setting, _Dealt(writer.setting, hosts)
    versions: dict[tuple[int, int], Key] = {}
    trained: dict[tuple[int, int], tuple[Iterations, Key]] = {}
    mixes = [turn.mixed for turn in turns]
    last = {mix.arrival.device: (number, k) for number, every in enumerate(mixes) for k, mix in enumerate(every)}

    def version(edge: int, number: int) -> Key:
        return versions[edge, number] if (edge, number) in versions else writer.before(edge, number)

    def fetch(number: int, _: int) -> None:
        turn = turns[number]
        versions[turn.edge, turn.fetched] = writer.fetch(turn.edge, _source(turn, task.round_index))

    def train(number: int, k: int) -> None:
        edge, arrival = turns[number].edge, mixes[number][k].arrival
        host, devices = dealt.host(arrival.device), (arrival.device,)
        schedule = Schedule(np.array(devices), np.array([edge]))
        alone = Iterations(
            setting, arrival.round, schedule, np.ones((1, 1), dtype=bool), hosts, arrival.number, np.array([host])
        )
        ending = (devices,) if task.wants_losses and last[arrival.device] == (number, k) else ()
        part, begins = writer.key(), version(edge, arrival.version)
        writer.steps.append(Train(host, alone.task(0, {edge: devices}), (begins,), (part,), ending))
        trained[number, k] = alone, part

    def mix(number: int, k: int) -> None:
        edge, before = turns[number].edge, turns[number].fetched + k
        alone, part = trained.pop((number, k))
        after = versions[edge, before + 1] = writer.key()
        frame, share = alone.edge_frame(0, edge), mixes[number][k].share
        writer.steps.append(Mix(edge, frame, share, part, versions[edge, before], after))

    def arrive(number: int, _: int) -> None:
        if task.together:
            return
        turn = turns[number]
        merge = _merge(task, number, _in_lockstep(setting, task.round_index, [turn]))
        ends = versions[turn.edge, turn.fetched + len(mixes[number])]
        writer.arrive(merge, ends, versions[turn.edge, turn.fetched], ())

    for event, number, k in _mixes_in_time(turns, task.round_index, (fetch, train, mix, arrive)):
        event(number, k)
    ends = {turn.edge: versions[turn.edge, turn.fetched + len(mixes[n])] for n, turn in enumerate(turns)}
    keeps = {key: version(*key) for key in _versions_to_keep(task.played)}
    together = _in_lockstep(setting, task.round_index, turns) if task.together and turns else None
    under_way = _under_way(writer, task)
    weights = {} if together is None else together.weights_in(0, 1)
    return Program(tuple(writer.steps), ends if together else {}, weights, together, under_way, keeps)


def _mixes_in_time(turns: Sequence[Turn], index: int, kinds: Sequence[Callable[[int, int], None]]) -> list[Any]:
    """Return what happens in the order of time, as one of four `kinds`, the number of the turn and of the arrival.

    The kinds are the fetch from the cloud, the training of an arrival, its mixing, and the update of the cloud. Moments
    grow in a turn, so that rounding cannot order an event before one that it needs.
    """
    fetch, train, mix, arrive = kinds
    events: list[tuple[float, int, int, Any]] = []
    made: dict[tuple[int, int], float] = {}  # when a version of an edge is made
    updates: list[float] = []
    for number, turn in enumerate(turns):
        source = _source(turn, index)
        ready_s = updates[source - 1] if source else turn.begin_s
        now_s = made[turn.edge, turn.fetched] = max(turn.begin_s, ready_s)
        events.append((now_s, number, -1, (fetch, number, 0)))
        for k, arriving in enumerate(turn.mixed):
            arrival = arriving.arrival
            begin_s = max(arrival.begin_s, made.get((turn.edge, arrival.version), arrival.begin_s))
            now_s = made[turn.edge, turn.fetched + k + 1] = max(now_s, arriving.moment_s, begin_s)
            events.append((begin_s, number, 2 * max(0, arrival.version - turn.fetched) + 1, (train, number, k)))
            events.append((now_s, number, 2 * k + 2, (mix, number, k)))
        updates.append(max([now_s, turn.end_s, *updates[-1:]]))
        events.append((updates[-1], number, 2 * len(turn.mixed) + 3, (arrive, number, 0)))
    return [event for *_, event in sorted(events, key=lambda event: event[:3])]


class _Dealt:
    """Deals devices to hosts, each to the one with the least work so far; a device keeps its host, and its memory."""

    def __init__(self, setting: TrainingSetting, hosts: int) -> None:
        self._samples, self._load = setting.samples, np.zeros(hosts, dtype=np.int64)
        self._host: dict[int, int] = {}

    def host(self, device: int) -> int:
        """Return the host that trains a device once more."""
        host = self._host.setdefault(device, int(self._load.argmin()))
        self._load[host] += self._samples[device]
        return host


def _in_lockstep(setting: TrainingSetting, index: int, turns: Sequence[Turn]) -> Iterations:
    """Return turns of asynchronous edges as one edge iteration, in which each device of an edge counts once."""
    pairs = sorted({(turn.edge, mix.arrival.device) for turn in turns for mix in turn.mixed})
    edges, devices = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    return Iterations(setting, index, Schedule(devices, edges), np.ones((1, len(devices)), dtype=bool), 1)


def _merge(task: PlayedTask, number: int, iterations: Iterations) -> Merge:
    """Return the update of the cloud with a number, from 0, in the round; its turn has these edge iterations."""
    update, setting = task.played.updates[number], iterations.setting
    turn = update.turn
    return Merge(
        method=setting.method,
        seed=setting.seed,
        sizes=setting.sizes,
        num_devices=len(setting.samples),
        position=(turn.round, turn.first + iterations.count - 1),
        edge=turn.edge,
        rate=iterations.rate_of(turn.edge),
        extra_bits=iterations.extra_bits,
        share=update.share,
        shares=tuple(update.shares.items()),
        buffers=task.buffers,
        steps=update.steps,
    )


def _source(turn: Turn, index: int) -> int | None:
    """Return how many updates the round had before an edge fetched; None: it fetched in an earlier round."""
    return turn.position if turn.round == index else None


def _under_way(writer: _Writer, task: PlayedTask) -> dict[int, Key]:
    """Return the key of what each edge has fetched that is under way at the end of the round."""
    return {turn.edge: writer.fetch(turn.edge, _source(turn, task.round_index)) for turn in task.played.after.turns}


def _versions_to_keep(played: AsynchronousRound) -> list[tuple[int, int]]:
    """Return edge and version of the models that later rounds need, and that exist after this one.

    The versions that a turn under way makes do not exist before its update arrives.
    """
    after = played.after
    first = {turn.edge: turn.fetched for turn in after.turns}
    needed = [(turn.edge, mix.arrival.version) for turn in after.turns for mix in turn.mixed]
    needed += [(edge, waiting.version) for edge, passes in after.passes().items() for waiting in passes]
    return sorted({(edge, number) for edge, number in needed if edge not in first or number < first[edge]})
