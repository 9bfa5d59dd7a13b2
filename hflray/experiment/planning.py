"""The plan of a round: what Algorithm 6 of the paper decides before it trains.

A plan holds the scheduled devices, their edges, the allocation and the bill, and what happens to them in the world.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hflray import metrics
from hflray.allocation import Allocation, kept_by_limits
from hflray.assignment import Assigner, assign_among, assign_the_rest, reachable
from hflray.config import ExperimentConfig
from hflray.cost import RoundCost, Schedule, Workload, round_cost
from hflray.experiment.record import PhaseClock, PlannedRound, RoundRecord
from hflray.experiment.scenario import Scenario
from hflray.physics.access import NoDownload
from hflray.scheduling import DeviceHistory, Poll, RoundContext, Scheduler, choose_devices_and_edges
from hflray.seeding import stream
from hflray.world import Outlook, World
from hflray.world.turns import PlannedTurns, UnderWay, timeline_of


@dataclass(frozen=True, eq=False)
class Planner:
    """Plans the rounds of an experiment.

    Attributes:
        config: the experiment's configuration.
        scenario: its data and fleet.
        work: the work of a round.
        assigner: chooses the edges, unless the scheduler does.
        allocate: allocates a round's bandwidth and CPU frequencies (`hflray.allocation.allocate_round`).
        losses: returns the mean loss of the current global model on the samples of some devices, (n,), for polls.
        turns: says what happens if cloud or edges do not wait; None: they do, or the cloud is semi-synchronous.
    """

    config: ExperimentConfig
    scenario: Scenario
    work: Workload
    assigner: Assigner
    allocate: Callable[..., Allocation]
    losses: Callable[[NDArray[np.intp]], NDArray[np.float64]]
    turns: PlannedTurns | None = None

    def plan(
        self,
        index: int,
        scheduler: Scheduler,
        world: World,
        history: DeviceHistory,
        record: RoundRecord | None,
        under_way: UnderWay | None = None,
    ) -> tuple[PlannedRound, World]:
        """Schedule, assign and allocate a round, and say what happens to it. This advances `scheduler`.

        Args:
            index: i, the number of the round.
            scheduler: chooses the devices.
            world: the world after the round before.
            history: what is remembered of the devices.
            record: the record of the round before, if it is remembered.
            under_way: the clock of an asynchronous cloud after the round before; None: nothing is under way.

        Raises:
            ConfigError: the scheduler or the assigner returned something wrong.
            InfeasibleError: an edge's allocation failed.
        """
        under_way = under_way or UnderWay.first(self.config.fleet.num_edges)
        outlook = self._outlook(index, world, history, under_way)
        context = self._context(scheduler, outlook, record, history)
        fleet, seed = outlook.fleet, self.config.seed
        clock = PhaseClock()
        schedule, dropped, allocation = Schedule.of_nobody(), 0, Allocation(np.zeros(0), np.zeros(0))
        cost = RoundCost.of_nobody(fleet.num_edges, self.config.world.wait_s, self.work.delay_weight)
        if outlook.is_empty:
            clock.laps |= {"schedule_s": 0.0, "assign_s": 0.0}
        else:
            devices, assignment = choose_devices_and_edges(scheduler, context)
            if context.poll is not None:
                world = world.drained(context.poll.spent_j)
            clock.lap("schedule_s")
            if assignment is None:
                up, rng = outlook.edges_up, stream(seed, "assign", index)
                assign = partial(assign_among, self.assigner, up, fleet, self.work, devices, rng)
                once = self.config.assignment.once
                assignment = assign_the_rest(context.edge_of[devices], assign) if once else assign()
            clock.lap("assign_s")
            schedule = Schedule(devices, assignment)
            if self.work.limits.drop:
                stays = kept_by_limits(fleet, self.work, *schedule)
                schedule = Schedule(schedule.devices[stays], schedule.edges[stays])
            dropped = len(devices) - len(schedule)
            if len(schedule):
                up = outlook.edges_up  # one deadline of all edges waits for no hop of an edge that is down
                sending = fleet if up.all() else fleet.with_edges_up(up)
                allocation = self.allocate(sending, self.work, *schedule)
                cost = round_cost(fleet, self.work, schedule.devices, schedule.edges, allocation)
        poll = None if context.poll is None else context.poll.cost
        played, ready_s = None, 0.0 if poll is None else poll.delay_s
        if self.turns is None:
            edge, semi = self.config.clock.edge, self.config.clock.cloud.semi_synchronous
            happens = world.happens(outlook, self.work, schedule, allocation, cost, edge, semi, ready_s)
            billed = poll
        else:
            played = self.turns.play(world, outlook, schedule, allocation, cost, under_way, ready_s)
            happens = timeline_of(played, outlook.edges_up, self.work.device_bits)
            billed = None if poll is None else replace(poll, delay_s=0.0)  # only edges that wait for the plan wait
        cost = happens.bill(cost, self.work.delay_weight)
        if billed is not None:
            cost = cost.with_poll(billed, self.work.delay_weight)
        later, conditions = world.after(cost.delay_s, happens), world.metrics(outlook, happens)
        if not isinstance(fleet.download, NoDownload):
            conditions |= happens.downloads(self.work.download_bits, fleet.download.together)
        if self.work.limits.drop:
            conditions[metrics.ROUND_DROPPED] = float(dropped)
        clock.lap("allocate_s")
        polled = None if context.poll is None or world.battery is None else context.poll.devices
        planned = PlannedRound(index, schedule, allocation, cost, happens, poll, polled, conditions, clock.laps, played)
        return planned, later

    def _outlook(self, index: int, world: World, history: DeviceHistory, under_way: UnderWay) -> Outlook:
        """Return the world as decisions see it.

        A device cannot train while the edge that it keeps is down, or while it is under way, and keeps its bandwidth.
        """
        outlook = world.outlook(index, self.scenario.fleet)
        if len(busy := under_way.busy):
            available = outlook.available.copy()
            available[busy] = False
            outlook = replace(outlook, available=available)
        if len(under_way.waiting):
            fleet = outlook.fleet
            rest_hz = fleet.edge_bandwidth_hz - under_way.held_hz(fleet.num_edges)
            rest_hz = np.maximum(rest_hz, 1e-6 * fleet.edge_bandwidth_hz)
            outlook = replace(
                outlook, fleet=replace(fleet, edge_bandwidth_hz=rest_hz, downlink_hz=fleet.edge_bandwidth_hz)
            )
        if not self.config.assignment.once:
            return outlook
        return replace(outlook, available=outlook.available & reachable(history.edge_of, outlook.edges_up))

    def _context(
        self, scheduler: Scheduler, outlook: Outlook, record: RoundRecord | None, history: DeviceHistory
    ) -> RoundContext:
        """Return what the decisions of a round see."""
        polls = "poll" in scheduler.needs and not outlook.is_empty
        return RoundContext(
            round=outlook.round,
            clock_s=outlook.clock_s,
            rng=stream(self.config.seed, "schedule", outlook.round),
            fleet=outlook.fleet,
            work=self.work,
            available=outlook.available,
            edges_up=outlook.edges_up,
            battery_j=outlook.battery_j,
            class_counts=self.scenario.class_counts,
            record=record,
            poll=Poll(outlook.fleet, outlook.available, self.losses) if polls else None,
            **history.arrays(),
        )
