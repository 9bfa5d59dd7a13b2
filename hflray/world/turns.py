"""What happens under an asynchronous cloud: turns of edges, their updates, and the rounds that these make.

A *turn* is what an edge does between two exchanges with the cloud: it fetches the global model, trains Q edge
iterations with the devices of the newest plan, and sends its model. A turn is drawn and timed whole at its start. The
cloud takes updates in the order of their arrivals, of which the lower edge wins ties. A round is U updates. All times
are seconds since the start of the first round.

* A turn of which no row counts sends nothing, and neither does one whose edge fails. The edge waits for the next plan.
* A round also ends when nothing is under way. It then lasts at least as long as one in which nobody is available.
* Joules and bits are billed when they are spent, so that those of a turn may belong to several rounds.

An asynchronous edge (`hflray.clock.mixing`) does turns of passes of its devices, under any cloud that has turns. Passes
that are under way when a turn ends belong to the bill of that turn, and are mixed in by a later one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import numpy as np

from hflray.clock.asynchronous import Asynchrony, fedat_shares
from hflray.clock.mixing import MixedArrival, Pass
from hflray.cost import Schedule
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.timeline import Runs, Timeline


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
        mixes: the numbers of each arrival that an asynchronous edge mixes in, (A, 14); None: the edge waits.
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
    mixes: FloatArray | None = None

    @property
    def mixed(self) -> tuple[MixedArrival, ...]:
        """The arrivals that an asynchronous edge mixes in."""
        rows = () if self.mixes is None else self.mixes
        last = len(Pass._fields)
        return tuple(MixedArrival(pass_of(row[:last]), float(row[last]), int(row[-2]), float(row[-1])) for row in rows)

    @property
    def trained(self) -> tuple[IntArray, BoolArray]:
        """The devices that train for its update, (n,), and in which edge iterations or passes, (Q, n)."""
        if self.mixes is None:
            return self.happens.devices, self.happens.participates
        return self.mixes[:, 0].astype(np.intp), np.ones((1, len(self.mixes)), dtype=bool)

    def rows_of(self, device: int) -> BoolArray:
        """Return whether each row of a device counts, (Q, 1), or each pass that it began, (q,), or nothing, (Q, 0)."""
        column = self.happens.devices == device
        rows = self.happens.participates[:, column]
        return rows if self.mixes is None else rows[np.isfinite(self.happens.start_s[:, column])]

    @property
    def sends(self) -> bool:
        """Whether its update reaches the cloud."""
        return bool(self.happens.reached[0]) and self.weight > 0

    @property
    def end_s(self) -> float:
        """When its update arrives, or when it ends without one."""
        return self.begin_s + float(self.happens.edge_delay_s[0])

    @property
    def hop_begin_s(self) -> float:
        """When it begins to send to the cloud."""
        return self.begin_s + float(self.happens.iteration_end_s[-1, 0])

    @property
    def busy_until_s(self) -> FloatArray:
        """When the last row of each device ends, (n,); when the turn begins if it has none."""
        last = np.nanmax(np.vstack([self.happens.end_s, np.zeros((1, len(self.power_w)))]), axis=0)
        return np.asarray(self.begin_s + last)

    @property
    def settled_s(self) -> float:
        """When nothing more is spent on it."""
        return max(self.end_s, float(self.busy_until_s.max(initial=self.end_s)))

    def spent(self, moment_s: float) -> Spent:
        """Return what it has spent until a moment."""
        rows, now_s = self.happens, moment_s - self.begin_s
        all_bits, hop_j = float(rows.bits.sum()), float(rows.edge_energy_j[0] - rows.energy_j.sum())
        received_s, down_j = rows.start_s, 0.0
        if rows.received_s is not None and rows.download_j is not None:
            received_s = np.where(np.isfinite(rows.received_s), rows.received_s, rows.end_s)
            parts = rows.download_j * np.nan_to_num(_share(rows.start_s, received_s, now_s), nan=1.0)
            down_j, hop_j = float(parts.sum()), hop_j - float(rows.download_j.sum())
        hop_bits = rows.message_bits - all_bits
        if moment_s >= self.settled_s:
            return Spent(rows.spent_j, rows.busy_s, all_bits + hop_bits, hop_j + down_j)
        if now_s <= 0:
            return Spent(np.zeros_like(self.power_w), np.zeros_like(self.power_w), 0.0, 0.0)
        with np.errstate(invalid="ignore"):
            computed_s = np.where(np.isfinite(rows.computed_s), rows.computed_s, rows.end_s)
            sending_s = rows.end_s - computed_s
            sending_j = self.power_w * sending_s
            computed = _share(received_s, computed_s, now_s)
            sent = _share(computed_s, rows.end_s, now_s)
            spent_j = np.nansum((rows.energy_j - sending_j) * computed + sending_j * sent, axis=0)
            busy_s = np.nansum(np.clip(now_s - rows.start_s, 0.0, rows.end_s - rows.start_s), axis=0)
        hop = float(_share(rows.iteration_end_s[-1], rows.edge_delay_s, now_s)[0])
        bits = float(np.nansum(rows.bits * np.nan_to_num(sent)))
        return Spent(spent_j, busy_s, bits + hop * hop_bits, hop * hop_j + down_j)


def pass_of(row: FloatArray) -> Pass:
    """Return the pass with these numbers, (11,)."""
    numbers = Pass(*row.tolist())
    return numbers._replace(
        device=int(numbers.device),
        round=int(numbers.round),
        number=int(numbers.number),
        arrives=bool(numbers.arrives),
        version=int(numbers.version),
    )


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


def _share(begin_s: FloatArray, end_s: FloatArray, now_s: float) -> FloatArray:
    """Return the share of each interval that is over; an interval without length is over at its end."""
    length_s = end_s - begin_s
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.clip((now_s - begin_s) / length_s, 0.0, 1.0)
    return np.where(length_s > 0, part, (now_s >= end_s).astype(np.float64))


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
    """The cloud's clock between rounds.

    Attributes:
        clock_s: the end of the last round, s.
        version: the version of the global model.
        buffered: updates in the buffer.
        updates: the updates of each edge so far, (M,).
        begun: the turns that each edge has begun so far, (M,).
        turns: the turns under way, by edge.
        trailing: the turns that have ended, and of which a pass is under way.
        waiting: the passes that asynchronous edges will not have mixed in when their turns end, a row for each with its
            edge and the numbers of the pass, (W, 12).
        edge_versions: the version of each asynchronous edge then, (M,); -1 before its first turn.
    """

    clock_s: float
    version: int
    buffered: int
    updates: IntArray
    begun: IntArray
    turns: tuple[Turn, ...] = ()
    trailing: tuple[Turn, ...] = ()
    waiting: FloatArray = field(default_factory=lambda: np.zeros((0, 1 + len(Pass._fields))))
    edge_versions: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.intp))

    @classmethod
    def first(cls, num_edges: int) -> Self:
        """Return the clock before round 1, with M edges."""
        none = np.zeros(num_edges, dtype=np.intp)
        return cls(0.0, 0, 0, none, none.copy(), edge_versions=none - 1)

    def passes(self) -> dict[int, tuple[Pass, ...]]:
        """Return the passes of `waiting` by edge."""
        by_edge: dict[int, tuple[Pass, ...]] = {}
        for row in self.waiting:
            by_edge[int(row[0])] = (*by_edge.get(int(row[0]), ()), pass_of(row[1:]))
        return by_edge

    def held_hz(self, num_edges: int) -> FloatArray:
        """Return the bandwidth that devices hold at edges between two turns, (M,), Hz."""
        held_hz = np.zeros(num_edges)
        between = set(range(num_edges)) - {turn.edge for turn in self.turns}
        for edge, passes in self.passes().items():
            if edge in between:
                held_hz[edge] = sum(under_way.bandwidth_hz for under_way in passes if self.clock_s < under_way.end_s)
        return held_hz

    @property
    def busy(self) -> IntArray:
        """The devices of which a row has not ended."""
        turns = (*self.trailing, *self.turns)
        devices = [turn.happens.devices[turn.busy_until_s > self.clock_s] for turn in turns]
        return np.concatenate([np.zeros(0, dtype=np.intp), *devices])


@dataclass(frozen=True, eq=False)
class AsynchronousRound:
    """A round of an asynchronous cloud.

    Attributes:
        begin_s, end_s: when it begins and ends, s.
        updates: the updates, in their order.
        turns: all turns of which something happens in it.
        after: the clock after it.
        rule: how the cloud takes updates; None: it combines the edges at one moment.
    """

    begin_s: float
    end_s: float
    updates: tuple[Update, ...]
    turns: tuple[Turn, ...]
    after: UnderWay
    rule: Asynchrony | None = None

    @property
    def buffers(self) -> bool:
        """Whether the cloud has a buffer."""
        return self.rule is not None and self.rule.buffer > 1


def play(
    rule: Asynchrony,
    before: UnderWay,
    planned: Sequence[int],
    begin: Callable[[int, float, int], Turn | None],
    *,
    ready_s: float = 0.0,
    wait_s: float = 0.0,
) -> AsynchronousRound:
    """Return what happens in a round.

    Args:
        rule: how the cloud takes updates.
        before: the clock after the round before.
        planned: the edges to which the round's plan gives devices.
        begin: returns the turn that an edge begins at a moment under the round's plan, given the number of edge
            iterations that it has begun in this round; None: it cannot. `play` fills in version, position and number.
        ready_s: how long it takes to make the plan, s. An edge without a turn waits for it.
        wait_s: duration of a round without updates, at least, s.
    """
    ways = {turn.edge: turn for turn in before.turns}
    touched = [*before.trailing, *before.turns]
    iterations = dict.fromkeys(planned, 0)
    updates: list[Update] = []
    version, buffered, counts, begun = before.version, before.buffered, before.updates.copy(), before.begun.copy()
    begin_s = now_s = before.clock_s

    def start(edge: int, moment_s: float) -> None:
        turn = begin(edge, max(moment_s, begin_s + ready_s), iterations[edge]) if edge in iterations else None
        if turn is None:
            return
        turn = replace(turn, version=version, position=len(updates), number=int(begun[edge]))
        iterations[edge] += len(turn.happens.start_s)
        begun[edge] += 1
        ways[edge] = turn
        touched.append(turn)

    for edge in planned:
        if edge not in ways:
            start(edge, begin_s)
    while ways and len(updates) < rule.updates:
        edge = min(ways, key=lambda m: (ways[m].end_s, m))
        turn = ways.pop(edge)
        now_s = max(now_s, turn.end_s)
        if not turn.sends:
            continue
        counts[edge] += 1
        staleness, buffered = version - turn.version, buffered + 1
        steps = buffered == rule.buffer
        shares = fedat_shares({m: int(count) for m, count in enumerate(counts) if count}) if rule.fedat else {}
        share = shares[edge] if rule.fedat else rule.share(turn.weight, turn.mean_weight, staleness)
        version, buffered = version + steps, 0 if steps else buffered
        updates.append(Update(turn, staleness, share, shares, steps))
        if len(updates) < rule.updates:
            start(edge, turn.end_s)
    end_s = now_s if updates else max(now_s, begin_s + wait_s)
    after = UnderWay(end_s, version, buffered, counts, begun, tuple(ways[edge] for edge in sorted(ways)))
    return AsynchronousRound(begin_s, end_s, tuple(updates), tuple(touched), _trailed(after, touched), rule)


def play_together(
    before: UnderWay,
    planned: Sequence[int],
    begin: Callable[[int, float, int], Turn | None],
    *,
    ready_s: float = 0.0,
    wait_s: float = 0.0,
) -> AsynchronousRound:
    """Return what happens in a round of a synchronous cloud, in which each edge with devices does one turn.

    The cloud combines the edges when the slowest has sent. See `play` for the arguments.
    """
    begin_s, begun = before.clock_s, before.begun.copy()
    turns = []
    for edge in planned:
        turn = begin(edge, begin_s + ready_s, 0)
        if turn is not None:
            turns.append(replace(turn, version=before.version, number=int(begun[edge])))
            begun[edge] += 1
    sent = sorted((turn for turn in turns if turn.sends), key=lambda turn: (turn.end_s, turn.edge))
    total = sum(turn.weight for turn in sent)
    updates = [Update(turn, 0, turn.weight / total, {}, turn is sent[-1]) for turn in sent]
    end_s = max((turn.end_s for turn in turns), default=begin_s)
    end_s = end_s if sent else max(end_s, begin_s + wait_s)
    counts = before.updates + np.bincount([turn.edge for turn in sent], minlength=len(begun)).astype(np.intp)
    after = UnderWay(end_s, before.version + bool(sent), 0, counts, begun)
    touched = [*before.trailing, *turns]
    return AsynchronousRound(begin_s, end_s, tuple(updates), tuple(touched), _trailed(after, touched))


def _trailed(after: UnderWay, touched: Sequence[Turn]) -> UnderWay:
    """Return a clock with the turns that have ended, and of which a pass is under way."""
    going = {(turn.edge, turn.number) for turn in after.turns}
    over = (turn for turn in touched if (turn.edge, turn.number) not in going)
    return replace(after, trailing=tuple(turn for turn in over if turn.settled_s > after.clock_s))


def timeline_of(played: AsynchronousRound, num_edges: int, device_bits: float) -> Timeline:
    """Return the timeline of a round: a column for each device of each turn, and the rows that end in the round.

    An edge has reached the cloud unless it failed in the round.
    """
    begin_s, end_s, turns = played.begin_s, played.end_s, played.turns
    spent = [_between(turn, begin_s, end_s) for turn in turns]
    most = max((len(turn.happens.start_s) for turn in turns), default=0)
    ended = [_ended(turn, begin_s, end_s) for turn in turns]
    sizes = [len(turn.power_w) for turn in turns]

    def columns(name: str, shifts: bool, nothing: float | bool) -> Any:
        """Return an array (Q, H) of rows that ended, and `nothing` elsewhere."""
        table, end = np.full((most, sum(sizes)), nothing), 0
        for turn, is_over, size in zip(turns, ended, sizes, strict=True):
            rows = getattr(turn.happens, name)
            table[: len(rows), end : end + size][is_over] = (
                rows[is_over] + (turn.begin_s - begin_s) if shifts else rows[is_over]
            )
            end += size
        return table

    def joined(values: list[Any], kind: type) -> Any:
        return np.concatenate([np.zeros(0, dtype=kind), *values])

    edge_energy_j, edge_s, reached = np.zeros(num_edges), np.zeros(num_edges), np.ones(num_edges, dtype=bool)
    for turn, part in zip(turns, spent, strict=True):
        edge_energy_j[turn.edge] += part.devices_j.sum() + part.hop_j
        edge_s[turn.edge] += max(0.0, min(turn.end_s, end_s) - max(turn.begin_s, begin_s))
        reached[turn.edge] &= turn.happens.reached[0] or turn.end_s > end_s
    over = [turn.end_s <= end_s for turn in turns]
    rows = [
        (u.turn.edge, u.turn.number, u.turn.version, u.turn.hop_begin_s - begin_s, u.turn.end_s - begin_s,
         u.staleness, u.share)
        for u in played.updates
    ]  # fmt: skip
    runs = Runs(
        turn=np.repeat([turn.number for turn in turns], sizes).astype(np.intp),
        version=np.repeat([turn.version for turn in turns], sizes).astype(np.intp),
        spent_j=joined([part.devices_j for part in spent], np.float64),
        busy_s=joined([part.busy_s for part in spent], np.float64),
        updates=np.array(rows, dtype=np.float64).reshape(-1, 7),
        **_staleness(played, most, sizes),
    )
    down: dict[str, Any] = {}
    if any(turn.happens.download_j is not None for turn in turns):
        down = {"received_s": columns("received_s", True, np.nan), "download_j": columns("download_j", False, 0.0)}
    return Timeline(
        devices=joined([turn.happens.devices for turn in turns], np.intp),
        edges=np.repeat([turn.edge for turn in turns], sizes).astype(np.intp),
        samples=joined([turn.happens.samples for turn in turns], np.float64),
        start_s=columns("start_s", True, np.nan),
        computed_s=columns("computed_s", True, np.nan),
        end_s=columns("end_s", True, np.nan),
        energy_j=columns("energy_j", False, 0.0),
        bits=columns("bits", False, 0.0),
        arrived=columns("arrived", False, False),
        participates=columns("participates", False, False),
        iteration_end_s=np.full((most, num_edges), np.nan),
        edge_delay_s=edge_s,
        edge_energy_j=edge_energy_j,
        reached=reached,
        vanished=joined([t.happens.vanished & is_over for t, is_over in zip(turns, over, strict=True)], np.bool_),
        device_delay_s=joined(
            [np.where(is_over, t.happens.device_delay_s, np.nan) for t, is_over in zip(turns, over, strict=True)],
            np.float64,
        ),
        delay_s=end_s - begin_s,
        total_j=float(edge_energy_j.sum()),
        message_bits=float(sum(part.bits for part in spent)),
        device_bits=device_bits,
        runs=runs,
        **down,
    )


def _staleness(played: AsynchronousRound, most: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Return τ and α of the rows that asynchronous edges have mixed in by the end of a round, (Q, H) each, else NaN."""
    if all(turn.mixes is None for turn in played.turns):
        return {}
    staleness, share = np.full((most, sum(sizes)), np.nan), np.full((most, sum(sizes)), np.nan)
    mixes = [(turn.edge, mix) for turn in played.turns for mix in turn.mixed if mix.moment_s <= played.end_s]
    starts = np.cumsum([0, *sizes])
    for start, turn in zip(starts, played.turns, strict=False):
        rows, ended = turn.happens, _ended(turn, played.begin_s, played.end_s)
        for edge, mix in mixes:
            if edge != turn.edge:
                continue
            is_row = ended & (rows.devices == mix.arrival.device)
            is_row &= np.isclose(turn.begin_s + np.nan_to_num(rows.start_s), mix.arrival.begin_s, rtol=1e-12, atol=1e-9)
            for q, column in np.argwhere(is_row):
                staleness[q, start + column], share[q, start + column] = mix.staleness, mix.share
    return {"staleness": staleness, "share": share}


def _ended(turn: Turn, begin_s: float, end_s: float) -> Any:
    """Return which rows of a turn end in a round, (Q, n)."""
    moment_s = turn.begin_s + turn.happens.end_s
    with np.errstate(invalid="ignore"):
        return (moment_s <= end_s) & ((moment_s > begin_s) | (turn.begin_s >= begin_s))


def _between(turn: Turn, begin_s: float, end_s: float) -> Spent:
    """Return what a turn spends in a round."""
    until = turn.spent(end_s)
    if turn.begin_s >= begin_s:
        return until
    before = turn.spent(begin_s)
    return Spent(
        until.devices_j - before.devices_j, until.busy_s - before.busy_s, until.bits - before.bits,
        until.hop_j - before.hop_j,
    )  # fmt: skip


def turn_fates(played: AsynchronousRound, schedule: Schedule, index: int) -> list[str]:
    """Return what became of the devices of a round's plan, (H,), in words; empty for one that always counts.

    Args:
        played: the round.
        schedule: the scheduled devices and the edge of each, (H,).
        index: i, the number of the round.
    """
    begun = {
        edge: [turn for turn in played.turns if (turn.edge, turn.round) == (edge, index)] for edge in schedule.edges
    }
    texts = []
    for device, edge in zip(*schedule, strict=True):
        rows = [turn.rows_of(device) for turn in begun[edge]]
        lost = int(sum((~counts).sum() for counts in rows))
        whole = sum(counts.size for counts in rows)
        kind = "passes" if any(turn.mixes is not None for turn in begun[edge]) else "edge iterations"
        missed = f"did not count in {lost} of {whole} {kind}" if lost else ""
        texts.append(missed if rows else "trained nothing, because its edge had an older plan or failed")
    return texts
