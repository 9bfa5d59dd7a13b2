"""The semi-synchronous cloud: it combines the edges once in a period, in which fast edges train more often."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray

MOST_ITERATIONS = 10_000  # of an edge in a round, unless the configuration limits them


@dataclass(frozen=True, eq=False)
class Period:
    """The period of a semi-synchronous cloud: an edge goes on as long as it can send before its end, as planned.

    Attributes:
        period_s: P, s.
        iteration_s: what an edge iteration takes as planned, (M,), s (`hflray.clock.edge_rule.planned_s`).
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
