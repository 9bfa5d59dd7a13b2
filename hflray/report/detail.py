"""The details of a round, and its explanation on a terminal: each device's cluster, edge, resources and cost, and the
device that each edge waited for.

The fleet and its world are functions of the configuration and are drawn again; everything else comes from the run's
tables. The cost of each device is computed by the equations that billed the round, and the recomputed bill must equal
the logged one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Group
from rich.text import Text

from hflray import metrics
from hflray.allocation import Allocation
from hflray.config import AllocationConfig, ExperimentConfig
from hflray.cost import PollCost, RoundCost, Schedule, Workload, hops, message_bits, round_cost
from hflray.errors import ConfigError
from hflray.experiment.fleets import unpacked
from hflray.fleet import Fleet, build_fleet
from hflray.fleet.fleet import DVFS, FDMA
from hflray.physics import Access, Compute
from hflray.report.labels import pretty
from hflray.report.runs import RunRecord
from hflray.scheduling.context import poll_spent_j
from hflray.seeding import stream
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.terminal.tables import TextTable
from hflray.timeline import Timeline
from hflray.world import Outlook, World, fates
from hflray.world.turns import PlannedTurns, UnderWay, timeline_of, turn_fates

SIMULTANEOUS = 1e-3  # devices whose times differ by at most this share finish together
BILL_TOLERANCE = 1e-6  # relative difference up to which the recomputed bill equals the logged one


@dataclass(frozen=True)
class RoundDetail:
    """A round.

    Attributes:
        number: i, counted from 1.
        devices: one row per scheduled device, see below.
        edges: one row per edge, see below.
        cost: the bill.
        outlook: the world when the round was planned.
        timeline: what happened to each device.
        deviates: whether the clock or the world is on, so that it may have gone otherwise than planned.

    Columns of `devices`; times are those of one edge iteration as planned, and energies those of `joules_of`:

    =================  ====  ==================================================================
    column             unit  meaning
    =================  ====  ==================================================================
    device             1     n
    cluster            1     the device's cluster; -1 without clusters
    majority           1     the class of most of the device's samples
    times              1     how often it was scheduled so far, this round included
    edge               1     m
    nearest            1     rank of that edge among the device's edges by distance, 1 the best
    strongest          1     rank of that edge among the device's edges by strength of link, 1 the best
    samples            1     D_n
    bandwidth_hz       Hz    b_n
    cpu_hz             Hz    f_n
    download_s         s     download delay
    compute_s          s     computing delay
    upload_s           s     upload delay
    seconds            s     sum of these delays
    joules             J     energy of computing and uploads
    straggler          bool  whether its edge waits for it (`_straggler`)
    fate               text  what became of it (`hflray.world.fates`); empty if it counts in all edge iterations
    =================  ====  ==================================================================

    Columns of `edges`; delays and energies are those of the round:

    =================  ====  ==================================================================
    column             unit  meaning
    =================  ====  ==================================================================
    edge               1     m
    devices            1     number of devices
    delay_s            s     T_m
    energy_j           J     E_m
    cloud_s            s     delay of the hop to the cloud, of each update where there are turns; 0 without one
    straggler          1     the device that the edge waits for; -1 without devices
    slowest            bool  whether the round waited for this edge (`ended_by`)
    =================  ====  ==================================================================
    """

    number: int
    devices: pd.DataFrame
    edges: pd.DataFrame
    cost: RoundCost
    outlook: Outlook
    timeline: Timeline
    deviates: bool


@dataclass(frozen=True, eq=False)
class _Happened:
    """A logged round as its bill follows from the schedule, and the world before it without what polls have taken."""

    world: World
    schedule: Schedule
    allocation: Allocation
    outlook: Outlook
    cost: RoundCost
    timeline: Timeline
    deviates: bool
    fates: list[str]
    after: UnderWay | None = None


@dataclass(frozen=True)
class Replay:
    """The rounds of a run, each recomputed in detail on request.

    Raises:
        ConfigError: the run's schedules or devices were not logged.
    """

    run: RunRecord

    def __post_init__(self) -> None:
        if reason := self.run.without_schedules:
            raise ConfigError(f"{self.run.name}: {reason}")

    @cached_property
    def fleet(self) -> Fleet:
        """The run's fleet, with the numbers of samples from the run's data; a random one is a function of its seed."""
        assert self.run.devices is not None
        config = self.run.config
        if self.run.fleet is None:
            fleet = build_fleet(config.fleet, stream(config.seed, "fleet"))
        else:
            fleet = unpacked(self.run.fleet, config.fleet)
        fleet = fleet.with_tree(config.tree, config.fleet, config.seed).with_physics(config.cost)
        return fleet.with_samples(self.run.devices["samples"])

    @cached_property
    def names(self) -> tuple[list[str], list[str], list[str]]:
        """What the user calls devices, edges and classes; numbers where there is no name."""
        fleet = self.fleet
        devices = fleet.device_names or tuple(map(str, range(fleet.num_devices)))
        edges = fleet.edge_names or tuple(map(str, range(fleet.num_edges)))
        return list(devices), list(edges), [str(name).removeprefix("class/") for name in self.class_counts]

    @cached_property
    def work(self) -> Workload:
        """The workload. Sizes that are logged are used; else, where ``cost.model_kb`` is null, z is recovered from the
        logged messages, which are in proportion to it.
        """
        config, rounds = self.run.config, self.run.rounds
        trained = rounds[rounds["devices"].map(len) > 0]
        if trained.empty:  # sizes were never sent, and price nothing
            return Workload.of(config, 1.0)
        first = trained.iloc[0]
        down: dict[str, Any] = {name: float(first[name]) for name in ("download_bits",) if name in first}
        if "device_bits" in first:
            down |= {name: float(first[name]) for name in metrics.SENT if name in first}
            return replace(Workload.of(config, 1.0), **down)
        if "model_bits" in first:
            return replace(Workload.of(config, model_bits=float(first["model_bits"])), **down)
        of_one_bit = replace(Workload.of(config, 1.0), device_bits=1.0, edge_bits=1.0, region_bits=1.0)
        models = message_bits(len(first["devices"]), self.fleet, of_one_bit)
        return replace(Workload.of(config, model_bits=float(first[metrics.ROUND_MESSAGE_BITS]) / models), **down)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the logged rounds."""
        return [int(number) for number in self.run.rounds["round"]]

    @cached_property
    def class_counts(self) -> pd.DataFrame:
        """The number of samples of each class at each device, (N, C)."""
        assert self.run.devices is not None
        return self.run.devices.filter(regex=r"^class/").set_axis(self.run.devices["device"])

    def round(self, number: int) -> RoundDetail:
        """Recompute a round in detail.

        Raises:
            ConfigError: there is no such round, or the recomputed bill differs from the logged one.
        """
        assert self.run.devices is not None
        if number not in self.numbers:
            raise ConfigError(
                f"--round: {self.run.name} has no round {number}; accepted: {self.numbers[0]} to {self.numbers[-1]}"
            )
        position = self.numbers.index(number)
        row, happened = self.run.rounds.iloc[position], self._happened(position)
        fleet, (chosen, edges), cost = happened.outlook.fleet, happened.schedule, happened.cost
        allocation = happened.allocation
        logged = float(row[metrics.ROUND_OBJECTIVE])
        if not np.isclose(cost.objective, logged, rtol=BILL_TOLERANCE):
            raise ConfigError(
                f"{self.run.name}: round {number} was billed {logged:.6g} J, but its schedule costs "
                f"{cost.objective:.6g} J; its settings changed as it ran, or this hflray draws another fleet than the "
                "hflray that ran it; run it again to see its rounds in detail"
            )
        profiles = self.run.devices.set_index("device").loc[chosen]
        schedules = [np.asarray(devices, dtype=np.intp) for devices in self.run.rounds["devices"].iloc[: position + 1]]
        times = np.bincount(np.concatenate(schedules), minlength=fleet.num_devices)
        rows = np.arange(len(chosen))
        distance, strength = fleet.distance_m[chosen], np.asarray(fleet.strength[chosen])
        seconds = cost.iteration_delay_s
        stragglers = {int(edge): _straggler(rows[edges == edge], seconds, allocation) for edge in np.unique(edges)}
        happens = happened.timeline
        spent_j = happens.spent_j
        if happens.updates is not None:  # a turn may lie in several rounds
            has_passes = self.run.config.clock.edge.asynchronous is not None
            iterations = 1 if has_passes else self.work.edge_iterations
            spent_j = iterations * (cost.compute_energy_j + cost.upload_energy_j)
        devices = pd.DataFrame(
            {
                "device": chosen,
                "cluster": profiles["cluster"].to_numpy() if "cluster" in profiles else -1,
                "majority": self.class_counts.loc[chosen].to_numpy().argmax(axis=1),
                "times": times[chosen],
                "edge": edges,
                "nearest": 1 + (distance < distance[rows, edges][:, None]).sum(axis=1),
                "strongest": 1 + (strength > strength[rows, edges][:, None]).sum(axis=1),
                "samples": profiles["samples"].to_numpy(),
                "bandwidth_hz": allocation.bandwidth_hz,
                "cpu_hz": allocation.cpu_hz,
                "download_s": 0.0 if cost.download_delay_s is None else cost.download_delay_s,
                "compute_s": cost.compute_delay_s,
                "upload_s": cost.upload_delay_s,
                "seconds": seconds,
                "joules": spent_j,
                "straggler": np.isin(rows, list(stragglers.values())),
                "fate": happened.fates,
            }
        )
        semi, cloud_s = self.run.config.clock.cloud.semi_synchronous, hops(fleet, self.work)[0]
        awaits_edges = has_devices = len(chosen) > 0
        if happens.updates is not None:  # nobody waits
            awaits_edges = False
        else:
            cloud_s = np.where(happens.reached & has_devices, cloud_s, 0.0)
            awaits_edges &= semi is None or happens.delay_s > semi.period_s
        table = pd.DataFrame(
            {
                "edge": range(fleet.num_edges),
                "devices": cost.edge_devices,
                "delay_s": cost.edge_delay_s,
                "energy_j": cost.edge_energy_j,
                "cloud_s": cloud_s,
                "straggler": [
                    int(chosen[stragglers[edge]]) if edge in stragglers else -1 for edge in range(fleet.num_edges)
                ],
                "slowest": (np.arange(fleet.num_edges) == cost.edge_delay_s.argmax()) & awaits_edges,
            }
        )
        return RoundDetail(number, devices, table, cost, happened.outlook, happens, happened.deviates)

    @cached_property
    def _states(self) -> list[tuple[World, UnderWay | None]]:
        """The worlds, and the clocks of an asynchronous cloud, before the first logged rounds, as far as needed."""
        return [(World(self.run.config, self.fleet), UnderWay.first(self.fleet.num_edges))]

    def _before(self, position: int, has_turns: bool) -> tuple[World, UnderWay | None]:
        """Return the world and the clock before the logged round at `position`.

        Raises:
            ConfigError: they follow from rounds that were not logged.
        """
        states, (world, _) = self._states, self._states[0]
        if not (world.is_on or has_turns):
            return states[0]
        if self.numbers[: position + 1] != list(range(1, position + 2)):
            subject = "the world of" if world.is_on else "the turns under way in"
            raise ConfigError(
                f"{self.run.name}: {subject} round {self.numbers[position]} follows from all rounds before it, and "
                "some were not logged; run it again to see its rounds in detail"
            )
        while len(states) <= position:
            past = self._happened(len(states) - 1)
            moved = past.world.after(past.cost.delay_s, past.timeline) if world.is_on else world
            states.append((moved, past.after))
        return states[position]

    def _happened(self, position: int) -> _Happened:
        """Return the logged round at `position` as its bill follows from the schedule."""
        row, turns = self.run.rounds.iloc[position], PlannedTurns.of(self.run.config, self.work)
        world, under_way = self._before(position, turns is not None)
        schedule = Schedule(row["devices"], row["edges"])
        logged = {
            name: np.asarray(row[name], dtype=np.float64)
            for name in ("bandwidth_hz", "cpu_hz", "share")
            if isinstance(row.get(name), list | np.ndarray)
        }
        cpu_hz = logged.get("cpu_hz", np.full(len(schedule), np.nan))
        allocation = Allocation(logged["bandwidth_hz"], cpu_hz, share=logged.get("share"))
        outlook = world.outlook(self.numbers[position], self.fleet)
        polls = np.isfinite(row.get(metrics.ROUND_POLL_DELAY_S, np.nan))  # an empty round polls nobody
        if polls and world.battery is not None:
            world = world.drained(poll_spent_j(outlook.fleet, self._polled(position)))
        if len(schedule.devices):
            cost = round_cost(outlook.fleet, self.work, schedule.devices, schedule.edges, allocation)
        else:
            wait_s, weight = self.run.config.world.wait_s, self.work.delay_weight
            cost = RoundCost.of_nobody(outlook.fleet.num_edges, wait_s, weight)
        clock = self.run.config.clock
        deviates = world.is_on or clock.is_on
        poll = PollCost(0.0, 0.0)
        if polls:
            poll = PollCost(float(row[metrics.ROUND_POLL_DELAY_S]), float(row[metrics.ROUND_POLL_ENERGY_J]))
        if turns is not None:
            assert under_way is not None
            played = turns.play(world, outlook, schedule, allocation, cost, under_way, poll.delay_s)
            timeline = timeline_of(played, outlook.edges_up, self.work.device_bits)
            texts, after = turn_fates(played, schedule, self.numbers[position]), played.after
            poll = replace(poll, delay_s=0.0)
        else:
            semi = clock.cloud.semi_synchronous
            timeline = world.happens(outlook, self.work, schedule, allocation, cost, clock.edge, semi, poll.delay_s)
            texts, after = fates(timeline, world.ends(outlook, schedule.devices, poll.delay_s)), None
        cost = timeline.bill(cost, self.work.delay_weight)
        if polls:
            cost = cost.with_poll(poll, self.work.delay_weight)
        return _Happened(world, schedule, allocation, outlook, cost, timeline, deviates, texts, after)

    def _polled(self, position: int) -> IntArray:
        """Return the devices that were polled in the logged round at `position`, see `hflray.scheduling.Poll`.

        Raises:
            ConfigError: they were not logged.
        """
        polled = self.run.rounds.iloc[position].get("polled")
        if not isinstance(polled, list | np.ndarray):
            raise ConfigError(
                f"{self.run.name}: the polls of round {self.numbers[position]} drained batteries, and an older hflray "
                "did not log which devices were polled; run it again to see its rounds in detail"
            )
        return np.asarray(polled, dtype=np.intp)


def allocation_texts(config: AllocationConfig, access: Access = FDMA, compute: Compute = DVFS) -> tuple[str, str]:
    """Return a sentence that says how bandwidth and frequency were allocated, and one about the stragglers."""
    if not compute.has_setting or not access.shared:
        return _of_measured(config, access, compute)
    if config.method == "equal":
        allocated = "Every device has an equal share of its edge's bandwidth, and computes at its largest frequency."
    else:
        where = "with one deadline for all edges" if config.coupling == "joint" else "at each edge"
        allocated = f"Bandwidth and frequency minimise E + λT {where}."
        if config.method == "fixed_cpu":
            allocated = f"Every device computes at its largest frequency, and bandwidth minimises E + λT {where}."
    if config.method in ("equal", "fixed_cpu"):
        return allocated, "⚑ marks the straggler, the device that its edge waits for."
    return allocated, (
        "An edge's devices finish together; ⚑ marks the straggler, the device for which saving a second would cost the "
        "most."
    )


def _of_measured(config: AllocationConfig, access: Access, compute: Compute) -> tuple[str, str]:
    """Return the sentences of `allocation_texts` where devices share nothing, or nothing of their computing is chosen.

    That devices finish together follows from frequencies that are chosen.
    """
    where = "with one deadline for all edges" if config.coupling == "joint" else "at each edge"
    parts = [
        "uploads take nothing from one another" if not access.shared
        else "every device has an equal share of its edge's uplink" if config.method == "equal"
        else f"shares of the uplink minimise E + λT {where}",
        "nothing of the computing is chosen" if not compute.has_setting
        else "every device computes at its largest setting" if config.method == "equal"
        else f"settings of the computing minimise E + λT {where}",
    ]  # fmt: skip
    text = f"{', and '.join(parts)}."
    return f"{text[0].upper()}{text[1:]}", "⚑ marks the straggler, the device that its edge waits for."


def joules_of(config: ExperimentConfig) -> str:
    """Return what the joules of a device in the details of a round are those of."""
    if config.clock.edge.asynchronous is not None:
        return "a pass as planned"
    if config.clock.cloud.asynchronous is not None:
        return "a turn as planned"
    is_synchronous = config.clock.cloud.semi_synchronous is None  # else each edge has a number of its own
    return f"all {config.round_iterations} edge iterations" if is_synchronous else "all edge iterations"


def _straggler(members: IntArray, seconds: FloatArray, allocation: Allocation) -> int:
    """Return the row of the device that its edge waits for.

    An optimal allocation lets (nearly) all devices of an edge finish together. Of the last devices, the straggler is
    the one with the highest frequency, because saving a second costs the most there (the price of delay is α f³).
    """
    last = members[seconds[members] >= seconds[members].max() * (1 - SIMULTANEOUS)]
    return int(max(last, key=lambda i: (np.nan_to_num(allocation.cpu_hz[i]), seconds[i])))


# The explanation.


def sentences(run: RunRecord, detail: RoundDetail, names: tuple[list[str], list[str], list[str]]) -> list[str]:
    """Return lines that say what happened in the round and why; `names` are those of `Replay.names`."""
    config, table, edges = run.config, detail.devices, detail.edges
    row = run.rounds[run.rounds["round"] == detail.number].iloc[0]
    lines = [
        f"{run.name}, round {detail.number}: {len(table)} of {config.fleet.num_devices} devices at {len(edges)} edges"
    ]
    main, balance = (metrics.describe(name) for name in (run.main_metric, metrics.CLASS_BALANCE))
    if main.name in row and np.isfinite(row[main.name]):
        classes = balance.text(row.get(balance.name, np.nan))
        judged = row.get(metrics.on_validation(main.name), np.nan)
        judges = f" (on the validation part, which decides, {main.text(judged)})" if np.isfinite(judged) else ""
        lines.append(f"{main.short} {main.text(row[main.name])}{judges}, class balance {classes}")
    weight = config.cost.delay_weight
    lines.append(
        f"T = {detail.cost.delay_s:,.2f} s, E = {detail.cost.energy_j:,.2f} J, "
        f"E + λT = {detail.cost.objective:,.2f} J with λ = {weight:g} J/s"
    )
    counts = sorted(Counter(table["cluster"].tolist()).items())
    clusters = ", ".join(f"{count} of cluster {cluster}" for cluster, count in counts if cluster >= 0)
    scheduler = pretty(config.scheduling.name, run.labels)
    lines.append(f"scheduled by {scheduler}{f': {clusters}' if clusters else ', which knows no clusters'}")
    best, assigner = int((table["strongest"] == 1).sum()), pretty(config.assignment.name, run.labels)
    lines.append(f"assigned by {assigner}: {best} of {len(table)} to the edge of their strongest link")
    lines += inside(config, row, run.labels)
    if (seconds := row.get(metrics.ROUND_DOWNLOAD_S, 0.0)) > 0:
        lines.append(f"downloads: {seconds:,.2f} s, {row[metrics.ROUND_DOWNLOAD_J]:,.2f} J of the edges, both included")
    dropped = int(np.nan_to_num(row.get(metrics.ROUND_DROPPED, 0.0)))
    if dropped:
        limits = config.allocation.limits
        caps = ((limits.device_energy_j, "J"), (limits.device_delay_s, "s"))
        words = " and ".join(f"{cap:g} {unit}" for cap, unit in caps if cap is not None)
        lines.append(f"{dropped} devices were left out, which could not stay within {words} in a round")
    device_names, edge_names, _ = names
    if not len(table):
        has_updates = detail.timeline.updates is not None and len(detail.timeline.updates)  # of earlier turns
        ended = f"the cloud waited for {detail.cost.delay_s:,.2f} s"
        ended = f"the round {' '.join(ended_by(detail, edge_names))}" if has_updates else ended
        return [*lines, f"nobody was {'left' if dropped else 'available'}, and {ended}"]
    lines.append(f"the round {' '.join(ended_by(detail, edge_names))}")
    for slow in edges[edges["slowest"]].to_dict("records"):
        waited = f"device {device_names[late]}" if (late := slow["straggler"]) >= 0 else "no device, only its hop up"
        lines[-1] += f" ({slow['delay_s']:,.2f} s), and that edge for {waited}"
    outlook = detail.outlook
    for count, words in (
        ((~outlook.answers).sum(), "devices did not answer"),
        ((outlook.answers & ~outlook.available).sum(), "devices were below their reserve of charge"),
        ((~outlook.edges_up).sum(), "edges did not work"),
    ):
        lines += [f"when the round was planned, {count} {words}"] if count else []
    rows: Any = table[table["fate"] != ""]
    return lines + [f"device {device_names[row.device]} {row.fate}" for row in rows.itertuples()]


def ended_by(detail: RoundDetail, edge_names: Sequence[str]) -> tuple[str, str]:
    """Return what the round waited for, or with whose update it ended, as two parts of a sentence."""
    updates, slow = detail.timeline.updates, detail.edges.index[detail.edges["slowest"]]
    if updates is not None:
        return "ended with", f"the update of edge {edge_names[int(updates[-1, 0])]}" if len(updates) else "no update"
    if not len(detail.devices):
        return "waited for", "nobody"
    return "waited for", f"edge {edge_names[slow[0]]}" if len(slow) else "the cloud's period"


def inside(config: ExperimentConfig, row: Any, labels: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return lines that name rule, aggregators and compressors, and what is sent; none where all are the defaults.

    Args:
        config: the run's configuration.
        row: the round's row of the table of rounds.
        labels: the user's own labels (`hflray.report.runs.RunRecord`).
    """
    lines, aggregation, compression = [], config.aggregation, config.compression
    names = (config.training.rule, aggregation.edge, aggregation.cloud, compression.device, compression.edge)
    rule, edge, cloud, device, hop = (pretty(section.name, labels) for section in names)
    if [section.name for section in names] != ["sgd", "mean", "mean", "none", "none"]:
        lines.append(f"trained by {rule}, combined by {edge} at edges and by {cloud} at the cloud")
    if metrics.SENT[0] in row and np.isfinite(row[metrics.SENT[0]]):
        up, hop_up = (f"{row[name] / 1e3:,.1f} kbit" for name in metrics.SENT[:2])
        lines.append(
            f"a device sends {up} in an edge iteration (compressor {device}), an edge {hop_up} (compressor {hop})"
        )
    cost = config.cost
    if (cost.access.name, cost.compute.name, cost.download.name) != ("fdma", "dvfs", "none"):
        access, compute, download = (pretty(part.name, labels) for part in (cost.access, cost.compute, cost.download))
        lines.append(f"devices share uplinks by {access}, compute by {compute} and get the model by {download}")
    if config.privacy.clip is not None and metrics.PRIVACY_EPSILON in row:
        epsilon = metrics.describe(metrics.PRIVACY_EPSILON).text(row[metrics.PRIVACY_EPSILON])
        lines.append(
            f"uploads have cost at most ε = {epsilon} for δ = {config.privacy.delta:g}; clustering and loss queries "
            "lie outside ε"
        )
    return lines


def _text(value: float, decimals: int = 3) -> str:
    """Return a number with so many decimals, or with two digits where it is small, so that it is not zero."""
    return f"{value:,.{decimals}f}" if value == 0 or value >= 0.1**decimals * 10 else f"{value:.2g}"


def explain(run: RunRecord, number: int) -> Group:
    """Return the explanation of a round of a run. Raises ConfigError: see `hflray.report.detail.Replay`."""
    replay = Replay(run)
    detail, (device_names, edge_names, class_names) = replay.round(number), replay.names
    hop = "hop up s" if detail.timeline.updates is None else "hop up s (of each update)"
    edges = TextTable("edges", ["edge", "devices", "delay s", "energy J", hop, "straggler"])
    rows: Any = detail.edges
    for row in rows.itertuples():
        edges.add_row(
            f"{edge_names[row.edge]}{' (slowest)' if row.slowest else ''}", f"{row.devices}", _text(row.delay_s, 2),
            _text(row.energy_j), _text(row.cloud_s), device_names[row.straggler] if row.straggler >= 0 else "–",
        )  # fmt: skip
    heads = ["device", "edge", "nearest", "cluster", "class", "times", "D", "MHz", "GHz", "compute s", "upload s", "J"]
    receives = bool((detail.devices["download_s"] > 0).any())
    heads[9:9] = ["download s"] * receives
    part = "one edge iteration" if run.config.clock.edge.asynchronous is None else "a pass"
    numbers = f"seconds of {part} as planned, joules of {joules_of(run.config)}"
    shared, fleet = replay.fleet.access.shared, replay.fleet
    devices = TextTable(f"devices ({numbers})", heads)
    rows = detail.devices.sort_values(["edge", "device"])
    for row in rows.itertuples():
        devices.add_row(
            f"{device_names[row.device]}{' ⚑' if row.straggler else ''}", edge_names[row.edge],
            f"{row.nearest}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(row.nearest, 'th') }",
            f"{row.cluster}" if row.cluster >= 0 else "–", class_names[row.majority], f"{row.times}", f"{row.samples}",
            f"{row.bandwidth_hz / 1e6:.3f}" if shared else "–",
            f"{row.cpu_hz / 1e9:.3f}" if np.isfinite(row.cpu_hz) else "–",
            *[_text(row.download_s)] * receives, _text(row.compute_s), _text(row.upload_s), _text(row.joules),
            bold=bool(row.straggler),
        )  # fmt: skip
    texts = " ".join(allocation_texts(run.config.allocation, fleet.access, fleet.compute))
    legend = (
        f"{texts} nearest says how near the edge is among all edges; class is the majority class; times is how often "
        "the device was scheduled so far."
    )
    return Group(*map(Text, sentences(run, detail, replay.names)), edges, devices, Text(legend, style="dim"))
