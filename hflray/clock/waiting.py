"""How long edges and the cloud wait, where they do wait.

An edge iteration ends when all devices have arrived, or at a limit (``clock.edge``). A semi-synchronous cloud combines
the edges once in a period, in which fast edges train more often (``clock.cloud``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hflray.config.clock import EdgeClockConfig
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray, largest_of

WAITS = EdgeClockConfig()  # the edge waits for all
MOST_ITERATIONS = 10_000  # of an edge in a round, unless the configuration limits them


def arrivals(rule: EdgeClockConfig, devices: IntArray) -> IntArray:
    """Return how many arrivals end an iteration, (M,), for edges with so many assigned devices."""
    if rule.first is None:
        return devices
    if isinstance(rule.first, int):
        return np.minimum(rule.first, devices)
    # Rounding must not turn a share of 0.1 of 30 devices into 4 of them.
    return np.asarray(np.ceil(rule.first * devices - 1e-9), dtype=np.intp)


def planned_s(rule: EdgeClockConfig, edges: IntArray, delay_s: FloatArray, num_edges: int) -> FloatArray:
    """Return how long an edge iteration takes as planned, limits included, (M,), s; 0 without devices.

    Args:
        rule: when it ends.
        edges: the edge of each scheduled device, (H,).
        delay_s: planned seconds of each in an edge iteration, (H,).
        num_edges: M.
    """
    slowest_s = largest_of(delay_s, edges, num_edges)
    ends_s = np.minimum(slowest_s, math.inf if rule.deadline_s is None else rule.deadline_s)
    if rule.deadline is not None:
        ends_s = np.minimum(ends_s, rule.deadline * slowest_s)
    if rule.first is not None:
        needed = arrivals(rule, np.bincount(edges, minlength=num_edges))
        ends_s = np.minimum(ends_s, nth_arrival_s(edges, delay_s, needed))
    return np.asarray(ends_s)


def nth_arrival_s(edges: IntArray, arrival_s: FloatArray, needed: IntArray) -> FloatArray:
    """Return when the arrival number `needed` (M,) of each edge happens, (M,), s; infinity where fewer arrive."""
    order = np.lexsort((arrival_s, edges))
    ordered = edges[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    nth = rank == needed[ordered] - 1
    nth_s = np.full(len(needed), np.inf)
    nth_s[ordered[nth]] = arrival_s[order[nth]]
    return nth_s


@dataclass(frozen=True, eq=False)
class Period:
    """The period of a semi-synchronous cloud: an edge goes on as long as it can send before its end, as planned.

    Attributes:
        period_s: P, s.
        iteration_s: what an edge iteration takes as planned, (M,), s (`planned_s`).
        max_iterations: the most edge iterations; None: no limit.
    """

    period_s: float
    iteration_s: FloatArray
    max_iterations: int | None = None

    def check(self, round_index: int) -> None:
        """Raise ConfigError if an edge would begin more than `MOST_ITERATIONS` edge iterations, as planned."""
        shortest_s = float(self.iteration_s[self.iteration_s > 0].min(initial=np.inf))
        limited = self.max_iterations is not None and self.max_iterations <= MOST_ITERATIONS
        if not limited and self.period_s > MOST_ITERATIONS * shortest_s:
            raise ConfigError(
                f"clock.cloud.semi_synchronous.period_s: got {self.period_s:g}; an edge whose iterations take "
                f"{shortest_s:.3g} s in round {round_index} would begin more than {MOST_ITERATIONS:,}; accepted: at "
                f"most {MOST_ITERATIONS * shortest_s:.3g}, or any with max_iterations = 1 to {MOST_ITERATIONS:,}; "
                "set it, or lower this"
            )

    def goes_on(self, iteration: int, now_s: FloatArray, hop_s: FloatArray) -> BoolArray:
        """Return which edges begin the edge iteration `iteration`, from 0, (M,), (M,) seconds after the round began.

        The first one is always begun. An upload to the cloud takes `hop_s`, (M,), s.
        """
        if iteration == 0:
            return np.ones(len(now_s), dtype=bool)
        in_time = now_s + self.iteration_s + hop_s <= self.period_s * (1 + 1e-9)  # a sum must not miss by rounding
        return np.asarray(in_time & (self.max_iterations is None or iteration < self.max_iterations))
