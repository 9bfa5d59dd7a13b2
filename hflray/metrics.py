"""The glossary of logged metrics, and the formulas of metrics that no other module computes.

The constants are the metrics' names. Code that logs or reads a metric uses its constant. `describe` returns the
metric's row: its label, unit, meaning, scale and format, and the tables and charts that show it. To add a metric, add a
row to `hflray/metrics.toml` and a constant of its name here, and log its value under the constant (in
`hflray.experiment.record` for a round's metric). The glossary in the documentation is made from these rows.

Most metrics are logged once per round, with the round as the step. Simulated seconds and joules (``round/…``,
``total/…``, ``edge/…``) are computed by the paper's cost model; ``wall/…`` is measured on this machine. The two never
mix.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Logged = Literal[
    "round", "clock", "cloud", "asynchronous", "arrivals", "world", "battery", "poll", "download", "limits", "few",
    "private", "inside",
    "kind", "validation", "end", "fleet", "learning", "reference", "agent",
]  # fmt: skip
Table = Literal["training", "clustering", "assignment", "learning"]


@dataclass(frozen=True)
class Metric:
    """A row of the glossary: what a logged number means, and how and where it is shown.

    Attributes:
        name: name under which the number is logged.
        label: words that describe the number, for an axis.
        unit: unit of the logged number; ``1`` if it has none.
        meaning: what the number is and how it is computed, with the paper's symbols, as the glossary prints it.
        logged: when the number is logged: with each ``round``; with each round if a setting of ``clock`` or ``world``
            is on (``clock``) or one of ``world`` (``world``), if devices have batteries (``battery``), of a scheduler
            that polls (``poll``), with a download (``download``), if devices are left out by limits (``limits``), if
            edges need several models (``few``), with the section privacy (``private``), if a
            part inside the round is not the default (``inside``), of other data than classes (``kind``), or with a
            validation part (``validation``); at the ``end`` of a run; with each ``fleet`` of an assignment study; with
            each point of an assigner's ``learning``, once or for each ``reference``; with each point of an ``agent``
            that learns to schedule.
        shown: unit in which the number is shown; empty if no unit is written.
        better: whether larger values are better (``max``) or smaller ones; empty: neither is. Without an entry, smaller
            seconds, joules, bits and losses in nats are.
        scale: factor from the logged number to the shown number.
        format: format of the shown number.
        mean: format of a mean over several runs; empty: `format`.
        table: kind of task whose tables and bars contain the number.
        short: heading of the number's column in the table that closes a sweep; empty: no column.
        heading: heading of its column in a report's table, without the unit; empty: no column.
        bar: position among the bars on a report's page, from 1; 0: no bar.
        curve: whether a report's page draws the number over the rounds.
        printed: label in the paper's figures, with TeX between dollar signs; empty: `label`.
    """

    name: str
    label: str
    unit: str
    logged: Logged
    meaning: str = ""
    shown: str = ""
    better: Literal["max", "min", ""] = ""
    scale: float = 1.0
    format: str = "{:,.1f}"
    mean: str = ""
    table: Table = "training"
    short: str = ""
    heading: str = ""
    bar: int = 0
    curve: bool = False
    printed: str = ""

    def axis_of(self, words: str) -> str:
        """Return `words` with the shown unit, as the title of an axis."""
        return f"{words} ({self.shown})" if self.shown else words

    @property
    def axis(self) -> str:
        """The title of an axis: the label with the shown unit."""
        return self.axis_of(self.label)

    @property
    def printed_axis(self) -> str:
        """The title of an axis as in the paper's figures."""
        return self.axis_of(self.printed or self.label)

    @property
    def column(self) -> str:
        """The heading of the column in a report's table, with the shown unit."""
        return f"{self.heading}, {self.shown}" if self.shown else self.heading

    def text(self, value: float, beside: Iterable[float] = ()) -> str:
        """Return a logged number as it is shown, such as ``91.2%``; only headings show other units than %.

        Args:
            value: the number.
            beside: the logged numbers of its column, see `enough_digits`.
        """
        if self.shown == "%":
            return self.format.format(value * self.scale) + "%"
        return enough_digits(self.format, [x * self.scale for x in (value, *beside)]).format(value * self.scale)


def enough_digits(form: str, values: Iterable[float]) -> str:
    """Return a format such as ``{:,.1f}`` with so many decimals that the least of the numbers has two digits.

    Numbers below a thousandth of the largest do not count. A format without decimals stays.
    """
    fixed = re.fullmatch(r"(\{:,?\.)([1-9])f\}", form)
    sizes = [abs(value) for value in values if math.isfinite(value)]
    least = min((size for size in sizes if size > max(sizes) / 1000), default=0.0)
    if fixed is None or least == 0.0:
        return form
    return f"{fixed[1]}{max(int(fixed[2]), 1 - math.floor(math.log10(least)))}f}}"


RIVALS = ("energy_aware", "ikc", "fedavg", "best_channel")


def glossary(text: str) -> dict[str, Metric]:
    """Return the rows of a glossary (`hflray/metrics.toml`) by name, those of each rival last."""
    rows, of_rivals = dict[str, Metric](), dict[str, dict[str, Any]]()
    for name, entries in tomllib.loads(text).items():
        unit = entries.setdefault("unit", "1")
        entries.setdefault("better", "min" if unit in ("s", "J", "bit", "nats") else "")
        shown = entries.setdefault("shown", "" if unit == "1" else unit)
        percent: dict[str, Any] = {"scale": 100.0, "format": "{:.1f}"} if shown == "%" else {}
        if "<rival>" in name:
            of_rivals[name] = entries
        else:
            rows[name] = Metric(name, **percent | entries)
    for rival in RIVALS:
        for name, entries in of_rivals.items():
            texts = {key: value.replace("<rival>", rival) for key, value in {"name": name, **entries}.items()}
            rows[texts["name"]] = Metric(**texts)
    return rows


_ROWS = glossary(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
METRICS = {name: row for name, row in _ROWS.items() if "<" not in name}  # in the order in which tables show them
PER_EDGE = tuple(row for name, row in _ROWS.items() if "<" in name)  # M, and the number of regions, are settings

ACCURACY = "accuracy"
R2 = "r2"
TOKEN_ACCURACY = "token_accuracy"
TEST_LOSS = "test_loss"
ROUNDS_TO_TARGET = "rounds_to_target"
OBJECTIVE_TO_TARGET = "objective_to_target"
DELAY_TO_TARGET_S = "delay_s_to_target"
ENERGY_TO_TARGET_J = "energy_j_to_target"
TOTAL_OBJECTIVE = "total/objective"
TOTAL_DELAY_S = "total/delay_s"
TOTAL_ENERGY_J = "total/energy_j"
TOTAL_MESSAGE_BITS = "total/message_bits"
ROUND_DELAY_S = "round/delay_s"
ROUND_ENERGY_J = "round/energy_j"
ROUND_OBJECTIVE = "round/objective"
ROUND_MESSAGE_BITS = "round/message_bits"
ROUND_DISCARDED = "round/discarded"
ROUND_WASTED_J = "round/wasted_j"
ROUND_POLL_DELAY_S = "round/poll_delay_s"
ROUND_POLL_ENERGY_J = "round/poll_energy_j"
ROUND_DOWNLOAD_S = "round/download_s"
ROUND_DOWNLOAD_J = "round/download_j"
ROUND_DOWNLOAD_BITS = "round/download_bits"
ROUND_DROPPED = "round/dropped"
ROUND_EDGE_IDLE_S = "round/edge_idle_s"
CLOCK_S = "clock_s"
ROUND_UPDATES = "round/updates"
ROUND_STALENESS = "round/staleness"
ROUND_ARRIVALS = "round/arrivals"
ROUND_DEVICE_STALENESS = "round/device_staleness"
ROUND_TOO_FEW = "round/too_few"
PRIVACY_EPSILON = "privacy/epsilon"
UPDATE_NORM = "update/norm"
UPDATE_DRIFT = "update/drift"
COMPRESSION_ERROR = "compression/error"
FAIRNESS = "total/fairness"
ROUND_AWAY = "round/away"
ROUND_AVAILABLE = "round/available"
ROUND_VANISHED = "round/vanished"
ROUND_EDGES_DOWN = "round/edges_down"
ROUND_EDGES_FAILED = "round/edges_failed"
ROUND_LOW_BATTERY = "round/low_battery"
CHARGE_LEAST_J = "battery/min_j"
CHARGE_LOW_J = "battery/p10_j"
CHARGE_MEDIAN_J = "battery/median_j"
CHARGE_HIGH_J = "battery/p90_j"
WALL_SCHEDULE_S = "wall/schedule_s"
WALL_ASSIGN_S = "wall/assign_s"
WALL_ALLOCATE_S = "wall/allocate_s"
WALL_TRAIN_S = "wall/train_s"
WALL_EVALUATE_S = "wall/evaluate_s"
CLASS_BALANCE = "schedule/class_balance"
CLUSTERING_ARI = "clustering/ari"
CLUSTERING_DELAY_S = "clustering/delay_s"
CLUSTERING_ENERGY_J = "clustering/energy_j"
ASSIGNMENT_GAP = "assignment/gap"
ASSIGNER_RETURN = "assigner/return"
ASSIGNER_GREEDY_RETURN = "assigner/greedy_return"
ASSIGNER_AGREEMENT = "assigner/agreement"
ASSIGNER_OBJECTIVE = "assigner/objective"
ASSIGNER_LOSS = "assigner/loss"
ASSIGNER_EPISODES = "assigner/episodes"
ASSIGNER_STEPS_PER_S = "assigner/steps_per_s"
WALL_LEARN_S = "wall/learn_s"
AGENT_RETURN = "agent/return"
AGENT_LOSS = "agent/loss"

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


def on_validation(name: str) -> str:
    """Return the name of a metric of the test set on the validation part (``data.validation``)."""
    return f"validation_{name.removeprefix('test_')}"


def edge_metric(edge: int, quantity: str) -> str:
    """Return the name of an edge's metric; `quantity` is ``delay_s``, ``energy_j``, ``devices`` or a main metric."""
    return f"edge/{edge}/{quantity}"


def region_metric(region: int, quantity: str) -> str:
    """Return the name of a region's metric; `quantity` is ``delay_s`` or ``energy_j``."""
    return f"region/{region}/{quantity}"


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective divided by that of `reference`, such as ``teacher`` or ``lower_bound``."""
    return f"assigner/ratio/{reference}"


def agent_metric(quantity: str, player: str = "") -> str:
    """Return the name of a quantity on held-out fleets: of a scheduler of `RIVALS`, or else of the agent."""
    return f"agent/{player or 'held_out'}/{quantity}"


def is_timed(name: str) -> bool:
    """Return whether a metric is measured on the machine that runs, so that values of two machines are not alike."""
    return name.startswith("wall/") or name == ASSIGNER_STEPS_PER_S


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


def names_logged(when: Logged) -> tuple[str, ...]:
    """Return the names of the metrics that are logged at `when`."""
    return tuple(name for name, row in METRICS.items() if row.logged == when)


PER_ROUND = names_logged("round")
MAIN = (ACCURACY, *names_logged("kind"))  # a run logs one of these
LEARNING = names_logged("learning")
AT_THE_END = names_logged("end")
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
