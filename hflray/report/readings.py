"""The readings of Algorithm 5: what the paper leaves open, a reading's ceiling, and whether a policy still improves.

`hflray.report.tables` and `hflray.report.figures` show the runs by their reading, and Figure 5's claims are judged for
each.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from hflray import metrics
from hflray.assignment.features import PAPERS
from hflray.report.labels import pretty
from hflray.report.runs import Run
from hflray.report.series import last_step

IMPROVING = (
    1.0  # a policy still improves if the mean return of its last quarter is more than this above the quarter before
)
STARTS = ("geographic", "best_gain")  # of HFEL's search, which the paper does not name
FEATURES, START, BUFFER = "learning.features", "learning.teacher.start", "learning.buffer_capacity"


class Reading(NamedTuple):
    """What the paper leaves open and what decides how much Algorithm 5 can learn.

    Attributes:
        features: ``paper`` (linear gains) or ``paper_db``.
        start: the assignment from which the teacher's search starts.
        buffer: transitions in the replay buffer.
    """

    features: str
    start: str
    buffer: int

    @classmethod
    def of(cls, run: Run) -> Reading:
        """Return the reading of a run of Algorithm 5."""
        settings = run.settings
        return cls(str(settings[FEATURES]), str(settings[START]), int(settings[BUFFER]))

    @property
    def taught(self) -> str:
        """What decides the ceiling: the gains' scale and the start of the teacher's search."""
        gains = "gains in dB" if self.features == "paper_db" else "linear gains"
        return f"{gains}, {pretty(self.start)} start"

    def __str__(self) -> str:
        return f"{self.taught}, buffer of {self.buffer:,}"


READINGS = [Reading(*each) for each in product(PAPERS, STARTS, (1_000, 50_000))]


def is_ceiling(run: Run) -> bool:
    """Return whether a run teaches the paper's network by cross-entropy alone, which gives a reading's ceiling."""
    settings = run.settings
    supervised = settings.get("learning.td") == 0 and settings.get("learning.architecture") == "bilstm"
    return supervised and settings.get(FEATURES) in PAPERS


def draws(run: Run) -> float:
    """Return how often a transition is drawn from the replay buffer, on average."""
    learning = run.config.learning
    return learning.training_intensity or learning.train_batch / (learning.update_every or 1)


def gain(run: Run, metric: str = metrics.ASSIGNER_RETURN) -> float:
    """Return by how much the mean of a metric in the last quarter of a run's steps is above the quarter before."""
    values = run.series(metric)
    last = last_step(run, metric)
    quarter = np.minimum(3, (values.index.to_numpy() - 1) * 4 // max(1, last))
    before, after = (float(values[quarter == number].mean()) for number in (2, 3))
    return after - before


def improves(run: Run) -> bool:
    """Return whether a policy still improves at its end: by more than `IMPROVING` in its last quarter."""
    return gain(run) > IMPROVING


def last_tenth(run: Run, metric: str) -> list[float]:
    """Return the values of a metric in the last tenth of a run's steps."""
    values = run.series(metric)
    return [float(value) for value in values[values.index > 0.9 * last_step(run, metric)]]
