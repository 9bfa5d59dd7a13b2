"""The glossary: a row for every logged metric, and the small formulas that are nobody else's.

The constants are the names, plain strings, for who writes a metric and who reads it; `describe` gives the row: label,
unit, scale, format, and which tables and charts show it; those follow from the rows. To add a metric, add a row here,
write its number under the constant (a round's in `hflray.record`), and name it in README's glossary.

Per round, with the round as the step. Simulated seconds and joules (``round/…``, ``total/…``, ``edge/…``) are
arithmetic on the paper's cost model; ``wall/…`` is measured on this machine. The two never mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Logged = Literal["round", "end", "fleet", "learning", "reference"]
Table = Literal["training", "clustering", "assignment", "learning"]


@dataclass(frozen=True)
class Metric:
    """A row of the glossary: what a logged number is, and how and where it is shown.

    Attributes:
        name: as logged.
        label: what it is, in words, for an axis.
        unit: of the logged number; ``1`` has none.
        logged: with each round; at the end of a run; with each fleet of an assignment study; with each point of an
            assigner's learning curve; or there, once for each reference (`assigner_ratio`).
        shown: the unit of the number as it is shown; empty where none is written.
        scale: what the logged number is multiplied by to be shown.
        format: how the shown number is written.
        mean: how a mean of several runs is written; empty: as one number.
        table: the kind of task that it sums up: the tables below, and the bars, are those of such a task.
        short: heading of its column in a sweep's closing table; empty: it has none.
        heading: heading of its column in a report's table, without the unit; empty: it has none.
        bar: its place among the bars of the page of a report, from 1; 0: it has none.
        curve: whether the page of a report draws it over the rounds.
        printed: what the paper's figures call it, where that is not `label`; TeX between dollar signs.
    """

    name: str
    label: str
    unit: str
    logged: Logged
    shown: str = ""
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
        """The title of an axis called `words` with the unit as shown."""
        return f"{words} ({self.shown})" if self.shown else words

    @property
    def axis(self) -> str:
        """The title of an axis: what it is, and its unit as shown."""
        return self.axis_of(self.label)

    @property
    def printed_axis(self) -> str:
        """The title of an axis as the paper's figures have it."""
        return self.axis_of(self.printed or self.label)

    @property
    def column(self) -> str:
        """The heading of its column in a report's table, with its unit."""
        return f"{self.heading}, {self.shown}" if self.shown else self.heading

    def text(self, value: float) -> str:
        """A logged number as it is shown, such as ``91.2%``; other units are left to the heading."""
        return self.format.format(value * self.scale) + ("%" if self.shown == "%" else "")


METRICS: dict[str, Metric] = {}  # in the order in which tables show them


def _metric(name: str, label: str, unit: str, logged: Logged, **how: Any) -> str:
    """Add a row to the glossary and return its name."""
    METRICS[name] = Metric(name, label, unit, logged, **how)
    return name


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective over that of `reference`: ``teacher``, ``hfel-300``, ``lower_bound``…"""
    return f"assigner/ratio/{reference}"


_PERCENT: dict[str, Any] = {"shown": "%", "scale": 100.0, "format": "{:.1f}"}
_MB: dict[str, Any] = {"shown": "MB", "scale": 1 / 8e6, "format": "{:,.0f}"}
_STUDY: dict[str, Any] = {"table": "assignment", "format": "{:.1f}"}
_LEARNING: dict[str, Any] = {"table": "learning", "format": "{:.1f}"}

ACCURACY = _metric(
    "accuracy", "Test accuracy", "1", "round", **_PERCENT, short="accuracy", heading="accuracy", curve=True
)
TEST_LOSS = _metric("test_loss", "Test loss", "nats", "round", shown="nats", curve=True)
ROUNDS_TO_TARGET = _metric(
    "rounds_to_target", "Rounds to the target accuracy", "1", "end",
    format="{:.0f}", mean="{:.1f}", short="to target", heading="rounds to target",
)  # fmt: skip
OBJECTIVE_TO_TARGET = _metric("objective_to_target", "Objective to the target accuracy", "J", "end", shown="J")
TOTAL_OBJECTIVE = _metric(
    "total/objective", "Objective E + λT", "J", "round", shown="J",
    short="objective", heading="objective", bar=1, printed="Objective $E + λT$",
)  # fmt: skip
TOTAL_DELAY_S = _metric(
    "total/delay_s", "Time delay T", "s", "round", shown="s",
    short="delay s", heading="delay T", bar=2, printed="Time delay $T$",
)  # fmt: skip
TOTAL_ENERGY_J = _metric(
    "total/energy_j", "Energy E", "J", "round", shown="J",
    short="energy J", heading="energy E", bar=3, printed="Energy consumption $E$",
)  # fmt: skip
TOTAL_MESSAGE_BITS = _metric(
    "total/message_bits", "Messages", "bit", "round", **_MB,
    short="MB", heading="messages", bar=4, printed="Messages in total",
)  # fmt: skip
ROUND_DELAY_S = _metric(
    "round/delay_s", "Time delay of a round", "s", "round", shown="s", **_STUDY,
    heading="T", bar=2, printed="Time delay $T_i$",
)  # fmt: skip
ROUND_ENERGY_J = _metric(
    "round/energy_j", "Energy of a round", "J", "round", shown="J", **_STUDY,
    heading="E", bar=3, printed="Energy consumption $E_i$",
)  # fmt: skip
ROUND_OBJECTIVE = _metric(
    "round/objective", "Objective of a round", "J", "round", shown="J", **_STUDY,
    heading="objective", bar=1, curve=True, printed="Objective $E_i + λT_i$",
)  # fmt: skip
ROUND_MESSAGE_BITS = _metric("round/message_bits", "Messages a round", "bit", "round", **_MB)
WALL_SCHEDULE_S = _metric("wall/schedule_s", "Scheduling, on this machine", "s", "round", shown="s")
WALL_ASSIGN_S = _metric(
    "wall/assign_s", "Latency", "s", "round", shown="ms", scale=1e3, table="assignment", format="{:.2f}",
    heading="latency", bar=4, printed="Latency, median",
)  # fmt: skip
WALL_ALLOCATE_S = _metric("wall/allocate_s", "Allocation, on this machine", "s", "round", shown="s")
WALL_TRAIN_S = _metric("wall/train_s", "Training, on this machine", "s", "round", shown="s")
WALL_EVALUATE_S = _metric("wall/evaluate_s", "Evaluation, on this machine", "s", "round", shown="s")
CLASS_BALANCE = _metric(
    "schedule/class_balance", "Class balance of the schedule", "1", "round", format="{:.3f}", curve=True
)

CLUSTERING_ARI = _metric(
    "clustering/ari", "Adjusted Rand index", "1", "end", table="clustering", format="{:.3f}",
    short="ARI", heading="ARI", bar=3,
)  # fmt: skip
CLUSTERING_DELAY_S = _metric(
    "clustering/delay_s", "Delay of the clustering", "s", "end", shown="s", table="clustering", format="{:,.2f}",
    short="delay s", heading="delay", bar=1,
)  # fmt: skip
CLUSTERING_ENERGY_J = _metric(
    "clustering/energy_j", "Energy of the clustering", "J", "end", shown="J", table="clustering", format="{:,.2f}",
    short="energy J", heading="energy", bar=2,
)  # fmt: skip

# (objective - lower bound) / objective, in the assignment study.
ASSIGNMENT_GAP = _metric(
    "assignment/gap", "Gap to the lower bound", "1", "fleet", **_PERCENT, table="assignment", heading="gap to bound"
)

# Training the assigner; the step is the number of devices assigned so far.
ASSIGNER_RETURN = _metric(
    "assigner/return", "Return of an episode", "1", "learning", **_LEARNING,
    short="return", heading="return of 50 devices", curve=True,
)  # fmt: skip
ASSIGNER_GREEDY_RETURN = _metric(
    "assigner/greedy_return", "Return of the greedy policy", "1", "learning", **_LEARNING,
    short="greedy", heading="greedy return", curve=True,
)  # fmt: skip
ASSIGNER_AGREEMENT = _metric(
    "assigner/agreement", "Devices that get the teacher's edge", "1", "learning", **_PERCENT, table="learning",
    short="agree", heading="agreement",
)  # fmt: skip
ASSIGNER_OBJECTIVE = _metric(
    "assigner/objective", "Objective of held-out fleets", "J", "learning", shown="J", **_LEARNING
)
ASSIGNER_LOSS = _metric("assigner/loss", "Loss", "1", "learning", table="learning", format="{:.3f}", curve=True)
ASSIGNER_EPISODES = _metric(
    "assigner/episodes", "Episodes", "1", "learning", table="learning", format="{:,.0f}", heading="episodes"
)
ASSIGNER_STEPS_PER_S = _metric(
    "assigner/steps_per_s", "Environment steps a second", "1/s", "learning", shown="1/s", **_LEARNING
)
WALL_LEARN_S = _metric("wall/learn_s", "Learning, on this machine", "s", "learning", shown="s", **_LEARNING)
for _reference, _short in (("hfel-300", "/HFEL-300"), ("local_search", "/search"), ("lower_bound", "/bound")):
    _metric(
        assigner_ratio(_reference), f"Objective over that of {_reference}", "1", "reference",
        table="learning", format="{:.3f}", short=_short,
    )  # fmt: skip


def describe(name: str) -> Metric:
    """The glossary's row of a metric. Raises KeyError: it has none."""
    return METRICS[name]


def rows(table: Table) -> list[Metric]:
    """The rows of the metrics that sum up a kind of task, in the order of the tables."""
    return [row for row in METRICS.values() if row.table == table]


def bars(table: Table) -> list[Metric]:
    """The rows whose bars show what a kind of task cost, in the order of the bars."""
    return sorted((row for row in rows(table) if row.bar), key=lambda row: row.bar)


def curves() -> list[Metric]:
    """The rows that the page of a report draws over the rounds, as far as they were logged."""
    return [row for row in METRICS.values() if row.curve]


def _logged(when: Logged) -> tuple[str, ...]:
    return tuple(name for name, row in METRICS.items() if row.logged == when)


PER_ROUND = _logged("round")
LEARNING = _logged("learning")
AT_THE_END = _logged("end")


@dataclass(frozen=True)
class LiveMetric:
    """A metric that Ray exports to Prometheus while a sweep runs (`dashboards/`).

    Attributes:
        name: as given to Ray; base units in full, as Prometheus asks.
        kind: a counter adds up the work that was done, done again after a loss included; a gauge is the last round's.
        labels: their number is bounded by the sweep: trials × (edges or actors).
        description: one line for the dashboards.
    """

    name: str
    kind: Literal["counter", "gauge"]
    labels: tuple[str, ...]
    description: str

    @property
    def exported(self) -> str:
        """The name that Prometheus sees."""
        return f"ray_{self.name}{'_total' if self.kind == 'counter' else ''}"


_TRIAL = ("sweep", "trial")
LIVE_ROUNDS = LiveMetric("hflray_rounds", "counter", _TRIAL, "rounds finished")
LIVE_ACCURACY = LiveMetric("hflray_accuracy", "gauge", _TRIAL, "test accuracy of the global model, 0 to 1")
LIVE_OBJECTIVE = LiveMetric("hflray_round_objective", "gauge", _TRIAL, "simulated E + lambda T of the round")
LIVE_EDGE_DELAY = LiveMetric("hflray_edge_delay_seconds", "gauge", (*_TRIAL, "edge"), "simulated seconds of the edge")
LIVE_EDGE_ENERGY = LiveMetric("hflray_edge_energy_joules", "gauge", (*_TRIAL, "edge"), "simulated joules of the edge")
LIVE_SAMPLES = LiveMetric("hflray_samples_trained", "counter", (*_TRIAL, "actor"), "samples through local training")
LIVE_RESTARTS = LiveMetric("hflray_actor_restarts", "counter", _TRIAL, "device actors replaced after one was lost")
LIVE = (
    LIVE_ROUNDS, LIVE_ACCURACY, LIVE_OBJECTIVE, LIVE_EDGE_DELAY, LIVE_EDGE_ENERGY, LIVE_SAMPLES, LIVE_RESTARTS,
)  # fmt: skip


def edge_metric(edge: int, what: str) -> str:
    """Return the name of an edge's metric: `what` is ``delay_s``, ``energy_j`` or ``devices``."""
    return f"edge/{edge}/{what}"


def class_balance(class_counts: NDArray[np.integer]) -> float:
    """How evenly the scheduled devices' samples cover the classes: entropy of the class shares over its maximum.

    Args:
        class_counts: samples of each class over all scheduled devices, (C,).

    Returns:
        1 when every class has the same number of samples, 0 when one class has them all (or there is only one).
    """
    total = class_counts.sum()
    if total == 0 or len(class_counts) < 2:
        return 0.0
    share = class_counts[class_counts > 0] / total
    entropy = float(-(share * np.log(share)).sum() / np.log(len(class_counts)))
    return min(1.0, entropy) + 0.0  # rounding may pass 1, and + 0.0 turns -0.0 into 0.0


def adjusted_rand_index(predicted: NDArray[np.integer], truth: NDArray[np.integer]) -> float:
    """Agreement of two clusterings, (N,) labels each: 1 for identical ones, about 0 for chance (paper, equation 28)."""
    from sklearn.metrics import adjusted_rand_score

    return float(adjusted_rand_score(truth, predicted))
