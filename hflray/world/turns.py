"""What happens in a round in which the cloud, or the edges, do not wait: turns of edges, and the updates they make.

A *turn* is what an edge does between two exchanges with the cloud: it fetches the global model, trains Q edge
iterations with the devices of the newest plan, and sends its model. A turn is drawn and timed whole at its start. The
cloud takes updates in the order of their arrivals, of which the lower edge wins ties. A round is U updates, or where
the cloud waits one of each edge. All times are seconds since the start of the first round.

* A turn of which no row counts sends nothing, and neither does one whose edge fails. The edge waits for the next plan.
* A round also ends when nothing is under way. It then lasts at least as long as one in which nobody is available.
* Joules and bits are billed when they are spent, so that those of a turn may belong to several rounds.

An asynchronous edge (`hflray.clock.mixing`) does turns of passes of its devices, under any cloud that has turns. Passes
that are under way when a turn ends belong to the bill of that turn, and are mixed in by a later one.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from hflray.allocation import Allocation
from hflray.clock.asynchronous import Asynchrony, Way, fedat_shares, in_order
from hflray.clock.mixing import MixedArrival, MixedTurn, Pass, mix_turn
from hflray.clock.waiting import WAITS
from hflray.config import ExperimentConfig
from hflray.config.clock import EdgeClockConfig
from hflray.cost import RoundCost, Schedule, Senders, Workload, hops
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.timeline import UPDATES, Timeline, laid_out, part_of
from hflray.world.world import Outlook, World


@dataclass(frozen=True, eq=False)
class Turn:
    """A turn of an edge.

    Attributes:
        edge: the edge.
        number: how many turns the edge had before.
        round: the round in which it begins.
        first: the number of its first edge iteration among those that the edge begins in that round.
        begin_s: when it begins, s.
        version: the version that it fetches.
        position: how many updates its round had before it.
        mean_weight: D̄ of its plan.
        weight: D_m; 0 if no row counts.
        power_w: what its devices draw while they send, (n,), W.
        happens: what happens, in seconds since its beginning; the edge is the only one and has the number 0.
        fetched: the version of the edge when the turn begins, for an asynchronous edge.
        mixes: the arrivals that an asynchronous edge mixes in.
        passes: the number (`Pass.number`) of the first pass of each device in the turn, (n,); None: the edge waits.
    """

    edge: int
    number: int
    round: int
    first: int
    begin_s: float
    version: int
    position: int
    mean_weight: float
    weight: float
    power_w: FloatArray
    happens: Timeline
    fetched: int = 0
    mixes: tuple[MixedArrival, ...] = ()
    passes: IntArray | None = None

    @property
    def trained(self) -> tuple[IntArray, BoolArray]:
        """The devices that train for its update, (n,), and in which edge iterations or passes, (Q, n)."""
        if self.passes is None:
            return self.happens.devices, self.happens.participates
        devices = np.array([mix.arrival.device for mix in self.mixes], dtype=np.intp)
        return devices, np.ones((1, len(devices)), dtype=bool)

    def rows_of(self, device: int) -> BoolArray:
        """Return whether each row of a device counts, (Q, 1), or each pass that it began, (q,), or nothing, (Q, 0)."""
        column = self.happens.devices == device
        rows = self.happens.participates[:, column]
        return rows if self.passes is None else rows[np.isfinite(self.happens.start_s[:, column])]

    @property
    def sends(self) -> bool:
        """Whether its update reaches the cloud."""
        return bool(self.happens.reached[0]) and self.weight > 0

    @property
    def end_s(self) -> float:
        """When its update arrives, or when it ends without one."""
        return self.begin_s + float(self.happens.edge_delay_s[0])

    @property
    def busy_until_s(self) -> FloatArray:
        """When the last row of each device ends, (n,); when the turn begins if it has none."""
        last = np.nanmax(np.vstack([self.happens.end_s, np.zeros((1, len(self.power_w)))]), axis=0)
        return np.asarray(self.begin_s + last)

    @property
    def settled_s(self) -> float:
        """When nothing more is spent on it."""
        return max(self.end_s, float(self.busy_until_s.max(initial=self.end_s)))

    def within(self, moment_s: FloatArray, begin_s: float, end_s: float) -> BoolArray:
        """Return which moments of the turn are in a round."""
        return (moment_s <= end_s) & ((moment_s > begin_s) | (self.begin_s >= begin_s))

    def ended(self, begin_s: float, end_s: float) -> BoolArray:
        """Return which rows end in a round, (Q, n)."""
        return self.within(self.begin_s + self.happens.end_s, begin_s, end_s)

    def sent(self, begin_s: float, end_s: float) -> BoolArray:
        """Return of which edge iterations a broadcast is of a round, (Q,): that in which the first row ends."""
        return self.within(self.begin_s + np.fmin.reduce(self.happens.end_s, axis=1, initial=np.inf), begin_s, end_s)

    def spent(self, moment_s: float) -> Spent:
        """Return what it has spent until a moment."""
        rows, now_s = self.happens, moment_s - self.begin_s
        received_s, down_j = rows.fetched_s, 0.0
        all_bits, hop_j = float(rows.bits.sum()), float(rows.edge_energy_j[0] - rows.energy_j.sum())
        if rows.received_s is not None and rows.download_j is not None:
            parts = rows.download_j * part_of(now_s - rows.start_s, received_s - rows.start_s)
            # A download for a device that never begins, as of a broadcast, is counted with the hop.
            down_j, hop_j = float(parts.sum()), hop_j - float(rows.download_j[np.isfinite(rows.start_s)].sum())
        hop_bits = rows.message_bits - all_bits
        if moment_s >= self.settled_s:
            return Spent(rows.spent_j, rows.busy_s, all_bits + hop_bits, hop_j + down_j)
        if now_s <= 0:
            return Spent(np.zeros_like(self.power_w), np.zeros_like(self.power_w), 0.0, 0.0)
        computed_s = np.where(np.isfinite(rows.computed_s), rows.computed_s, rows.end_s)
        sending_s = rows.end_s - computed_s
        sending_j = self.power_w * sending_s
        computed = part_of(now_s - received_s, computed_s - received_s)
        sent = part_of(now_s - computed_s, sending_s)
        spent_j = np.nansum((rows.energy_j - sending_j) * computed + sending_j * sent, axis=0)
        busy_s = np.nansum(np.clip(now_s - received_s, 0.0, rows.end_s - received_s), axis=0)
        iterated_s = rows.iteration_end_s[-1]
        hop = float(part_of(now_s - iterated_s, rows.edge_delay_s - iterated_s)[0])
        return Spent(spent_j, busy_s, float(np.nansum(rows.bits * sent)) + hop * hop_bits, hop * hop_j + down_j)


class Spent(NamedTuple):
    """What a turn has spent until a moment.

    Attributes:
        devices_j: by device, (n,), J.
        busy_s: seconds of computing and sending by device, (n,), s.
        bits: all bits sent.
        hop_j: joules of the edge, for sending to the cloud and for downloads.
    """

    devices_j: FloatArray
    busy_s: FloatArray
    bits: float
    hop_j: float

    def since(self, before: Spent) -> Spent:
        """Return what it has spent since it had spent this much."""
        devices_j, busy_s = self.devices_j - before.devices_j, self.busy_s - before.busy_s
        return Spent(devices_j, busy_s, self.bits - before.bits, self.hop_j - before.hop_j)


class Update(NamedTuple):
    """An update of the global model.

    Attributes:
        turn: the turn whose model arrives.
        staleness: τ.
        share: see `Asynchrony.share`; with FedAT the edge's own share.
        shares: the share of each edge's newest model with FedAT, by edge; empty otherwise.
        steps: whether the global model changes, which a buffer delays.
    """

    turn: Turn
    staleness: int
    share: float
    shares: dict[int, float]
    steps: bool


@dataclass(frozen=True, eq=False)
class UnderWay:
    """The clock between rounds.

    Attributes:
        clock_s: the end of the last round, s.
        version: the version of the global model.
        buffered: updates in the buffer.
        updates: the updates of each edge so far, (M,).
        begun: the turns that each edge has begun so far, (M,).
        turns: the turns under way, by edge.
        trailing: the turns that have ended, and of which a pass is under way.
        waiting: the passes that asynchronous edges will not have mixed in when their turns end, each with its edge.
        edge_versions: the version of each asynchronous edge then, (M,); -1 before its first turn.
    """

    clock_s: float
    version: int
    buffered: int
    updates: IntArray
    begun: IntArray
    turns: tuple[Turn, ...] = ()
    trailing: tuple[Turn, ...] = ()
    waiting: tuple[tuple[int, Pass], ...] = ()
    edge_versions: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @classmethod
    def first(cls, num_edges: int) -> Self:
        """Return the clock before round 1, with M edges."""
        none = np.zeros(num_edges, dtype=np.intp)
        return cls(0.0, 0, 0, none, none.copy(), edge_versions=none - 1)

    @classmethod
    def of_state(cls, values: dict[str, Any]) -> Self:
        """Return the clock of its values as `hflray.experiment.record.restored` returns them."""

        def turn(saved: Mapping[str, Any]) -> Turn:
            mixes = tuple(MixedArrival(Pass(*arrival), *numbers) for arrival, *numbers in saved["mixes"] or ())
            return Turn(**{**saved, "happens": Timeline.of_state(saved["happens"]), "mixes": mixes})

        turns = {name: tuple(map(turn, values[name])) for name in ("turns", "trailing")}
        waiting = tuple((edge, Pass(*numbers)) for edge, numbers in values["waiting"])
        return cls(**{**values, **turns, "waiting": waiting})

    def held_hz(self, num_edges: int) -> FloatArray:
        """Return the bandwidth that devices hold at edges between two turns, (M,), Hz."""
        held_hz = np.zeros(num_edges)
        in_turn = {turn.edge for turn in self.turns}
        for edge, under_way in self.waiting:
            if edge not in in_turn and self.clock_s < under_way.end_s:
                held_hz[edge] += under_way.bandwidth_hz
        return held_hz

    @property
    def busy(self) -> IntArray:
        """The devices of which a row has not ended."""
        turns = (*self.trailing, *self.turns)
        none = np.zeros(0, dtype=np.intp)
        return np.concatenate([none, *(turn.happens.devices[turn.busy_until_s > self.clock_s] for turn in turns)])


@dataclass(frozen=True, eq=False)
class AsynchronousRound:
    """A round of a cloud, or of edges, that do not wait.

    Attributes:
        begin_s, end_s: when it begins and ends, s.
        updates: the updates, in their order.
        turns: all turns of which something happens in it.
        after: the clock after it.
        rule: how the cloud takes updates; None: it combines the edges when the slowest has sent.
    """

    begin_s: float
    end_s: float
    updates: tuple[Update, ...]
    turns: tuple[Turn, ...]
    after: UnderWay
    rule: Asynchrony | None = None


Begin = Callable[[int, float, int], Turn | None]


def play(
    rule: Asynchrony | None,
    before: UnderWay,
    planned: Sequence[int],
    begin: Begin,
    *,
    ready_s: float = 0.0,
    wait_s: float = 0.0,
) -> AsynchronousRound:
    """Return what happens in a round.

    Args:
        rule: how the cloud takes updates; None: each edge with devices does one turn, and the cloud waits for all.
        before: the clock after the round before.
        planned: the edges to which the round's plan gives devices.
        begin: returns the turn that an edge begins at a moment under the round's plan, given the number of edge
            iterations that it has begun in this round; None: it cannot. `play` fills in version, position and number.
        ready_s: how long it takes to make the plan, s. An edge without a turn waits for it.
        wait_s: duration of a round without updates, at least, s.
    """
    ways: list[Way] = [(turn.end_s, turn.edge, turn) for turn in before.turns]
    touched = [*before.trailing, *before.turns]
    iterations = dict.fromkeys(planned, 0)
    updates: list[Update] = []
    version, buffered, counts, begun = before.version, before.buffered, before.updates.copy(), before.begun.copy()
    begin_s = now_s = before.clock_s
    most = math.inf if rule is None else rule.updates

    plan_s = begin_s + ready_s

    def start(edge: int, moment_s: float) -> None:
        if moment_s < plan_s:  # it fetches the model of the moment at which it begins
            heapq.heappush(ways, (plan_s, edge, edge))
            return
        turn = begin(edge, moment_s, iterations[edge]) if edge in iterations else None
        if turn is None:
            return
        turn = replace(turn, version=version, position=len(updates), number=int(begun[edge]))
        iterations[edge] += len(turn.happens.start_s)
        begun[edge] += 1
        touched.append(turn)
        heapq.heappush(ways, (turn.end_s, edge, turn))

    under_way = {turn.edge for turn in before.turns}
    for edge in planned:
        if edge not in under_way:
            start(edge, begin_s)
    for turn in in_order(ways, lambda: len(updates) < most):
        if not isinstance(turn, Turn):  # an edge that has waited for the plan
            start(turn, plan_s)
            continue
        edge, now_s = turn.edge, max(now_s, turn.end_s)
        if not turn.sends:
            continue
        counts[edge] += 1
        if rule is None:
            updates.append(Update(turn, 0, turn.weight, {}, False))
            continue
        staleness, buffered = version - turn.version, buffered + 1
        steps = buffered == rule.buffer
        shares = fedat_shares({m: int(count) for m, count in enumerate(counts) if count}) if rule.fedat else {}
        share = shares[edge] if rule.fedat else rule.share(turn.weight, turn.mean_weight, staleness)
        version, buffered = version + steps, 0 if steps else buffered
        updates.append(Update(turn, staleness, share, shares, steps))
        if len(updates) < most:
            start(edge, turn.end_s)
    if rule is None and updates:
        total, version = sum(update.share for update in updates), version + 1
        updates = [update._replace(share=update.share / total) for update in updates]
        updates[-1] = updates[-1]._replace(steps=True)
    end_s = now_s if updates else max(now_s, begin_s + wait_s)
    turns = tuple(sorted((turn for *_, turn in ways if isinstance(turn, Turn)), key=lambda turn: turn.edge))
    left = set(turns)
    trailing = tuple(turn for turn in touched if turn not in left and turn.settled_s > end_s)
    after = UnderWay(end_s, version, buffered, counts, begun, turns, trailing)
    return AsynchronousRound(begin_s, end_s, tuple(updates), tuple(touched), after, rule)


# The columns of a timeline that hold a value for each device of each turn.
COLUMNS: dict[str, type[Any]] = {
    "devices": np.intp, "edges": np.intp, "samples": np.float64, "turn": np.intp, "version": np.intp,
    "turn_j": np.float64, "turn_s": np.float64, "vanished": np.bool_, "device_delay_s": np.float64,
}  # fmt: skip


def timeline_of(played: AsynchronousRound, edges_up: BoolArray, device_bits: float) -> Timeline:
    """Return the timeline of a round: a column for each device of each turn, and the rows that end in the round.

    An edge that was up has reached the cloud unless it failed in the round.
    """
    num_edges, reached = len(edges_up), edges_up.copy()
    begin_s, end_s, turns = played.begin_s, played.end_s, played.turns
    mixes = {mix.arrival[:3]: mix for turn in turns for mix in turn.mixes if mix.moment_s <= end_s}
    ended = [turn.ended(begin_s, end_s) for turn in turns]
    left = np.cumsum([0, *(len(turn.power_w) for turn in turns)]).tolist()
    shape = max(map(len, ended), default=0), left[-1]
    staleness, share = np.full((2, *shape), np.nan)
    columns: dict[str, list[Any]] = {name: [np.zeros(0, dtype=kind)] for name, kind in COLUMNS.items()}
    edge_energy_j, edge_s = np.zeros((2, num_edges))
    bits = 0.0
    for turn, x, rows in zip(turns, left, ended, strict=False):
        happens, edge, size = turn.happens, turn.edge, len(turn.power_w)
        done_s = np.maximum(turn.end_s, turn.busy_until_s)  # a device is told of once, where its last row is over too
        is_done = turn.within(done_s, begin_s, end_s)
        spent = turn.spent(end_s).since(turn.spent(begin_s if turn.begin_s < begin_s else -math.inf))
        edge_energy_j[edge] += spent.devices_j.sum() + spent.hop_j
        edge_s[edge] += max(0.0, min(turn.end_s, end_s) - max(turn.begin_s, begin_s))
        reached[edge] &= happens.reached[0] or turn.end_s > end_s
        bits += spent.bits
        values = (
            happens.devices, np.full(size, edge), happens.samples, np.full(size, turn.number),
            np.full(size, turn.version), spent.devices_j, spent.busy_s, happens.vanished & is_done,
            np.where(is_done, happens.device_delay_s, np.nan),
        )  # fmt: skip
        for name, value in zip(COLUMNS, values, strict=True):
            columns[name].append(value)
        if turn.passes is None:
            continue
        for q, n in np.argwhere(rows):
            mix = mixes.get((int(happens.devices[n]), turn.round, int(turn.passes[n]) + q))
            if mix is not None:
                staleness[q, x + n], share[q, x + n] = mix.staleness, mix.share
    updates = [
        (u.turn.edge, u.turn.number, u.turn.version, u.turn.begin_s + u.turn.happens.iteration_end_s[-1, 0] - begin_s,
         u.turn.end_s - begin_s, u.staleness, u.share)
        for u in played.updates
    ]  # fmt: skip
    sent = [turn.sent(begin_s, end_s) for turn in turns]
    parts = [
        (t.happens, 0, x, t.begin_s - begin_s, rows | (np.isnan(t.happens.start_s) & is_sent[:, None]))
        for t, x, rows, is_sent in zip(turns, left, ended, sent, strict=False)  # those that never begin have its joules
    ]
    return Timeline(
        **{name: np.concatenate(values) for name, values in columns.items()},
        **laid_out(parts, shape),
        iteration_end_s=np.full((shape[0], num_edges), np.nan),
        edge_delay_s=edge_s,
        edge_energy_j=edge_energy_j,
        reached=reached,
        delay_s=end_s - begin_s,
        message_bits=bits,
        device_bits=device_bits,
        updates=np.array(updates, dtype=np.float64).reshape(-1, len(UPDATES)),
        broadcasts=sum(int(is_sent.sum()) for is_sent in sent),
        staleness=staleness,
        share=share,
    )


def turn_fates(played: AsynchronousRound, schedule: Schedule, index: int) -> list[str]:
    """Return what became of the devices of a round's plan, (H,), in words; empty for one that always counts.

    Args:
        played: the round.
        schedule: the scheduled devices and the edge of each, (H,).
        index: i, the number of the round.
    """
    texts = []
    for device, edge in zip(*schedule, strict=True):
        begun = [turn for turn in played.turns if (turn.edge, turn.round) == (edge, index)]
        rows = [turn.rows_of(device) for turn in begun]
        lost = int(sum((~counts).sum() for counts in rows))
        whole = sum(counts.size for counts in rows)
        kind = "passes" if any(turn.passes is not None for turn in begun) else "edge iterations"
        missed = f"did not count in {lost} of {whole} {kind}" if lost else ""
        texts.append(missed if rows else "trained nothing, because its edge had an older plan or failed")
    return texts


@dataclass(frozen=True, eq=False)
class PlannedTurns:
    """Says what happens to a planned round under a cloud or edges that do not wait.

    Attributes:
        rule: how an asynchronous cloud takes updates; None: the cloud waits for its edges.
        work: the work of a turn.
        edge_rule: when an edge iteration ends, or the settings of asynchronous edges.
        uniform: whether all devices have the weight 1 in place of their samples.
    """

    rule: Asynchrony | None
    work: Workload
    edge_rule: EdgeClockConfig
    uniform: bool = False

    @classmethod
    def of(cls, config: ExperimentConfig, work: Workload) -> Self | None:
        """Return what a configuration says; None: both cloud and edges wait."""
        cloud = config.clock.cloud.asynchronous
        if cloud is None and config.clock.edge.asynchronous is None:
            return None
        rule = None if cloud is None else Asynchrony.of(cloud, config.fleet.num_edges)
        return cls(rule, work, config.clock.edge, config.aggregation.weights == "uniform")

    def play(
        self,
        world: World,
        outlook: Outlook,
        schedule: Schedule,
        allocation: Allocation,
        planned: RoundCost,
        before: UnderWay,
        ready_s: float = 0.0,
    ) -> AsynchronousRound:
        """Return what happens.

        Args:
            world: the world at planning.
            outlook: what the plan was made from.
            schedule, allocation, planned: the plan, and its bill as planned.
            before: the clock after the round before.
            ready_s: how long it takes to make the plan, s.
        """
        edges = (_WaitingEdges if self.edge_rule.asynchronous is None else _MixingEdges)(
            self, world, outlook, schedule, allocation, planned, before
        )
        planned_edges = np.unique(schedule.edges).tolist()
        played = play(self.rule, before, planned_edges, edges, ready_s=ready_s, wait_s=world.config.wait_s)
        return replace(played, after=edges.after(played.after))


class _WaitingEdges:
    """Begins the turns of edges that wait for their devices; see `PlannedTurns.play` for the arguments."""

    def __init__(
        self, turns: PlannedTurns, world: World, outlook: Outlook, schedule: Schedule, allocation: Allocation,
        planned: RoundCost, before: UnderWay,
    ) -> None:  # fmt: skip
        self._turns, self._world, self._outlook, self._clock_s = turns, world, outlook, before.clock_s
        self._schedule, self._allocation = schedule, allocation
        self._planned = world.planned(outlook, turns.work, schedule, planned)
        self._weights = np.ones(len(schedule)) if turns.uniform else outlook.fleet.samples[schedule.devices]
        self._mean_weight = float(self._weights.sum() / max(1, len(np.unique(schedule.edges))))
        self._spent_j, self._vanished = np.zeros(len(schedule)), np.zeros(len(schedule), dtype=bool)
        self._same: dict[tuple[int, float], Timeline | None] = {}  # what every turn of the plan is, if nothing changes
        # Of asynchronous edges: their passes that are not mixed in, their versions, and the passes of each device.
        self._waiting, self._versions = before.waiting, before.edge_versions.copy()
        self._passes = np.zeros(len(schedule), dtype=np.intp)
        # What a device holds of its edge's bandwidth while it is under way.
        self._held_hz = allocation.bandwidth_hz * float(outlook.fleet.access.shared)

    def after(self, after: UnderWay) -> UnderWay:
        """Return the clock after the round with what these edges know."""
        waiting = tuple(sorted(self._waiting, key=lambda waiting: waiting[0]))
        return replace(after, waiting=waiting, edge_versions=self._versions)

    def __call__(self, edge: int, begin_s: float, first: int) -> Turn | None:
        """Return the turn that an edge begins; see `play`."""
        rows = np.flatnonzero(self._schedule.edges == edge)
        happens = self._happens(rows, self._turns.work, self._turns.edge_rule, begin_s, first)
        if happens is None:
            return None
        weight = replace(happens, samples=self._weights[rows]).edge_weight()[0]
        return self._turn(edge, begin_s, first, rows, float(weight), happens)

    def _turn(
        self, edge: int, begin_s: float, first: int, rows: IntArray, weight: float, happens: Timeline, **of_mixing: Any
    ) -> Turn:
        """Return a turn of the devices in some rows of the plan, without what `play` fills in."""
        power_w = self._part(rows)[2].power_w
        return Turn(
            edge, 0, self._outlook.round, first, begin_s, 0, 0, self._mean_weight, weight, power_w, happens, **of_mixing
        )

    def _part(self, rows: IntArray, scale: float = 1.0) -> tuple[Schedule, Allocation, Senders]:
        """Return some rows of the plan, with a part of their bandwidth."""
        plan, fleet = self._allocation, self._outlook.fleet
        schedule = Schedule(self._schedule.devices[rows], self._schedule.edges[rows])
        share = None if plan.share is None else plan.share[rows] * scale
        allocation = Allocation(plan.bandwidth_hz[rows] * scale, plan.cpu_hz[rows], share=share)
        senders = Senders.of(fleet, self._turns.work, schedule, allocation.bandwidth_hz, share)
        return schedule, allocation, senders

    def _happens(
        self, rows: IntArray, work: Workload, rule: EdgeClockConfig, begin_s: float, first: int, scale: float = 1.0
    ) -> Timeline | None:
        """Return what happens to the devices in some rows of the plan; see `World.turn`."""
        key = int(rows[0]), scale
        if not (self._world.repeats and key in self._same):
            schedule, allocation, senders = self._part(rows, scale)
            planned = self._planned.take(rows)
            if scale < 1.0:
                upload_s, upload_j = senders.upload()
                planned = replace(planned, upload_s=upload_s, upload_j=upload_j)
            self._same[key] = self._world.turn(
                self._outlook, work, schedule, allocation, planned, rule,
                begin_s=begin_s - self._clock_s, first=first, spent_j=self._spent_j[rows],
            )  # fmt: skip
        happens = self._same[key]
        if happens is not None:
            self._spent_j[rows] += happens.spent_j
            happens = replace(happens, vanished=happens.vanished & ~self._vanished[rows])  # it vanishes once
            self._vanished[rows] |= happens.vanished
        return happens


class _MixingEdges(_WaitingEdges):
    """Begins the turns of asynchronous edges, and knows what is under way when they end."""

    def __call__(self, edge: int, begin_s: float, first: int) -> Turn | None:
        """Return the turn that an edge begins; see `play`."""
        rows, outlook = np.flatnonzero(self._schedule.edges == edge), self._outlook
        config = self._turns.edge_rule.asynchronous
        assert config is not None
        devices = self._schedule.devices[rows].tolist()
        fails_s = self._clock_s + float(self._world.ends(outlook, self._schedule.devices[rows]).fail_s[edge])
        if fails_s <= begin_s or not outlook.edges_up[edge]:
            return None
        waiting = [older for of, older in self._waiting if of == edge and begin_s < older.fails_s]  # else it is lost
        self._wait(edge, waiting)
        row_of = dict(zip(devices, rows.tolist(), strict=True))
        held_hz = sum(older.bandwidth_hz for older in waiting if older.device not in row_of and begin_s < older.end_s)
        planned_hz, rest_hz = float(self._held_hz[rows].sum()), float(self._world.bandwidth_hz[edge]) - held_hz
        scale = 1.0 if rest_hz >= planned_hz * (1 - 1e-9) else max(rest_hz / planned_hz, 1e-6)
        happened: list[Timeline] = []
        work = replace(self._turns.work, edge_iterations=1, cloud_hop=False)

        def begin(device: int, moment_s: float) -> Pass | None:
            row = row_of[device]
            number = int(self._passes[row])
            happens = self._happens(np.array([row]), work, WAITS, moment_s, number, scale)
            if happens is None:
                return None
            self._passes[row] += 1
            happened.append(happens)
            return Pass(
                device=device,
                round=outlook.round,
                number=number,
                begin_s=moment_s,
                end_s=moment_s + float(happens.end_s[0, 0]),
                arrives=bool(happens.participates[0, 0]),
                known_s=moment_s + float(happens.edge_delay_s[0]),
                weight=float(self._weights[row]),
                bandwidth_hz=float(self._held_hz[row] * scale),
                fails_s=min(fails_s, sys.float_info.max),  # a state has no infinity
            )

        version = int(self._versions[edge]) + 1  # the fetch from the cloud
        mixed = mix_turn(
            Asynchrony.of_edge(config, len(rows)), waiting, sorted(devices), begin,
            begin_s=begin_s, version=version, mean_weight=float(self._weights[rows].mean()),
        )  # fmt: skip
        if not mixed.begun and not mixed.mixes:
            return None
        happens = self._of_passes(edge, begin_s, mixed, happened, fails_s)
        reached = bool(happens.reached[0])
        self._versions[edge] = mixed.version
        self._wait(edge, mixed.under_way if reached else ())
        weight_of = {mix.arrival.device: mix.arrival.weight for mix in mixed.mixes}
        first_pass = {begun.device: begun.number for begun in reversed(mixed.begun)}
        return self._turn(
            edge, begin_s, first, np.array([row_of[device] for device in happens.devices.tolist()], dtype=np.intp),
            float(sum(weight_of.values())) if reached else 0.0, happens, fetched=version, mixes=mixed.mixes,
            passes=np.array([first_pass[device] for device in happens.devices.tolist()], dtype=np.intp),
        )  # fmt: skip

    def _wait(self, edge: int, passes: Sequence[Pass]) -> None:
        """Let these be the passes that an edge has not mixed in."""
        elsewhere = (waiting for waiting in self._waiting if waiting[0] != edge)
        self._waiting = (*elsewhere, *((edge, waiting) for waiting in passes))

    def _of_passes(
        self, edge: int, begin_s: float, mixed: MixedTurn, happened: Sequence[Timeline], fails_s: float
    ) -> Timeline:
        """Return the timeline of a turn, in seconds since its beginning, from what happens in its passes."""
        fleet, work, mixed_s = self._outlook.fleet, self._turns.work, mixed.end_s
        devices = np.unique([begun.device for begun in mixed.begun]).astype(np.intp)
        column = np.searchsorted(devices, [begun.device for begun in mixed.begun])
        count: Counter[int] = Counter()  # passes of each device so far
        parts = []
        for begun, n, happens in zip(mixed.begun, column.tolist(), happened, strict=True):
            parts.append((happens, count[n], n, begun.begin_s - begin_s, happens.end_s == happens.end_s))
            count[n] += 1
        rows = laid_out(parts, (max([1, *count.values()]), len(devices)))
        hop_s, hop_j = (float(hop[edge]) for hop in hops(fleet, work))
        makes = bool(mixed.mixes) and work.cloud_hop
        end_s = mixed_s + (hop_s if makes else 0.0)
        # Without an arrival the turn ends when the edge knows that none comes, which is when it fails if it does.
        reached = fails_s >= end_s if mixed.mixes else fails_s > end_s * (1 + 1e-12)
        part = 0.0 if not makes else 1.0 if reached else float(part_of(np.array(fails_s - mixed_s), np.array(hop_s)))

        def of_devices(values: list[float]) -> FloatArray:
            return np.bincount(column, values, len(devices)).astype(np.float64)

        taken_s = np.array([float(happens.device_delay_s[0]) for happens in happened])
        with np.errstate(invalid="ignore"):
            mean_s = of_devices(np.nan_to_num(taken_s).tolist()) / of_devices(np.isfinite(taken_s).tolist())
        down_j = rows.get("download_j")
        total_j = float(rows["energy_j"].sum() + part * hop_j) + (0.0 if down_j is None else float(down_j.sum()))
        until_s = min(end_s, fails_s) - begin_s
        return Timeline(
            devices=devices,
            edges=np.zeros(len(devices), dtype=np.intp),
            samples=fleet.samples[devices].astype(np.float64),
            **{**rows, "participates": rows["arrived"] & reached},
            iteration_end_s=np.full((len(rows["start_s"]), 1), min(mixed_s, fails_s) - begin_s),
            edge_delay_s=np.array([until_s]),
            edge_energy_j=np.array([total_j]),
            reached=np.array([reached]),
            vanished=of_devices([float(happens.vanished[0]) for happens in happened]) > 0,
            device_delay_s=mean_s if reached else np.full(len(devices), np.nan),
            delay_s=until_s,
            message_bits=float(rows["bits"].sum() + part * work.edge_bits),
            device_bits=work.device_bits,
        )
