"""The turns of a planned round under an asynchronous cloud, or of asynchronous edges, and what of them is trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from hflray.allocation import Allocation
from hflray.clock.asynchronous import Asynchrony
from hflray.clock.edge_rule import EdgeRule
from hflray.config import ExperimentConfig
from hflray.config.clock import AsynchronousEdgeConfig
from hflray.cost import RoundCost, Schedule, Workload
from hflray.experiment.passes import MixingEdges, PlanInWorld
from hflray.experiment.record import restored
from hflray.timeline import Timeline
from hflray.world import Outlook, World
from hflray.world.turns import AsynchronousRound, Turn, UnderWay, play, play_together

TURNS = ("turns", "trailing")  # the parts of a clock that are turns


@dataclass(frozen=True, eq=False)
class PlannedTurns:
    """Says what happens to a planned round under a cloud or edges that do not wait.

    Attributes:
        rule: how an asynchronous cloud takes updates; None: the cloud waits for its edges.
        work: the work of a turn.
        edge_rule: when an edge iteration ends.
        uniform: whether all devices have the weight 1 in place of their samples.
        edges: the settings of asynchronous edges; None: edges wait.
    """

    rule: Asynchrony | None
    work: Workload
    edge_rule: EdgeRule
    uniform: bool = False
    edges: AsynchronousEdgeConfig | None = None

    @classmethod
    def of(cls, config: ExperimentConfig, work: Workload) -> Self | None:
        """Return what a configuration says; None: both cloud and edges wait."""
        cloud, edges = config.clock.cloud.asynchronous, config.clock.edge.asynchronous
        if cloud is None and edges is None:
            return None
        rule = None if cloud is None else Asynchrony.of(cloud, config.fleet.num_edges)
        return cls(rule, work, EdgeRule.of(config.clock.edge), config.aggregation.weights == "uniform", edges)

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
        fleet, (devices, edges) = outlook.fleet, schedule
        weights = np.ones(len(devices)) if self.uniform else fleet.samples[devices]
        planned_edges = np.unique(edges).tolist()
        mean_weight = float(weights.sum() / max(1, len(planned_edges)))
        plan = PlanInWorld(world, outlook, before.clock_s, schedule, allocation, planned, weights)
        begin: Callable[[int, float, int], Turn | None]
        if self.edges is None:
            begin = _Waiting(plan, self.work, self.edge_rule, mean_weight)
            mixing = None
        else:
            begin = mixing = MixingEdges(plan, self.work, self.edges, mean_weight, before)
        wait_s = world.config.wait_s
        if self.rule is None:
            played = play_together(before, planned_edges, begin, ready_s=ready_s, wait_s=wait_s)
        else:
            played = play(self.rule, before, planned_edges, begin, ready_s=ready_s, wait_s=wait_s)
        if mixing is None:
            return played
        return replace(played, after=mixing.after(played.after))


class _Waiting:
    """Begins the turns of edges that wait for their devices."""

    def __init__(self, plan: PlanInWorld, work: Workload, rule: EdgeRule, mean_weight: float) -> None:
        self._plan, self._work, self._rule, self._mean_weight = plan, work, rule, mean_weight
        self._spent_j = {edge: np.zeros(len(plan.rows(edge))) for edge in plan.edges}
        self._same: dict[int, Timeline | None] = {}  # what every turn of the plan is, where nothing changes

    def _happens(self, edge: int, begin_s: float, first: int) -> Timeline | None:
        plan = self._plan
        if not (plan.world.repeats and edge in self._same):
            self._same[edge] = plan.turn(
                plan.rows(edge), self._work, self._rule, begin_s=begin_s, first=first, spent_j=self._spent_j[edge]
            )
        return self._same[edge]

    def __call__(self, edge: int, begin_s: float, first: int) -> Turn | None:
        """Return the turn that an edge begins; see `hflray.world.turns.play`."""
        timeline, plan = self._happens(edge, begin_s, first), self._plan
        if timeline is None:
            return None
        rows = plan.rows(edge)
        self._spent_j[edge] += timeline.spent_j
        weighted = replace(timeline, samples=plan.weights[rows])
        return Turn(
            edge=edge,
            number=0,
            round=plan.outlook.round,
            first=first,
            begin_s=begin_s,
            version=0,
            position=0,
            mean_weight=self._mean_weight,
            weight=float(weighted.edge_weight()[0]),
            power_w=plan.power_w(rows, self._work),
            happens=timeline,
        )


def under_way_of(state: Mapping[str, Any]) -> UnderWay:
    """Return the clock of a state (`hflray.experiment.record.state_of`)."""
    values = restored(state)
    for name in TURNS:
        values[name] = tuple(Turn(**{**turn, "happens": Timeline(**turn["happens"])}) for turn in values[name])
    return UnderWay(**values)
