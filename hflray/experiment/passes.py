"""The turns of asynchronous edges in a planned round: when each pass of a device begins and ends in the world."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hflray.allocation import Allocation
from hflray.clock.asynchronous import Asynchrony
from hflray.clock.edge_rule import EdgeRule
from hflray.clock.mixing import Pass, mix_turn
from hflray.config.clock import AsynchronousEdgeConfig
from hflray.cost import RoundCost, Schedule, Senders, Workload, hops
from hflray.support.arrays import FloatArray, IntArray
from hflray.timeline import Durations, Timeline
from hflray.world import Outlook, World
from hflray.world.turns import Turn, UnderWay


@dataclass(frozen=True, eq=False)
class PlanInWorld:
    """A plan, and the world in which it happens.

    Attributes:
        world: the world at planning.
        outlook: what the plan was made from.
        clock_s: when it was made, s since the start of the first round.
        schedule: the scheduled devices and the edge of each, (H,).
        allocation: bandwidth and CPU frequency of each.
        cost: the bill as planned.
        weights: the weight of each device, (H,).
    """

    world: World
    outlook: Outlook
    clock_s: float
    schedule: Schedule
    allocation: Allocation
    cost: RoundCost
    weights: FloatArray

    @property
    def edges(self) -> list[int]:
        """The edges with devices."""
        return [int(edge) for edge in np.unique(self.schedule.edges)]

    def rows(self, edge: int) -> IntArray:
        """Return which of the scheduled devices an edge has."""
        return np.flatnonzero(self.schedule.edges == edge)

    def turn(
        self,
        rows: IntArray,
        work: Workload,
        rule: EdgeRule,
        *,
        begin_s: float,
        first: int,
        spent_j: FloatArray | float,
        scale: float = 1.0,
    ) -> Timeline | None:
        """Return what happens to some devices of one edge, with a part of their bandwidth; see `World.turn`."""
        schedule = Schedule(self.schedule.devices[rows], self.schedule.edges[rows])
        allocation, planned = (
            self._part(rows, scale),
            Durations.of(self.cost, self.outlook.fleet.download.together).take(rows),
        )
        if scale < 1.0:
            senders = Senders.of(self.outlook.fleet, work, schedule, allocation.bandwidth_hz, allocation.share)
            upload_s, upload_j = senders.upload()
            planned = replace(planned, upload_s=upload_s, upload_j=upload_j)
        return self.world.turn(
            self.outlook, work, schedule, allocation, planned, rule,
            begin_s=begin_s - self.clock_s, first=first, spent_j=spent_j,
        )  # fmt: skip

    def _part(self, rows: IntArray, scale: float) -> Allocation:
        """Return the allocation of some devices, with a part of their bandwidth."""
        share = None if self.allocation.share is None else self.allocation.share[rows] * scale
        return Allocation(self.allocation.bandwidth_hz[rows] * scale, self.allocation.cpu_hz[rows], share=share)

    def power_w(self, rows: IntArray, work: Workload) -> FloatArray:
        """Return what some devices draw while they send, W."""
        schedule, allocation = Schedule(self.schedule.devices[rows], self.schedule.edges[rows]), self._part(rows, 1.0)
        return Senders.of(self.outlook.fleet, work, schedule, allocation.bandwidth_hz, allocation.share).power_w

    @property
    def held_hz(self) -> FloatArray:
        """The bandwidth that each device holds while it is under way, (H,), Hz; none where nothing is shared."""
        return self.allocation.bandwidth_hz * float(self.outlook.fleet.access.shared)


class MixingEdges:
    """Begins the turns of asynchronous edges, and knows what is under way when they end.

    Args:
        plan: the plan.
        work: the work of a turn.
        config: the settings of the edges.
        mean_weight: the mean weight of an edge with devices, for the cloud.
        before: the clock after the round before.
    """

    def __init__(
        self, plan: PlanInWorld, work: Workload, config: AsynchronousEdgeConfig, mean_weight: float, before: UnderWay
    ) -> None:
        self._plan, self._config, self._mean_weight = plan, config, mean_weight
        self._work = work
        self._pass_work = replace(work, edge_iterations=1, cloud_hop=False)
        self._passes, self._versions = before.passes(), before.edge_versions.copy()
        self._counts: dict[int, int] = {}
        self._spent_j: dict[int, float] = {}
        self._same: dict[tuple[int, float], Timeline | None] = {}  # where nothing changes

    def after(self, after: UnderWay) -> UnderWay:
        """Return a clock with the passes that edges have not mixed in."""
        rows = [[edge, *map(float, waiting)] for edge in sorted(self._passes) for waiting in self._passes[edge]]
        table = np.array(rows, dtype=np.float64).reshape(-1, 1 + len(Pass._fields))
        return replace(after, waiting=table, edge_versions=self._versions)

    def __call__(self, edge: int, begin_s: float, first: int) -> Turn | None:
        """Return the turn that an edge begins; see `hflray.world.turns.play`."""
        plan, rows = self._plan, self._plan.rows(edge)
        ends = plan.world.ends(plan.outlook, plan.schedule.devices[rows])
        fails_s = plan.clock_s + float(ends.fail_s[edge])
        if fails_s <= begin_s or not plan.outlook.edges_up[edge]:
            return None
        waiting = [older for older in self._passes.get(edge, ()) if begin_s < older.fails_s]  # a failure loses them
        self._passes[edge] = tuple(waiting)
        row_of = {int(plan.schedule.devices[row]): int(row) for row in rows}
        scale = self._scale(edge, rows, begin_s, [older for older in waiting if older.device not in row_of])
        happened: list[Timeline] = []

        def begin(device: int, moment_s: float) -> Pass | None:
            number = self._counts.get(device, 0)
            happens = self._pass(row_of[device], moment_s, number, scale)
            if happens is None:
                return None
            self._counts[device] = number + 1
            self._spent_j[device] = self._spent_j.get(device, 0.0) + float(happens.spent_j[0])
            happened.append(happens)
            row = row_of[device]
            return Pass(
                device,
                plan.outlook.round,
                number,
                moment_s,
                moment_s + float(happens.end_s[0, 0]),
                bool(happens.participates[0, 0]),
                moment_s + float(happens.edge_delay_s[0]),
                float(plan.weights[row]),
                float(plan.held_hz[row] * scale),
                fails_s,
            )

        version = int(self._versions[edge]) + 1  # the fetch from the cloud
        mean_weight = float(plan.weights[rows].mean())
        rule = Asynchrony.of_edge(self._config, len(rows))
        mixed = mix_turn(
            rule, waiting, sorted(row_of), begin, begin_s=begin_s, version=version, mean_weight=mean_weight
        )
        if not mixed.begun and not mixed.mixes:
            return None
        weight_of = {mix.arrival.device: mix.arrival.weight for mix in mixed.mixes}
        happens = self._timeline(edge, begin_s, mixed.begun, happened, mixed.end_s, bool(mixed.mixes), fails_s)
        reached = bool(happens.reached[0])
        self._versions[edge] = mixed.version
        self._passes[edge] = mixed.under_way if reached else ()
        numbers = [[*map(float, mix.arrival), mix.moment_s, mix.staleness, mix.share] for mix in mixed.mixes]
        return Turn(
            edge=edge,
            number=0,
            round=plan.outlook.round,
            first=first,
            begin_s=begin_s,
            version=0,
            position=0,
            mean_weight=self._mean_weight,
            weight=float(sum(weight_of.values())) if reached else 0.0,
            power_w=plan.power_w(
                np.array([row_of[int(device)] for device in happens.devices], dtype=np.intp), self._work
            ),
            happens=happens,
            fetched=version,
            mixes=np.array(numbers, dtype=np.float64).reshape(-1, len(Pass._fields) + 3),
        )

    def _scale(self, edge: int, rows: IntArray, begin_s: float, older_passes: list[Pass]) -> float:
        """Return the part of the planned bandwidth that devices of an older plan leave."""
        planned_hz = float(self._plan.held_hz[rows].sum())
        held_hz = sum(older.bandwidth_hz for older in older_passes if begin_s < older.end_s)
        rest_hz = float(self._plan.world.bandwidth_hz[edge]) - held_hz
        return 1.0 if rest_hz >= planned_hz * (1 - 1e-9) else max(rest_hz / planned_hz, 1e-6)

    def _pass(self, row: int, moment_s: float, number: int, scale: float) -> Timeline | None:
        """Return what happens in a pass of the device in a row of the plan, in seconds since it fetched."""
        plan, key = self._plan, (row, scale)
        if not (plan.world.repeats and key in self._same):
            spent_j = self._spent_j.get(int(plan.schedule.devices[row]), 0.0)
            self._same[key] = plan.turn(
                np.array([row]), self._pass_work, EdgeRule(), begin_s=moment_s, first=number, spent_j=spent_j,
                scale=scale,
            )  # fmt: skip
        return self._same[key]

    def _timeline(
        self,
        edge: int,
        begin_s: float,
        begun: tuple[Pass, ...],
        happened: list[Timeline],
        mixed_s: float,
        sends: bool,
        fails_s: float,
    ) -> Timeline:
        """Return the timeline of a turn, in seconds since its beginning, from what happens in its passes."""
        plan, work = self._plan, self._work
        devices = np.array(sorted({begun_pass.device for begun_pass in begun}), dtype=np.intp)
        column_of = {int(device): column for column, device in enumerate(devices)}
        counts, places = np.zeros(len(devices), dtype=int), []
        for begun_pass in begun:
            column = column_of[begun_pass.device]
            places.append((counts[column], column))
            counts[column] += 1
        shape = max(1, counts.max(initial=0)), len(devices)
        hop_s, hop_j = (float(hop[edge]) for hop in hops(plan.outlook.fleet, work))
        makes = sends and work.cloud_hop
        end_s = mixed_s + (hop_s if makes else 0.0)
        reached = fails_s >= end_s
        part = 0.0 if not makes else 1.0 if reached else float(np.clip((fails_s - mixed_s) / hop_s, 0.0, 1.0))

        def table(name: str, shifts: bool, nothing: Any) -> Any:
            values = np.full(shape, nothing)
            for place, begun_pass, row in zip(places, begun, happened, strict=True):
                values[place] = getattr(row, name).flat[0] + (begun_pass.begin_s - begin_s if shifts else 0)
            return values

        energy_j, bits, arrived = (
            table("energy_j", False, 0.0),
            table("bits", False, 0.0),
            table("arrived", False, 0) > 0,
        )
        taken_s = table("device_delay_s", False, np.nan)
        has_taken = np.isfinite(taken_s)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean_s = np.where(has_taken, taken_s, 0.0).sum(axis=0) / has_taken.sum(axis=0)
        is_sent = any(row.download_j is not None for row in happened)
        down_j = table("download_j", False, 0.0) if is_sent else None
        total_j = float(energy_j.sum() + part * hop_j) + (0.0 if down_j is None else float(down_j.sum()))
        until_s = min(end_s, fails_s) - begin_s
        return Timeline(
            devices=devices,
            edges=np.zeros(len(devices), dtype=np.intp),
            samples=plan.outlook.fleet.samples[devices].astype(np.float64),
            start_s=table("start_s", True, np.nan),
            computed_s=table("computed_s", True, np.nan),
            end_s=table("end_s", True, np.nan),
            energy_j=energy_j,
            bits=bits,
            arrived=arrived,
            participates=arrived & reached,
            iteration_end_s=np.full((shape[0], 1), min(mixed_s, fails_s) - begin_s),
            edge_delay_s=np.array([until_s]),
            edge_energy_j=np.array([total_j]),
            reached=np.array([reached]),
            vanished=table("vanished", False, 0).any(axis=0),
            device_delay_s=mean_s if reached else np.full(len(devices), np.nan),
            delay_s=until_s,
            total_j=total_j,
            message_bits=float(bits.sum() + part * work.edge_bits),
            device_bits=work.device_bits,
            received_s=None if down_j is None else table("received_s", True, np.nan),
            download_j=down_j,
        )
