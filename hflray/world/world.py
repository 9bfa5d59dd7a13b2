"""The world of an experiment: its parts, what decisions see of them, and what happens to a planned round.

Decisions see the `Outlook`, the known world. Bills and training follow the `Timeline`, the actual one. Both are
complete before anything is trained. All randomness is a function of the seed, the round, the edge iteration, the device
and the edge. The clock advances by the duration of each round.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

import numpy as np

from hflray import metrics, registry
from hflray.clock.waiting import Period
from hflray.clock.waiting import planned_s as planned_iteration_s
from hflray.config import ExperimentConfig
from hflray.config.clock import EdgeClockConfig, SemiSynchronousConfig
from hflray.cost import AllocationLike, RoundCost, Schedule, Senders, Workload, downloads
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.physics.access import Fdma, MeasuredAccess
from hflray.support.arrays import BoolArray, FloatArray, IntArray, largest_of
from hflray.support.contract import is_ours
from hflray.support.references import spoken
from hflray.timeline import Durations, Ends, Hops, Timeline, timeline
from hflray.world.availability import Availability, checked_answers
from hflray.world.battery import Battery
from hflray.world.fading import CheckedFading, Fading, LinkTrace, faded_upload
from hflray.world.faults import Dropout, Jitter, edge_failure
from hflray.world.mobility import CheckedPlaces, Mobility, Places, RandomWaypoint, ShadowField
from hflray.world.part import Part, try_part


@dataclass(frozen=True, eq=False)
class Outlook:
    """The world at the planning of a round.

    Attributes:
        round: i, from 1.
        clock_s: simulated seconds since the start of the first round.
        fleet: the devices, links and edges as far as they are known.
        answers: whether a device answers, (N,).
        available: whether it answers and has enough charge, (N,).
        edges_up: whether an edge works, (M,).
        battery_j: charge of each device, (N,), J; infinity without batteries.
    """

    round: int
    clock_s: float
    fleet: Fleet
    answers: BoolArray
    available: BoolArray
    edges_up: BoolArray
    battery_j: FloatArray

    @property
    def is_empty(self) -> bool:
        """Whether the round is empty, because no device is available or no edge works."""
        return not (self.available.any() and self.edges_up.any())


def _check_asynchronous(config: ExperimentConfig, fleet: Fleet) -> None:
    """Raise ConfigError if devices of asynchronous edges, each with its own time, cannot share what their edge has."""
    if config.clock.edge.asynchronous is None:
        return
    if fleet.download.together:
        raise ConfigError(
            f"cost.download.name: got {spoken(config.cost.download.name)} with clock.edge.asynchronous, whose devices "
            "do not receive together; accepted with it: none, unicast; set one of them"
        )
    if fleet.access.shared and type(fleet.access) is not Fdma:
        raise ConfigError(
            f"cost.access.name: got {spoken(config.cost.access.name)} with clock.edge.asynchronous, where devices of "
            "two plans share an uplink; accepted with it: fdma, or an access that shares nothing, such as measured; "
            "set one of them"
        )


class World:
    """The parts of the world at a moment. It does not change: `after` returns the world after a round.

    Args:
        config: the experiment's configuration.
        fleet: its devices, links and edges at the start.

    Raises:
        ConfigError: an option of a part is wrong.

    Attributes:
        is_on: whether any part is on.
        bandwidth_hz: the bandwidth of each edge, (M,), Hz.
    """

    def __init__(self, config: ExperimentConfig, fleet: Fleet) -> None:
        self.config, self.clock_s, self.bandwidth_hz = config.world, 0.0, fleet.edge_bandwidth_hz
        self._num_devices = fleet.num_devices
        self._places: CheckedPlaces | None = None  # of a motion of the user's own
        self.is_on = self.config.is_on
        arguments: dict[str, Any] = {"num_devices": fleet.num_devices, "seed": config.seed}
        section = self.config.availability
        arguments |= {"names": fleet.device_names} if section.name == "trace" else {}
        self.availability: Availability = registry.build("availability", section.name, arguments, **section.options)
        sigma = self.config.compute_jitter.sigma
        self.jitter = Jitter(config.seed, sigma) if sigma else None
        rate_per_s = self.config.dropout.rate_per_s
        self.dropout = Dropout(config.seed, rate_per_s) if rate_per_s else None
        self.edges = edge_failure(self.config.edge_failure, fleet.num_edges, config.seed, fleet.edge_names)
        no_batteries = self.config.battery.capacity_j is None
        if no_batteries and fleet.battery_j is not None:
            raise ConfigError(
                "world.battery.capacity_j: got null with a fleet whose devices have batteries; accepted with it: a "
                "number, for devices without one of their own; set it, or leave battery_j out"
            )
        self.battery = None
        if not no_batteries:
            self.battery = Battery(self.config.battery, fleet.num_devices, config.seed, fleet.battery_j)
        self.mobility = self._mobility(config, fleet)
        fading = self.config.fading
        arguments = {"seed": config.seed} | ({"fleet": fleet} if fading.name == "trace" else {})
        if isinstance(fleet.access, MeasuredAccess) and fading.name not in ("none", "trace"):
            raise ConfigError(
                f"world.fading.name: got {spoken(fading.name)} with cost.access.name = measured, whose rates do not "
                "follow from gains; accepted with it: none, or trace with the rates of each moment; remove it"
            )
        _check_asynchronous(config, fleet)
        self.fading: Fading = registry.build("fading", fading.name, arguments, **fading.options)
        if isinstance(self.fading, LinkTrace) and fading.coherence_s is not None:
            raise ConfigError(
                f"world.fading.coherence_s: got {fading.coherence_s:g} with a trace, which says itself when a link "
                "changes; accepted: null; remove it"
            )
        if not is_ours(self.fading):
            self.fading = CheckedFading(self.fading, fading.name)

    def _mobility(self, config: ExperimentConfig, fleet: Fleet) -> Mobility | None:
        """Return the motion of the devices; None if they stay."""
        section = self.config.mobility
        arguments: dict[str, Any] = {
            "seed": config.seed, "position_m": fleet.position_m, "area_m": config.fleet.area_m,
            "slot_s": section.slot_s,
        }  # fmt: skip
        arguments |= {"names": fleet.device_names} if section.name == "trace" else {}
        mobility: Mobility = registry.build("mobility", section.name, arguments, **section.options)
        if section.name == "static":
            return None
        if isinstance(mobility, RandomWaypoint) and fleet.is_placed:
            mobility.start_at(np.asarray(fleet.position_m))
        if fleet.fixed_gain or self.config.fading.name == "trace":
            raise ConfigError(
                f"world.mobility.name: got {spoken(section.name)} with links whose gains or rates are given, which do "
                "not follow the places; accepted with them: static, and world.fading: {name: trace} for links that "
                "change; leave out the one or the other"
            )
        self._fleet_config, self._shadowing = config.fleet, ShadowField(config.seed, section.correlation_m)
        if not is_ours(mobility):
            self._places = CheckedPlaces(section.name, fleet.num_devices, config.fleet.area_m)
        return mobility

    def try_parts(self) -> None:
        """Try parts of the user's own on copies, before anything starts. Raises ConfigError: one is wrong."""
        if isinstance(self.fading, CheckedFading):
            self.fading.try_out()
        if not is_ours(self.availability):
            name = self.config.availability.name
            try_part(
                "world.availability.name", name, self.availability, 1.0,
                lambda part: checked_answers(part, name, 1, 1.0, self._num_devices),
            )  # fmt: skip
        if self.mobility is not None and self._places is not None:
            section, places = self.config.mobility, self._places
            two = np.arange(self._num_devices)[:2]
            try_part(
                "world.mobility.name", section.name, self.mobility, section.slot_s,
                lambda part: (places.all(part), places.at(part, two)),
            )  # fmt: skip

    @property
    def _fades(self) -> bool:
        return self.config.fading.name != "none"

    @property
    def repeats(self) -> bool:
        """Whether an edge that trains twice with the same plan takes as long, because nothing changes meanwhile."""
        moves = self.mobility is not None and self.config.mobility.links == "iteration"
        changes = moves or (self._fades and not self.config.fading.known)
        parts = (self.jitter, self.dropout, self.edges, self.battery)
        return not changes and all(part is None for part in parts)

    @property
    def _parts(self) -> dict[str, Part]:
        """The parts that change, by name."""
        parts: dict[str, Part | None] = {
            "availability": self.availability, "edges": self.edges, "battery": self.battery,
            "mobility": self.mobility, "fading": self.fading if isinstance(self.fading, LinkTrace) else None,
        }  # fmt: skip
        return {name: part for name, part in parts.items() if part is not None}

    def outlook(self, round_index: int, fleet: Fleet) -> Outlook:
        """Return what the decisions of a round see.

        Args:
            round_index: i, from 1.
            fleet: the devices, links and edges at the start of the experiment.
        """
        places = None
        if self.mobility is not None:
            places = self.mobility.places() if self._places is None else self._places.all(self.mobility)
        fleet, name = self._with_links(round_index, fleet, places), self.config.availability.name
        answers = checked_answers(self.availability, name, round_index, self.clock_s, fleet.num_devices)
        return Outlook(
            round=round_index,
            clock_s=self.clock_s,
            fleet=fleet,
            answers=answers,
            available=answers if self.battery is None else answers & self.battery.available(),
            edges_up=np.ones(fleet.num_edges, dtype=bool) if self.edges is None else self.edges.up.copy(),
            battery_j=np.full(fleet.num_devices, np.inf) if self.battery is None else self.battery.charge_j,
        )

    def _with_links(self, round_index: int, fleet: Fleet, position_m: FloatArray | Places | None) -> Fleet:
        """Return a fleet with the links that decisions know, for devices that have moved to these places, (N, 2), m."""
        if position_m is not None:
            fleet = fleet.moved(position_m, self._fleet_config, self._shadowing)
        if self._fades and self.config.fading.known:
            fleet = fleet.with_factor(partial(self.fading.factor, round_index))
        return fleet

    def planned(self, outlook: Outlook, work: Workload, schedule: Schedule, cost: RoundCost) -> Durations:
        """Return the durations of a plan that costs so much, with downloads over the links that a trace has.

        Laws of fading change uploads alone.
        """
        durations = Durations.of(cost, outlook.fleet.download.together)
        if durations.download_s is None or not isinstance(self.fading, LinkTrace) or self.config.fading.known:
            return durations
        fleet = outlook.fleet.with_factor(partial(self.fading.factor, outlook.round))
        download_s, download_j = downloads(fleet, work, schedule.devices, schedule.edges)
        return replace(durations, download_s=download_s, download_j=download_j)

    def happens(
        self,
        outlook: Outlook,
        work: Workload,
        schedule: Schedule,
        allocation: AllocationLike,
        planned: RoundCost,
        rule: EdgeClockConfig,
        cloud: SemiSynchronousConfig | None = None,
        ready_s: float = 0.0,
    ) -> Timeline:
        """Return what happens to a planned round; all goes as planned where the world and the rule are off.

        Args:
            outlook: what the plan was made from.
            work: the work of the round.
            schedule: the scheduled devices and the edge of each, (H,).
            allocation: bandwidth and CPU frequency of each.
            planned: the bill of the round as planned.
            rule: when an edge iteration ends.
            cloud: the settings of a semi-synchronous cloud; None: it is synchronous.
            ready_s: how long it takes to make the plan, s; the timeline begins then.
        """
        fleet, (devices, edges) = outlook.fleet, schedule
        hops, ends = Hops.of(fleet, work, outlook.edges_up), self.ends(outlook, devices, ready_s)
        hops = replace(hops, made=hops.made & bool(len(devices)))
        planned_s = largest_of(planned.iteration_delay_s, edges, fleet.num_edges)
        period = None
        if cloud is not None:
            iteration_s = planned_iteration_s(rule, edges, planned.iteration_delay_s, fleet.num_edges)
            period = Period(cloud.period_s, iteration_s, cloud.max_iterations)
            period.check(outlook.round)
        durations = self._durations(
            outlook,
            work,
            schedule,
            allocation,
            self.planned(outlook, work, schedule, planned),
            None if period else range(work.edge_iterations),
            ready_s,
        )
        happens = timeline(
            schedule, fleet.samples[devices], work, durations, hops, rule=rule, planned_s=planned_s, ends=ends,
            period=period,
        )  # fmt: skip
        return happens if len(devices) else replace(happens, delay_s=self.config.wait_s)

    def turn(
        self,
        outlook: Outlook,
        work: Workload,
        schedule: Schedule,
        allocation: AllocationLike,
        planned: Durations,
        rule: EdgeClockConfig,
        *,
        begin_s: float = 0.0,
        first: int = 0,
        spent_j: FloatArray | float = 0.0,
    ) -> Timeline | None:
        """Return what happens in a turn of an edge, in seconds since its beginning; None if the edge or nobody lives.

        The edge is the only one of the timeline, and its number is 0.

        Args:
            outlook: what the plan of the turn's round was made from.
            work: the work of a turn.
            schedule: the devices of the edge, (n,).
            allocation: bandwidth and CPU frequency of each.
            planned: what an edge iteration of each takes as planned.
            rule: when an edge iteration ends.
            begin_s: when the turn begins, s since the plan was made.
            first: the number of its first edge iteration among those of the edge in this round.
            spent_j: what each device has spent since the plan was made, (n,), J.
        """
        fleet, (devices, edges) = outlook.fleet, schedule
        edge, hops, ends = int(edges[0]), Hops.of(fleet, work), self.ends(outlook, devices)
        alone = slice(edge, edge + 1)
        ends = replace(
            ends,
            vanish_s=ends.vanish_s - begin_s,
            charge_j=ends.charge_j - spent_j,
            fail_s=ends.fail_s[alone] - begin_s,
        )
        if ends.fail_s[0] <= 0 or not ((ends.vanish_s > 0) & (ends.charge_j > 0)).any():
            return None
        hops = Hops(hops.delay_s[alone], hops.energy_j[alone], hops.made[alone] & outlook.edges_up[alone])
        iterations = range(first, first + work.edge_iterations)
        durations = self._durations(outlook, work, schedule, allocation, planned, iterations, begin_s)
        schedule_alone = Schedule(devices, np.zeros_like(edges))
        samples, planned_s = fleet.samples[devices], [float(planned.iteration_s.max())]
        happens = timeline(schedule_alone, samples, work, durations, hops, rule=rule, planned_s=planned_s, ends=ends)
        if happens.participates.any() or not happens.reached[0]:
            return happens
        # Nothing counts, so nothing is sent.
        none = Hops.none(1)
        return timeline(schedule_alone, samples, work, durations, none, rule=rule, planned_s=planned_s, ends=ends)

    def _durations(
        self,
        outlook: Outlook,
        work: Workload,
        schedule: Schedule,
        allocation: AllocationLike,
        planned: Durations,
        iterations: range | None,
        begin_s: float = 0.0,
    ) -> Durations:
        """Return what an edge iteration of each scheduled device takes as it happens.

        Args:
            iterations: the numbers of the edge iterations in the round; None: their number is not known, and they are
                drawn one by one.
            begin_s: when the first of them begins, s since the plan was made.
        """
        durations, devices = planned, schedule.devices
        first = 0 if iterations is None else iterations.start

        def alone(iteration: int) -> range:
            return range(first + iteration, first + iteration + 1)

        if self.jitter is not None:
            jitter, round_index = self.jitter, outlook.round

            def computing(numbers: range) -> tuple[FloatArray, FloatArray]:
                factor = jitter.factor(round_index, numbers, devices)
                return factor * planned.compute_s, factor * planned.compute_j

            def compute_at(iteration: int) -> tuple[FloatArray, FloatArray]:
                compute_s, compute_j = computing(alone(iteration))
                return compute_s[0], compute_j[0]

            if iterations is None:
                durations = replace(durations, compute_at=compute_at)
            else:
                compute_s, compute_j = computing(iterations)
                durations = replace(durations, compute_s=compute_s, compute_j=compute_j)
        fades, share = self._fades and not self.config.fading.known, getattr(allocation, "share", None)

        def upload(numbers: range, fleet: Fleet) -> tuple[FloatArray, FloatArray]:
            senders = Senders.of(fleet, work, schedule, allocation.bandwidth_hz, share)
            if fades:
                return faded_upload(
                    self.fading, self.config.fading.coherence_s, outlook.round, numbers, schedule, senders
                )
            return senders.upload(np.ones((len(numbers), len(devices))))

        def upload_at(iteration: int, starts_s: FloatArray) -> tuple[FloatArray, FloatArray]:
            fleet = self._on_the_way(outlook, devices, begin_s + starts_s) if moves else outlook.fleet
            upload_s, upload_j = upload(alone(iteration), fleet)
            return upload_s[0], upload_j[0]

        moves = self.mobility is not None and self.config.mobility.links == "iteration"
        if moves or (fades and iterations is None):
            return replace(durations, upload_at=upload_at)
        if fades and iterations is not None:
            upload_s, upload_j = upload(iterations, outlook.fleet)
            durations = replace(durations, upload_s=upload_s, upload_j=upload_j)
        return durations

    def _on_the_way(self, outlook: Outlook, devices: IntArray, begin_s: FloatArray) -> Fleet:
        """Return the known fleet with devices (H,) where they are so many seconds, (H,), after the round's planning."""
        if self.mobility is None or not begin_s.any():
            return outlook.fleet
        moving = copy.deepcopy(self.mobility)
        position_m = np.zeros(outlook.fleet.position_m.shape)  # nobody looks at the others
        for moment_s in np.unique(begin_s):  # each edge has its own
            moving.advance(outlook.clock_s + moment_s)
            starting = devices[begin_s == moment_s]
            position_m[starting] = moving.at(starting) if self._places is None else self._places.at(moving, starting)
        return self._with_links(outlook.round, outlook.fleet, position_m)

    def ends(self, outlook: Outlook, devices: IntArray, ready_s: float = 0.0) -> Ends:
        """Return when the scheduled devices (H,) of a round vanish and the edges fail, `ready_s` after its planning.

        An edge that fails before that is down from the start.
        """
        ends = Ends.never(len(devices), outlook.fleet.num_edges)
        ends = replace(ends, noticed_after_s=self.config.dropout.noticed_after_s)
        if self.dropout is not None:
            ends = replace(ends, vanish_s=self.dropout.vanish_s(outlook.round, devices))
        if self.battery is not None:
            ends = replace(ends, charge_j=self.battery.charge_j[devices])
        if self.edges is not None:
            left_s = self.edges.next_off_s(self.clock_s) - self.clock_s - ready_s
            ends = replace(ends, fail_s=np.where(self.edges.up, np.maximum(left_s, 0.0), 0.0))
        return ends

    def drained(self, spent_j: FloatArray) -> Self:
        """Return the world after devices have spent so much, (N,), J, before a round; this one does not change."""
        later = copy.copy(self)
        if later.battery is not None:
            later.battery = copy.deepcopy(later.battery)
            later.battery.charge_j = np.maximum(later.battery.charge_j - spent_j, 0.0)
        return later

    def after(self, delay_s: float, happens: Timeline) -> Self:
        """Return the world after a round; this one does not change.

        Args:
            delay_s: the duration of the round, s.
            happens: what happens to it.
        """
        later = copy.copy(self)
        for name, part in self._parts.items():
            setattr(later, name, copy.deepcopy(part))
        later.clock_s = self.clock_s + delay_s
        if later.battery is not None:
            later.battery.settle(delay_s, happens.devices, happens.spent_j, happens.busy_s)
        for part in later._parts.values():
            part.advance(later.clock_s)
        return later

    def metrics(self, outlook: Outlook, happens: Timeline) -> dict[str, float]:
        """Return the round's metrics of the world, which are none where it is off."""
        if not self.is_on:
            return {}
        values = {
            metrics.ROUND_AWAY: float((~outlook.answers).sum()),
            metrics.ROUND_AVAILABLE: float(outlook.available.sum()),
            metrics.ROUND_VANISHED: float(happens.vanished.sum()),
            metrics.ROUND_EDGES_DOWN: float((~outlook.edges_up).sum()),
            metrics.ROUND_EDGES_FAILED: float((outlook.edges_up & ~happens.reached).sum()),
        }
        if self.battery is not None:
            shares = [float(quantile) for quantile in metrics.CHARGE_QUANTILES.values()]
            charges = np.quantile(self.battery.charge_j, shares).tolist()
            values[metrics.ROUND_LOW_BATTERY] = float((~self.battery.available()).sum())
            values |= dict(zip(metrics.CHARGE_QUANTILES, charges, strict=True))
        return values

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the parts as arrays by ``world.PART.ARRAY``; it is empty where the world is off."""
        if not self.is_on:
            return {}
        return {
            f"world.{name}.{key}": value
            for name, part in self._parts.items()
            for key, value in part.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Any], clock_s: float) -> None:
        """Restore a state of `state_dict`, which was saved at `clock_s`.

        Raises:
            ConfigError: an array is missing or has another shape.
        """
        self.clock_s = clock_s
        if not self.is_on:
            return
        for name, part in self._parts.items():
            prefix = f"world.{name}."
            part.load_state_dict({key[len(prefix) :]: state[key] for key in state if key.startswith(prefix)})
            part.advance(clock_s)
