"""The timeline of a round: who computes and sends what, when, at what joules, and whether it counts.

The timeline is arithmetic. It follows from the plan of a round and from what happens to its devices and edges, and it
is complete before anything is trained. Where all devices live and every edge waits for all of its devices, its totals
are equations (9) to (14) of the paper, that is, those of `hflray.cost.round_cost`.

An *edge iteration* is one of the Q passes in which the devices of an edge compute, send their models and are averaged.
A *row* is one device in one edge iteration. Times are seconds since the start of the round.

* An edge iteration ends when every device has arrived or is known to have vanished, or at a limit of ``clock.edge``,
  whichever is first. The edge knows it `Ends.noticed_after_s` later, and waits for the device until then.
* A row that has arrived by then is averaged. Any other row is discarded, and it is billed up to that moment: for its
  computing first, and for its sending afterwards. The device begins the next iteration with the others.
* A download lies before the computing of a row. Its joules are the edge's, which has sent whatever becomes of the row.
* A device vanishes at a given moment, or when it has spent its charge. An arrival at that very moment is in time.
* An edge that fails before its upload to the cloud has ended loses all of its rows, and its devices stop.
* With a semi-synchronous cloud (`Period`) the number of edge iterations is each edge's own, in place of Q.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray import metrics
from hflray.clock.waiting import WAITS, Period, arrivals, nth_arrival_s
from hflray.config.clock import EdgeClockConfig
from hflray.cost import QUIET, RoundCost, Schedule, Workload, edge_hops, region_hops
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.physics.base import Columns
from hflray.support.arrays import BoolArray, FloatArray, IntArray, largest_of

__all__ = ["Durations", "Ends", "Hops", "Period", "Timeline", "timeline"]

ON_TIME = 1e-6  # relative; an allocation lets devices finish together, and rounding must not discard one of them


@dataclass(frozen=True, eq=False)
class Durations(Columns):
    """What an edge iteration of each device takes, as it happens: (H,) for all iterations, or (Q, H).

    `take` returns those of some devices, which must be those of all iterations.

    Attributes:
        compute_s, compute_j: seconds and joules of the whole of its computing.
        upload_s, upload_j: seconds and joules of the whole of its upload.
        upload_at: returns both, (H,) each, of an edge iteration whose rows start at (H,) seconds since the start of the
            round; None: they do not depend on it.
        compute_at: returns seconds and joules of computing, (H,) each, in an edge iteration; None: they are above.
        download_s, download_j: seconds until each device has the model, and the edge's joules for it, (H,); None: none.
        together: whether the devices of an edge receive at once, so that it sends to all while one of them lives.
    """

    compute_s: FloatArray
    compute_j: FloatArray
    upload_s: FloatArray
    upload_j: FloatArray
    upload_at: Callable[[int, FloatArray], tuple[FloatArray, FloatArray]] | None = None
    compute_at: Callable[[int], tuple[FloatArray, FloatArray]] | None = None
    download_s: FloatArray | None = None
    download_j: FloatArray | None = None
    together: bool = False

    @classmethod
    def of(cls, cost: RoundCost, together: bool = False) -> Durations:
        """Return the durations of a round that goes as planned."""
        return cls(
            cost.compute_delay_s, cost.compute_energy_j, cost.upload_delay_s, cost.upload_energy_j,
            download_s=cost.download_delay_s, download_j=cost.download_energy_j, together=together,
        )  # fmt: skip

    @property
    def iteration_s(self) -> FloatArray:
        """Download, computing and upload, (H,), s, where they are those of all iterations."""
        taken_s = self.compute_s + self.upload_s
        return taken_s if self.download_s is None else self.download_s + taken_s

    def iteration(self, index: int, begin_s: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Return seconds and joules of computing, then of the upload, (H,) each, in an iteration that starts then."""
        fields = (self.compute_s, self.compute_j, self.upload_s, self.upload_j)
        a, b, c, d = (np.asarray(field)[index] if np.ndim(field) == 2 else np.asarray(field) for field in fields)
        computing = (a, b) if self.compute_at is None else self.compute_at(index)
        return *computing, *((c, d) if self.upload_at is None else self.upload_at(index, begin_s))


@dataclass(frozen=True, eq=False)
class Hops:
    """The uploads of the edges' models, to the cloud or to what else lies above them.

    Attributes:
        delay_s: of each edge, (M,), s.
        energy_j: (M,), J.
        made: whether the edge makes it, (M,); an edge that is down from the start does not.
        bits: what an edge sends each time, (M,), bits; None: ``edge_bits`` of the work.
        parent: the region of each edge, (M,); None: the cloud is above the edges, or nothing.
        region_delay_s, region_energy_j: of the upload of each region to the cloud, (R,), s and J.
    """

    delay_s: FloatArray
    energy_j: FloatArray
    made: BoolArray
    bits: FloatArray | None = None
    parent: IntArray | None = None
    region_delay_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    region_energy_j: FloatArray = field(default_factory=lambda: np.zeros(0))

    @classmethod
    def of(cls, fleet: Fleet, work: Workload, up: BoolArray | None = None) -> Hops:
        """Return the hops above the edges that are `up` (`hflray.cost.hops`); none where the work has no cloud hop."""
        made, tree = np.full(fleet.num_edges, work.cloud_hop), fleet.tree
        made = made if up is None else made & up
        if tree.graph is not None and work.cloud_hop:
            linked = tree.graph.linked & made & made[:, None]
            return cls(*edge_hops(fleet, work, up), made, linked.sum(axis=1) * work.edge_bits)
        if tree.regions is None or not work.cloud_hop:
            return cls(*edge_hops(fleet, work), made)
        return cls(*edge_hops(fleet, work), made, None, tree.regions.parent, *region_hops(fleet, work))

    @classmethod
    def none(cls, num_edges: int) -> Hops:
        """Return no hops: the cloud has an edge's model as soon as its last iteration ends."""
        return cls(np.zeros(num_edges), np.zeros(num_edges), np.zeros(num_edges, dtype=bool))


@dataclass(frozen=True, eq=False)
class Ends:
    """When devices vanish and edges fail; infinity stands for never.

    Attributes:
        vanish_s: moment at which a device vanishes, (H,), s.
        charge_j: charge of each device at the start, (H,), J; a device vanishes when it has spent this much.
        fail_s: moment at which an edge fails, (M,), s; 0 for an edge that is down from the start.
        noticed_after_s: time for which an edge still waits for a device that has vanished, s.
    """

    vanish_s: FloatArray
    charge_j: FloatArray
    fail_s: FloatArray
    noticed_after_s: float = 0.0

    @classmethod
    def never(cls, num_devices: int, num_edges: int) -> Ends:
        """Return the ends of a round in which everything lives."""
        return cls(np.full(num_devices, np.inf), np.full(num_devices, np.inf), np.full(num_edges, np.inf))


# What the columns of `Timeline.updates` are.
UPDATES = ("edge", "turn", "version", "start_s", "end_s", "staleness", "share")
# The columns of `Timeline.table` that are no decimal numbers.
_INDICES = ("edge", "turn", "edge_iteration", "device", "version", "staleness")
_KINDS: dict[str, type[Any]] = {**dict.fromkeys(_INDICES, int), "counts": bool}


@dataclass(frozen=True, eq=False)
class Timeline:
    """What happens in a round, as columns: a row for each edge iteration and scheduled device, in arrays (Q, H).

    In a round whose cloud, or whose edges, do not wait, a column of these arrays is a device in a turn of an edge, so
    that a device in two turns has two. Only rows that end in the round are there, as a whole, and rows that began
    before the round start before 0. What a device spends is divided among rounds by the time.

    Attributes:
        devices, edges: scheduled devices and the edge of each, (H,).
        samples: samples of each scheduled device, (H,).
        start_s: when the row starts, (Q, H), s; NaN where the device or its edge was gone before.
        computed_s: when its computing ends, (Q, H), s; NaN where it was stopped before.
        end_s: when it arrives or is stopped, (Q, H), s.
        energy_j: what is billed, (Q, H), J.
        bits: what is sent, (Q, H), bits; a stopped upload has sent the share of its time.
        arrived: whether the edge averaged it, (Q, H).
        participates: whether it arrived and its edge's model reached the cloud, (Q, H); only such rows are trained.
        iteration_end_s: when each edge's iterations end, (Q, M), s.
        edge_delay_s: T_m with the hop, (M,), s.
        edge_energy_j: E_m with the hop, (M,), J.
        reached: whether an edge's model reached the cloud, (M,).
        vanished: which devices were gone at the end of the round's last iteration, (H,).
        device_delay_s: what a device's download, computing and upload took, (H,), s: the mean over its rows that count
            and over those that its edge stopped while it lived, with the time waited. NaN: there is none, as for a
            device that vanished in its first row, or whose edge failed.
        delay_s: T, s.
        message_bits: all bits sent to edges and to the cloud.
        device_bits: what a whole upload of a device has, bits.
        region_delay_s: when the model of each region has reached the cloud, (R,), s.
        region_energy_j: what its edges and its own hop take, (R,), J.
        received_s: when a device has the model and begins to compute, (Q, H), s; NaN as `start_s`; None: at once.
        download_j: joules of the edge for the row's download, which `energy_j` does not have, (Q, H), J; None: nothing.
        turn: the number of the edge's turn since the first round, from 0, (H,). This and what follows is None where all
            wait.
        version: the version of the global model from which the turn began, (H,).
        turn_j: joules that the device spends in this round on this turn, (H,), J.
        turn_s: seconds for which it computes and sends for this turn in this round, (H,), s.
        updates: what the cloud received, a row for each edge's model: its edge, turn and version, when the edge began
            and ended to send (s since the start of the round), its staleness and its share, (U, 7).
        broadcasts: how many downloads of turns, each for all devices of its edge, are of this round; None: all wait.
        staleness, share: those of the rows that an asynchronous edge has mixed in by the end of the round, (Q, H) each;
            NaN elsewhere.
    """

    devices: IntArray
    edges: IntArray
    samples: FloatArray
    start_s: FloatArray
    computed_s: FloatArray
    end_s: FloatArray
    energy_j: FloatArray
    bits: FloatArray
    arrived: BoolArray
    participates: BoolArray
    iteration_end_s: FloatArray
    edge_delay_s: FloatArray
    edge_energy_j: FloatArray
    reached: BoolArray
    vanished: BoolArray
    device_delay_s: FloatArray
    delay_s: float
    message_bits: float
    device_bits: float
    region_delay_s: FloatArray = field(default_factory=lambda: np.zeros(0))
    region_energy_j: FloatArray = field(default_factory=lambda: np.zeros(0))
    received_s: FloatArray | None = field(default=None, metadata=QUIET)
    download_j: FloatArray | None = field(default=None, metadata=QUIET)
    turn: IntArray | None = field(default=None, metadata=QUIET)
    version: IntArray | None = field(default=None, metadata=QUIET)
    turn_j: FloatArray | None = field(default=None, metadata=QUIET)
    turn_s: FloatArray | None = field(default=None, metadata=QUIET)
    updates: FloatArray | None = field(default=None, metadata=QUIET)
    broadcasts: int | None = field(default=None, metadata=QUIET)
    staleness: FloatArray | None = field(default=None, metadata=QUIET)
    share: FloatArray | None = field(default=None, metadata=QUIET)

    @classmethod
    def of_state(cls, saved: Mapping[str, Any]) -> Self:
        """Return the timeline of its values as `hflray.experiment.record.restored` returns them."""
        values = dict(saved)
        runs = values.pop("runs", None) or {}  # until hflray 0.3 the columns of turns were a part of their own
        return cls(**values, **{{"spent_j": "turn_j", "busy_s": "turn_s"}.get(name, name): runs[name] for name in runs})

    @property
    def total_j(self) -> float:
        """E, J."""
        return float(self.edge_energy_j.sum())

    @property
    def spent_j(self) -> FloatArray:
        """What each device spends in the round, (H,), J."""
        return np.asarray(self.energy_j.sum(axis=0)) if self.turn_j is None else self.turn_j

    @property
    def busy_s(self) -> FloatArray:
        """How long each device computes and sends in the round, (H,), s."""
        return np.asarray(np.nansum(self.end_s - self.fetched_s, axis=0)) if self.turn_s is None else self.turn_s

    @property
    def fetched_s(self) -> FloatArray:
        """When the download of each row is over, (Q, H), s: the row has the model, or was stopped before."""
        if self.received_s is None:
            return self.start_s
        return np.where(np.isfinite(self.received_s), self.received_s, self.end_s)

    def downloads(self, bits: float, together: bool) -> dict[str, float]:
        """Return the glossary's metrics of downloads of so many bits each, which those of an edge may share."""
        if self.received_s is None or self.download_j is None:
            return dict.fromkeys((metrics.ROUND_DOWNLOAD_S, metrics.ROUND_DOWNLOAD_J, metrics.ROUND_DOWNLOAD_BITS), 0.0)
        begun = np.isfinite(self.start_s)
        of_device_s = np.where(begun, self.fetched_s - self.start_s, 0.0).sum(axis=0)
        count = self.broadcasts if together else begun.sum()
        if count is None:
            count = sum(len(np.unique(self.edges[row])) for row in begun)
        return {
            metrics.ROUND_DOWNLOAD_S: float(of_device_s.max(initial=0.0)),
            metrics.ROUND_DOWNLOAD_J: float(self.download_j.sum()),
            metrics.ROUND_DOWNLOAD_BITS: float(count * bits),
        }

    @property
    def wasted_j(self) -> float:
        """Joules of rows that do not count."""
        return float(self.energy_j[~self.participates].sum())

    @property
    def discarded(self) -> float:
        """Share of the rows that started and do not count; 0 if none started."""
        started = np.isfinite(self.start_s)
        return float((started & ~self.participates).sum() / max(1, started.sum()))

    @property
    def edge_idle_s(self) -> float:
        """Seconds for which edges wait for the end of the round, summed over the edges that are up then."""
        return float((self.delay_s - self.edge_delay_s)[self.reached].sum())

    def bill(self, planned: RoundCost, delay_weight: float) -> RoundCost:
        """Return the `planned` bill with the seconds, joules and bits of what happens; λ is `delay_weight`."""
        return replace(
            planned,
            energy_j=self.total_j,
            delay_s=self.delay_s,
            objective=self.total_j + delay_weight * self.delay_s,
            message_bits=self.message_bits,
            edge_energy_j=self.edge_energy_j,
            edge_delay_s=self.edge_delay_s,
        )

    def edge_weight(self) -> FloatArray:
        """Return the weight of each edge's model at the cloud, (M,): the samples of its last non-empty iteration."""
        weight = np.zeros(len(self.reached))
        for counts in self.participates:
            samples = np.bincount(self.edges, self.samples * counts, len(weight))
            weight = np.where(samples > 0, samples, weight)
        return weight

    def last_iterations(self) -> IntArray:
        """Return the last edge iteration that any device of each edge began, (M,); -1: there is none."""
        last = np.full(len(self.reached), -1, dtype=np.intp)
        for q, begun in enumerate(np.isfinite(self.start_s)):
            last[self.edges[begun]] = q
        return last

    def table(self) -> dict[str, list[Any]]:
        """Return the rows that started as columns ready for JSON, by edge, edge iteration and device.

        Each upload of an edge that does not wait for others is a row after them, without a device.
        """
        iteration, row = np.nonzero(np.isfinite(self.start_s))
        order = np.lexsort((self.devices[row], iteration, self.edges[row]))
        iteration, row = iteration[order], row[order]
        # Where all wait, all begin with the round's global model.
        zeros = np.zeros(len(self.devices), dtype=np.intp)
        turn, version = (zeros if column is None else column for column in (self.turn, self.version))
        more = () if self.download_j is None else ("received_s", "download_j")
        rows = {name: getattr(self, name) for name in ("start_s", "computed_s", "end_s", "energy_j", "bits")}
        rows |= {"counts": self.participates, **{name: getattr(self, name) for name in more}}
        columns: dict[str, NDArray[Any]] = {
            "edge": self.edges[row], "turn": turn[row], "edge_iteration": iteration, "device": self.devices[row],
            **{name: values[iteration, row] for name, values in rows.items()}, "version": version[row],
        }  # fmt: skip
        if self.updates is not None and self.staleness is not None and self.share is not None:
            columns |= {"staleness": self.staleness[iteration, row], "share": self.share[iteration, row]}
            added = dict(zip(UPDATES, self.updates.T, strict=True))
            added |= {"computed_s": added["start_s"], "counts": np.ones(len(self.updates))}
            nothing = np.full(len(self.updates), np.nan)
            columns = {name: np.concatenate([column, added.get(name, nothing)]) for name, column in columns.items()}
        return {name: _listed(column, _KINDS.get(name, float)) for name, column in columns.items()}


def _listed(column: NDArray[Any], kind: type[Any]) -> list[Any]:
    """Return a column of a table as JSON holds it; None stands for NaN."""
    return [None if math.isnan(value) else kind(value) for value in column.tolist()]


ROWS: dict[str, Any] = {  # the columns of rows in a timeline, and what stands where there is no row
    "start_s": np.nan, "computed_s": np.nan, "end_s": np.nan, "energy_j": 0.0, "bits": 0.0, "arrived": False,
    "participates": False, "received_s": np.nan, "download_j": 0.0,
}  # fmt: skip


def laid_out(parts: Sequence[tuple[Timeline, int, int, float, BoolArray]], shape: tuple[int, int]) -> dict[str, Any]:
    """Return the columns (Q, H) of rows of several timelines, of the same `shape`, and nothing elsewhere.

    Args:
        parts: a timeline, the row and the column where it lies, by how many seconds it is later, and which of its rows
            are there.
        shape: (Q, H).
    """
    has_downloads = any(happens.download_j is not None for happens, *_ in parts)
    names = [name for name in ROWS if has_downloads or name not in ("received_s", "download_j")]
    tables = {name: np.full(shape, ROWS[name]) for name in names}
    for happens, first, left, later_s, chosen in parts:
        for name, table in tables.items():
            rows, place = getattr(happens, name), np.s_[first : first + len(chosen), left : left + chosen.shape[1]]
            if rows is not None:  # a turn in which nothing begins downloads nothing
                table[place][chosen] = rows[chosen] + later_s if name.endswith("_s") else rows[chosen]
    return tables


def part_of(passed_s: FloatArray, whole_s: FloatArray) -> FloatArray:
    """Return the part of each interval of so many seconds that has passed; one without length is over at once."""
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.clip(passed_s / whole_s, 0.0, 1.0)
    return part if (whole_s > 0).all() else np.where(whole_s > 0, part, passed_s >= 0)


def timeline(
    schedule: Schedule,
    samples: ArrayLike,
    work: Workload,
    durations: Durations,
    hops: Hops,
    *,
    rule: EdgeClockConfig = WAITS,
    planned_s: ArrayLike | None = None,
    ends: Ends | None = None,
    period: Period | None = None,
) -> Timeline:
    """Return the timeline of a round.

    Args:
        schedule: the scheduled devices and the edge of each, (H,).
        samples: D_n of each scheduled device, (H,).
        work: Q and z.
        durations: what each edge iteration takes as it happens.
        hops: the upload of each edge, which also gives the number of edges.
        rule: when an edge iteration ends.
        planned_s: planned duration of each edge's iteration, (M,), s, for a rule with `deadline`; None: that of
            `durations`, where these are equal in all iterations.
        ends: when devices vanish and edges fail; None: never.
        period: when edges begin further iterations; None: there are Q. An edge without living devices begins none.

    Raises:
        ConfigError: the rule needs `planned_s`, and it cannot be derived.
    """
    chosen, at = schedule
    weight = np.asarray(samples, dtype=np.float64)
    count, num_edges = len(chosen), len(hops.delay_s)
    ends = ends or Ends.never(count, num_edges)
    limit_s = np.full(num_edges, math.inf if rule.deadline_s is None else rule.deadline_s)
    if rule.deadline is not None:
        if planned_s is None and durations.iteration_s.ndim > 1:
            raise ConfigError("planned_s: a deadline in multiples of the planned iteration needs it")
        if planned_s is None:
            planned_s = largest_of(durations.iteration_s, at, num_edges)
        limit_s = np.minimum(limit_s, rule.deadline * np.asarray(planned_s, dtype=np.float64))
    assigned = np.bincount(at, minlength=num_edges)
    needed = arrivals(rule, assigned)

    rows: list[dict[str, NDArray[Any]]] = []
    above = _Above(hops, ends.fail_s)
    now_s, hop_s = np.zeros(num_edges), above.hop_s
    block = work.edge_iterations // work.region_iterations
    left_j = np.array(ends.charge_j, dtype=np.float64)
    gone_s = np.where(left_j > 0, ends.vanish_s, 0.0)
    for q in itertools.count() if period is not None else range(work.edge_iterations):
        begin_s = now_s[at]
        lives = (begin_s < ends.vanish_s) & (left_j > 0) & (begin_s < ends.fail_s[at])
        goes_on = np.ones(num_edges, dtype=bool) if period is None else period.goes_on(q, now_s, hop_s)
        begins = goes_on[at]
        if period is not None and q:
            begins = begins & (np.bincount(at, lives, num_edges) > 0)[at]
            if not begins.any():
                break
        lives = lives & begins
        compute_s, compute_j, upload_s, upload_j = durations.iteration(q, begin_s)
        received_s = begin_s if durations.download_s is None else begin_s + durations.download_s
        ready_s = received_s + compute_s
        arrival_s, taken_s = ready_s + upload_s, compute_s + upload_s
        taken_s = taken_s if durations.download_s is None else durations.download_s + taken_s
        death_s = _death_s(received_s, left_j, compute_s, compute_j, upload_s, upload_j)
        vanish_s = np.minimum(ends.vanish_s, death_s)
        comes = lives & (arrival_s <= vanish_s)

        # The edge waits until each device has arrived or is known to be gone, unless a limit or its failure is before.
        missed_s = np.where(lives, vanish_s, gone_s) + ends.noticed_after_s
        awaited = lives | (begins & (begin_s < missed_s))
        stop_s = now_s.copy()
        np.maximum.at(stop_s, at[awaited], np.where(comes, arrival_s, missed_s)[awaited])
        stop_s = np.minimum(stop_s, now_s + limit_s)
        if rule.first is not None:
            stop_s = np.minimum(stop_s, nth_arrival_s(at[comes], arrival_s[comes], needed))
        stop_s = np.minimum(stop_s, np.maximum(ends.fail_s, now_s))

        slack_s = ON_TIME * (stop_s - now_s)
        arrived = comes & (arrival_s <= (stop_s + slack_s)[at]) & (arrival_s <= ends.fail_s[at])
        until_s = np.where(arrived, arrival_s, np.minimum(stop_s[at], vanish_s))
        # An arrived row is billed as a whole, so that a round without losses has the bits of equation (10).
        is_whole = arrived.all()
        computing = 1.0 if is_whole else np.where(arrived, 1.0, part_of(until_s - received_s, compute_s))
        sending = 1.0 if is_whole else np.where(arrived, 1.0, part_of(until_s - ready_s, upload_s))
        energy_j = np.where(lives, computing * compute_j + sending * upload_j, 0.0)
        row = {
            "start_s": np.where(lives, begin_s, np.nan),
            "computed_s": np.where(lives & (until_s >= ready_s), ready_s, np.nan),
            "end_s": np.where(lives, np.minimum(until_s, stop_s[at]), np.nan),
            "energy_j": energy_j,
            "bits": np.where(lives, sending * work.device_bits, 0.0),
            "arrived": arrived,
            "iteration_end_s": stop_s,
            "row_s": np.where(arrived, taken_s, until_s - begin_s),
            "is_observed": arrived | (lives & (vanish_s > stop_s[at])),
        }
        if durations.download_s is not None:
            sent = (np.bincount(at, lives, num_edges) > 0)[at] if durations.together else lives
            row["received_s"] = np.where(lives & (received_s <= until_s), received_s, np.nan)
            heard_s = np.minimum(until_s, stop_s[at])  # the edge sends as long as a device lives that is not through
            if durations.together:
                heard_s = largest_of(np.where(lives, heard_s, 0.0), at, num_edges)[at]
            part = part_of(np.minimum(heard_s, ends.fail_s[at]) - begin_s, durations.download_s)
            row["download_j"] = np.where(sent, np.where(arrived, 1.0, part), 0.0) * durations.download_j
        rows.append(row)
        left_j = np.where(lives & ~arrived & (death_s <= until_s), 0.0, left_j - energy_j)
        gone_s = np.where(lives & (left_j <= 0), np.minimum(gone_s, until_s), gone_s)
        now_s = stop_s
        if period is None and (q + 1) % block == 0 and q + 1 < work.edge_iterations:
            now_s = above.meet(now_s)

    above.finish(now_s)
    all_rows: dict[str, Any] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    row_s, is_observed = all_rows.pop("row_s"), all_rows.pop("is_observed")
    counts = np.repeat(above.reached, block, axis=0)[:, at] if period is None else above.reached[-1][at]
    edge_energy_j = np.bincount(at, all_rows["energy_j"].sum(axis=0), num_edges) + above.edge_j
    if durations.download_s is not None:
        edge_energy_j = edge_energy_j + np.bincount(at, all_rows["download_j"].sum(axis=0), num_edges)
    bits = work.edge_bits if hops.bits is None else hops.bits
    of_edges_bits, of_regions_bits = (above.sent * bits).sum(), above.region_made.sum() * work.region_bits
    region_j = np.zeros(0)
    if hops.parent is not None:
        region_j = np.bincount(hops.parent, edge_energy_j, len(hops.region_delay_s)).astype(np.float64)
    return Timeline(
        devices=chosen,
        edges=at,
        samples=weight,
        **all_rows,
        participates=all_rows["arrived"] & counts,
        edge_delay_s=above.edge_delay_s,
        edge_energy_j=edge_energy_j,
        reached=above.reached[-1],
        vanished=(left_j <= 0) | (ends.vanish_s <= now_s[at]),
        device_delay_s=_mean_of(row_s, is_observed & counts),
        delay_s=above.delay_s if period is None else max(period.period_s, above.delay_s),
        message_bits=float(all_rows["bits"].sum() + of_edges_bits + of_regions_bits),
        device_bits=work.device_bits,
        region_delay_s=above.region_delay_s,
        region_energy_j=region_j,
    )


class _Above:
    """The hops of a round above the edges: to the cloud, or several times to a region, which then sends to the cloud.

    An edge that fails before its hop has ended is lost from then on, and its region waits for it until then.

    Args:
        hops: the hops.
        fail_s: when each edge fails, (M,), s.

    Attributes:
        hop_s: what an edge's hop takes, (M,), s; 0 where it makes none.
        reached: whether the edge's model has arrived, an entry (M,) for each time that the edges are combined.
        sent: how many models each edge has sent, (M,); the last may be a part of one.
        edge_delay_s: T_m, (M,), s: its own iterations and hops, without waiting for other edges of its region.
        edge_j: what an edge's hops take, with an equal share of its region's, (M,), J; nothing where it makes none.
        region_made: whether a region sends to the cloud, (R,).
        region_delay_s: when its model has arrived, (R,), s.
        delay_s: when the last one has arrived, s.
    """

    def __init__(self, hops: Hops, fail_s: FloatArray) -> None:
        self._hops, self._fail_s = hops, fail_s
        self.hop_s = np.where(hops.made, hops.delay_s, 0.0)
        self.reached: list[BoolArray] = []
        self.sent, self._waited_s = np.zeros(len(hops.delay_s)), np.zeros(len(hops.delay_s))

    def _hop(self, now_s: FloatArray) -> FloatArray:
        """Let each edge send at a moment, (M,), s; return when its model arrives, or when the edge fails."""
        arrives_s = now_s + self.hop_s
        reached = (self._fail_s > now_s) & (self._fail_s >= arrives_s)  # without a hop both moments are one
        share = part_of(self._fail_s - now_s, self._hops.delay_s)
        self.sent = self.sent + np.where(self._hops.made, np.where(reached, 1.0, share), 0.0)
        self.reached.append(reached)
        return np.where(reached, arrives_s, self._fail_s)

    def _of_regions(self, values: FloatArray) -> FloatArray:
        """Return the largest value of the edges of each region, (R,), or 0."""
        assert self._hops.parent is not None
        return largest_of(values, self._hops.parent, len(self._hops.region_delay_s))

    def meet(self, now_s: FloatArray) -> FloatArray:
        """Combine the edges of each region; return when each edge goes on, (M,), s."""
        ends_s = self._hop(now_s)
        goes_on_s = self._of_regions(ends_s)[self._hops.parent]
        self._waited_s += np.where(self.reached[-1], np.minimum(goes_on_s, self._fail_s) - ends_s, 0.0)
        return goes_on_s

    def finish(self, now_s: FloatArray) -> None:
        """Let each edge send for the last time, and each region to the cloud."""
        hops, ends_s, parent = self._hops, self._hop(now_s), self._hops.parent
        self.edge_delay_s, self.edge_j = ends_s - self._waited_s, self.sent * hops.energy_j
        self.region_made = self.region_delay_s = np.zeros(len(hops.region_delay_s))
        self.delay_s = float(ends_s.max())
        if parent is None:
            return
        has_arrived = np.any(self.reached, axis=0) & hops.made  # a region keeps the model of an edge that then fails
        self.region_made = self._of_regions(has_arrived.astype(np.float64))
        own_s = self.region_made * hops.region_delay_s
        self.region_delay_s = self._of_regions(ends_s) + own_s
        self.delay_s = float(self.region_delay_s.max())
        self.edge_delay_s = self.edge_delay_s + own_s[parent] * hops.made
        members = np.maximum(np.bincount(parent, hops.made, len(own_s)), 1)
        self.edge_j = self.edge_j + (self.region_made * hops.region_energy_j / members)[parent] * hops.made


def _mean_of(rows: FloatArray, chosen: BoolArray) -> FloatArray:
    """Return the mean of the chosen rows (Q, H) of each device, (H,), NaN without one; equal rows keep their bits."""
    first = rows[chosen.argmax(axis=0), np.arange(rows.shape[1])]
    with np.errstate(invalid="ignore"):
        return np.asarray(first + np.where(chosen, rows - first, 0.0).sum(axis=0) / chosen.sum(axis=0))


def _death_s(
    begin_s: FloatArray,
    left_j: FloatArray,
    compute_s: FloatArray,
    compute_j: FloatArray,
    upload_s: FloatArray,
    upload_j: FloatArray,
) -> FloatArray:
    """Return when each device has spent its charge, (H,), s; infinity if the charge lasts until it arrives."""
    with np.errstate(invalid="ignore", divide="ignore"):
        computing = begin_s + compute_s * (left_j / compute_j)
        sending = begin_s + compute_s + upload_s * ((left_j - compute_j) / upload_j)
    dead = np.where(left_j < compute_j, computing, sending)
    return np.where(left_j < compute_j + upload_j, dead, np.inf)
