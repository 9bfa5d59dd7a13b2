"""The turns of a planned round under an asynchronous cloud, and what of them is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from hflray.allocation import Allocation
from hflray.clock.asynchronous import Asynchrony
from hflray.clock.edge_rule import EdgeRule
from hflray.cost import RoundCost, Schedule, Workload
from hflray.support.arrays import packed, unpacked
from hflray.timeline import Durations, Timeline
from hflray.training.asynchronous import TurnsTask, TurnTask
from hflray.world import Outlook, World
from hflray.world.turns import AsynchronousRound, Turn, UnderWay, play


@dataclass(frozen=True)
class PlannedTurns:
    """Says what happens to a planned round under an asynchronous cloud.

    Attributes:
        rule: how the cloud takes updates.
        work: the work of a turn.
        edge_rule: when an edge iteration ends.
        uniform: whether all devices have the weight 1 in place of their samples.
    """

    rule: Asynchrony
    work: Workload
    edge_rule: EdgeRule
    uniform: bool = False

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
        rows_of = {edge: np.flatnonzero(edges == edge) for edge in planned_edges}
        spent_j = {edge: np.zeros(len(rows)) for edge, rows in rows_of.items()}
        same: dict[int, Timeline | None] = {}  # what every turn of the plan is, where nothing changes

        def happens(edge: int, begin_s: float, first: int) -> Timeline | None:
            if world.repeats and edge in same:
                return same[edge]
            rows = rows_of[edge]
            durations = Durations(
                planned.compute_delay_s[rows], planned.compute_energy_j[rows], planned.upload_delay_s[rows],
                planned.upload_energy_j[rows],
            )  # fmt: skip
            same[edge] = world.turn(
                outlook, self.work, Schedule(devices[rows], edges[rows]),
                Allocation(allocation.bandwidth_hz[rows], allocation.cpu_hz[rows]),
                durations, self.edge_rule,
                begin_s=begin_s - before.clock_s, first=first, spent_j=spent_j[edge],
            )  # fmt: skip
            return same[edge]

        def begin(edge: int, begin_s: float, first: int) -> Turn | None:
            timeline = happens(edge, begin_s, first)
            if timeline is None:
                return None
            spent_j[edge] += timeline.spent_j
            weighted = replace(timeline, samples=weights[rows_of[edge]])
            return Turn(
                edge=edge,
                number=0,
                round=outlook.round,
                first=first,
                begin_s=begin_s,
                version=0,
                position=0,
                mean_weight=mean_weight,
                weight=float(weighted.edge_weight()[0]),
                power_w=fleet.power_w[devices[rows_of[edge]]],
                happens=timeline,
            )

        return play(self.rule, before, planned_edges, begin, ready_s=ready_s, wait_s=world.config.wait_s)


def task_of(played: AsynchronousRound, index: int, buffers: bool, wants_losses: bool) -> TurnsTask:
    """Return what a round trains: the turns whose updates arrive in it.

    Args:
        played: what happens in the round.
        index: i, from 1.
        buffers: whether the cloud has a buffer.
        wants_losses: whether the losses of the devices are computed.
    """
    turns = []
    for update in played.updates:
        turn, rows = update.turn, update.turn.happens
        ends_s = rows.iteration_end_s[:, 0]
        turns.append(
            TurnTask(
                edge=turn.edge,
                round_index=turn.round,
                first=turn.first,
                devices=rows.devices,
                participates=rows.participates,
                begin_s=turn.begin_s + np.concatenate([[0.0], ends_s[:-1]]),
                arrives_s=turn.end_s,
                source=_source(turn, index),
                share=update.share,
                shares=update.shares,
                steps=update.steps,
            )
        )
    under_way = {turn.edge: _source(turn, index) for turn in played.after.turns}
    return TurnsTask(index, tuple(turns), under_way, buffers, wants_losses)


def _source(turn: Turn, index: int) -> int | None:
    """Return how many updates the round had before an edge fetched; None: it fetched in an earlier round."""
    return turn.position if turn.round == index else None


def saved(under_way: UnderWay) -> dict[str, Any]:
    """Return the clock with every bit, ready for JSON."""
    turns = [
        {part.name: _plain(getattr(turn, part.name)) for part in fields(turn) if part.name != "happens"}
        | {"happens": {part.name: _plain(getattr(turn.happens, part.name)) for part in fields(turn.happens)}}
        for turn in under_way.turns
    ]
    own = {part.name: _plain(getattr(under_way, part.name)) for part in fields(under_way) if part.name != "turns"}
    return own | {"turns": turns}


def loaded(state: Mapping[str, Any]) -> UnderWay:
    """Return the clock of `saved`."""
    turns = tuple(
        Turn(**{name: _array(value) for name, value in turn.items() if name != "happens"},
             happens=Timeline(**{name: _array(value) for name, value in turn["happens"].items()}))
        for turn in state["turns"]
    )  # fmt: skip
    return UnderWay(**{name: _array(value) for name, value in state.items() if name != "turns"}, turns=turns)


def _plain(value: Any) -> Any:
    return packed(value) if isinstance(value, np.ndarray) else value


def _array(value: Any) -> Any:
    return unpacked(value) if isinstance(value, dict) and "base64" in value else value
