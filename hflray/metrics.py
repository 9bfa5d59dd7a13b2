"""The glossary of logged metrics, and the formulas of metrics that no other module computes.

The constants are the metrics' names. Code that logs or reads a metric uses its constant. `describe` returns the
metric's row: its label, unit, meaning, scale and format, and the tables and charts that show it. To add a metric, add a
row to `hflray/support/glossary.py` and log its value under the constant (in `hflray.experiment.record` for a
round's metric). The glossary in the documentation is made from these rows.

Most metrics are logged once per round, with the round as the step. Simulated seconds and joules (``round/…``,
``total/…``, ``edge/…``) are computed by the paper's cost model; ``wall/…`` is measured on this machine. The two never
mix.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from hflray.support.glossary import *
from hflray.support.glossary import METRICS as METRICS
from hflray.support.glossary import Logged as Logged
from hflray.support.glossary import Metric as Metric
from hflray.support.glossary import Table as Table
from hflray.support.glossary import enough_digits as enough_digits

SENT = ("device_bits", "edge_bits", "region_bits")  # what is sent on each hop, where this is not a whole model
# What the metrics of a target are the value of, in the round that reached it.
TOTAL_OF = {
    OBJECTIVE_TO_TARGET: TOTAL_OBJECTIVE,
    DELAY_TO_TARGET_S: TOTAL_DELAY_S,
    ENERGY_TO_TARGET_J: TOTAL_ENERGY_J,
}
# The other columns of a run's table of rounds (`hflray.tracking.RunTables`).
COLUMNS = frozenset(
    {"round", "devices", "edges", "bandwidth_hz", "cpu_hz", "share", "model_bits", "download_bits", "polled", *SENT}
)


def may_be_own(name: str) -> bool:
    """Return whether a metric of the user's own (`target.metric`) may have this name, which no other value has."""
    return name.isidentifier() and name not in METRICS and name not in COLUMNS


def describe(name: str) -> Metric:
    """Return the row of a metric of the glossary, or of one of the user's own. Raises KeyError if it can be neither."""
    if may_be_own(name):
        heading = f"{name} (own)" if name in _headings() else name
        return Metric(name, heading, "1", "round", format="{:,.4g}", short=heading, heading=heading, curve=True)
    return METRICS[name]


@cache
def _headings() -> set[str]:
    """Return the headings and labels of tables and charts, which a metric of the user's own must not have as well."""
    words = {word for row in METRICS.values() for word in (row.label, row.short, row.heading, row.column)}
    return {"trial", "rounds", "steps", "seeds", "fleets", "deployments", "coupling", *words}


def own_of(names: Collection[str]) -> list[Metric]:
    """Return the rows of the user's own metrics on the test set among the `names` of logged metrics."""
    of_validation = {on_validation(name) for name in names}
    return [describe(name) for name in names if may_be_own(name) and name not in of_validation]


def deciding(name: str, values: Mapping[str, float]) -> float | None:
    """Return the value of a metric at which stopping and choosing look: on the validation part if it is logged there.

    Args:
        name: the metric's name on the test set, or that of any other metric.
        values: what a round has logged.

    Returns:
        The value; None if the round has logged neither.
    """
    return values.get(on_validation(name), values.get(name))


def rows(table: Table, logged: Collection[str] = ()) -> list[Metric]:
    """Return the rows of a kind of task, in the order of its tables; the user's own `logged` metrics come first."""
    users = own_of(logged) if table == "training" else []
    return [*users, *(row for row in METRICS.values() if row.table == table)]


def main_of(names: Collection[str]) -> list[Metric]:
    """Return the rows of the user's own metrics and of the main metric among the `names` of logged metrics."""
    return own_of(names) + [METRICS[name] for name in MAIN if name in names]


def bars(table: Table) -> list[Metric]:
    """Return the rows that have a bar for a kind of task, in the order of the bars."""
    return sorted((row for row in rows(table) if row.bar), key=lambda row: row.bar)


def curves(logged: Collection[str] = ()) -> list[Metric]:
    """Return the rows that a report's page draws over the rounds, the user's own among the `logged` metrics first."""
    return own_of(logged) + [row for row in METRICS.values() if row.curve]


def _names(when: Logged) -> tuple[str, ...]:
    """Return the names of the metrics that are logged at `when`."""
    return tuple(name for name, row in METRICS.items() if row.logged == when)


PER_ROUND = _names("round")
WITH_A_CLOCK = _names("clock")
WITH_A_CLOUD = (*_names("cloud"), *_names("asynchronous"), *_names("arrivals"))
WITH_A_WORLD = _names("world")
WITH_A_VALIDATION = _names("validation")
WITH_A_POLL = _names("poll")
WITH_A_DOWNLOAD = _names("download")
WITH_LIMITS = _names("limits")
WITH_A_LEAST = _names("few")
WITH_PRIVACY = _names("private")
WITH_PARTS = _names("inside")
WITH_BATTERIES = _names("battery")
MAIN = (ACCURACY, *_names("kind"))  # a run logs one of these
LEARNING = _names("learning")
OF_AGENTS = _names("agent")
AT_THE_END = _names("end")
CHARGE_QUANTILES = {CHARGE_LEAST_J: "0", CHARGE_LOW_J: "0.1", CHARGE_MEDIAN_J: "0.5", CHARGE_HIGH_J: "0.9"}


def class_balance(class_counts: NDArray[np.integer]) -> float:
    """Return how evenly the scheduled devices' samples cover the classes.

    Args:
        class_counts: samples of each class over all scheduled devices, (C,).

    Returns:
        The entropy of the classes' shares over its maximum: 1 if every class has the same number of samples, and 0 if
        one class has them all or there is only one class.
    """
    if class_counts.sum() == 0 or len(class_counts) < 2:
        return 0.0
    share = class_counts[class_counts > 0] / class_counts.sum()
    entropy = float(-(share * np.log(share)).sum() / np.log(len(class_counts)))
    return min(1.0, entropy) + 0.0  # rounding may exceed 1; + 0.0 turns -0.0 into 0.0


def jain_index(counts: NDArray[np.integer]) -> float:
    """Return Jain's fairness index (Σ x)² / (N Σ x²) of N counts; 0 if all are 0."""
    x = counts.astype(np.float64)
    squares = float((x * x).sum())
    return float(x.sum() ** 2 / (len(x) * squares)) if squares else 0.0
