"""The glossary of logged metrics, and the formulas of metrics that no other module computes.

The constants are the metrics' names. Code that logs or reads a metric uses its constant. `describe` returns the
metric's row: its label, unit, meaning, scale and format, and the tables and charts that show it. To add a metric, add a
row here and log its value under the constant (in `hflray.experiment.record` for a round's metric). The glossary in the
documentation is made from these rows.

Most metrics are logged once per round, with the round as the step. Simulated seconds and joules (``round/…``,
``total/…``, ``edge/…``) are computed by the paper's cost model; ``wall/…`` is measured on this machine. The two never
mix.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Logged = Literal[
    "round", "clock", "world", "battery", "poll", "few", "private", "inside", "kind", "end", "fleet", "learning",
    "reference", "agent",
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
            that polls (``poll``), if edges need several models (``few``), with the section privacy (``private``), if a
            part inside the round is not the default (``inside``), or of other data than classes (``kind``); at the
            ``end`` of a run; with each ``fleet`` of an assignment study; with each point of an assigner's
            ``learning``, once or for each ``reference``; with each point of an ``agent`` that learns to schedule.
        shown: unit in which the number is shown; empty if no unit is written.
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

    def text(self, value: float) -> str:
        """Return a logged number as it is shown, such as ``91.2%``; only headings show other units than %."""
        return self.format.format(value * self.scale) + ("%" if self.shown == "%" else "")


METRICS: dict[str, Metric] = {}  # in the order in which tables show them


def _metric(name: str, label: str, unit: str, logged: Logged, **display: Any) -> str:
    """Add a row to the glossary and return its name."""
    METRICS[name] = Metric(name, label, unit, logged, **display)
    return name


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective divided by that of `reference`, such as ``teacher`` or ``lower_bound``."""
    return f"assigner/ratio/{reference}"


RIVALS = ("energy_aware", "ikc", "fedavg", "best_channel")


def agent_metric(quantity: str, player: str = "") -> str:
    """Return the name of a quantity on held-out fleets: of a scheduler of `RIVALS`, or else of the agent."""
    return f"agent/{player or 'held_out'}/{quantity}"


_PERCENT: dict[str, Any] = {"shown": "%", "scale": 100.0, "format": "{:.1f}"}
_MB: dict[str, Any] = {"shown": "MB", "scale": 1 / 8e6, "format": "{:,.0f}"}
_STUDY: dict[str, Any] = {"table": "assignment", "format": "{:.1f}"}
_LEARNING: dict[str, Any] = {"table": "learning", "format": "{:.1f}"}

ACCURACY = _metric(
    "accuracy", "Test accuracy", "1", "round",
    meaning="share of the test set that the global model classifies correctly",
    **_PERCENT, short="accuracy", heading="accuracy", curve=True,
)  # fmt: skip
R2 = _metric(
    "r2", "R² on the test set", "1", "kind",
    meaning="1 − Σ (y − ŷ)² / Σ (y − ȳ)² over the test set of a regression, in place of `accuracy`",
    format="{:.3f}", short="R²", heading="R²", curve=True, printed="$R^2$ on the test set",
)  # fmt: skip
TOKEN_ACCURACY = _metric(
    "token_accuracy", "Tokens predicted", "1", "kind",
    meaning="share of the test set's next tokens that the global model predicts, in place of `accuracy`",
    **_PERCENT, short="tokens", heading="tokens predicted", curve=True,
)  # fmt: skip
TEST_LOSS = _metric(
    "test_loss", "Test loss", "nats", "round",
    meaning="mean loss of the global model on the test set: cross-entropy in nats; for a regression, squared errors in "
    "units of the training targets' variance; a loss of your own in its own unit",
    shown="nats", curve=True,
)  # fmt: skip
ROUNDS_TO_TARGET = _metric(
    "rounds_to_target", "Rounds to the target accuracy", "1", "end",
    meaning="the first round that reached `target_accuracy` or `target`; absent if none did",
    format="{:.0f}", mean="{:.1f}", short="to target", heading="rounds to target",
)  # fmt: skip
OBJECTIVE_TO_TARGET = _metric(
    "objective_to_target", "Objective to the target accuracy", "J", "end",
    meaning="`total/objective` at that round; absent if the target was not reached",
    shown="J",
)  # fmt: skip
DELAY_TO_TARGET_S = _metric(
    "delay_s_to_target", "Delay to the target accuracy", "s", "end",
    meaning="`total/delay_s` at that round; absent if the target was not reached",
    shown="s",
)  # fmt: skip
ENERGY_TO_TARGET_J = _metric(
    "energy_j_to_target", "Energy to the target accuracy", "J", "end",
    meaning="`total/energy_j` at that round; absent if the target was not reached",
    shown="J",
)  # fmt: skip
TOTAL_OBJECTIVE = _metric(
    "total/objective", "Objective E + λT", "J", "round",
    meaning="sum of `round/objective` over the rounds so far; clustering is not part of it",
    shown="J", short="objective", heading="objective", bar=1, printed="Objective $E + λT$",
)  # fmt: skip
TOTAL_DELAY_S = _metric(
    "total/delay_s", "Time delay T", "s", "round",
    meaning="sum of `round/delay_s` over the rounds so far; clustering is not part of it",
    shown="s", short="delay s", heading="delay T", bar=2, printed="Time delay $T$",
)  # fmt: skip
TOTAL_ENERGY_J = _metric(
    "total/energy_j", "Energy E", "J", "round",
    meaning="sum of `round/energy_j` over the rounds so far; clustering is not part of it",
    shown="J", short="energy J", heading="energy E", bar=3, printed="Energy consumption $E$",
)  # fmt: skip
TOTAL_MESSAGE_BITS = _metric(
    "total/message_bits", "Messages", "bit", "round",
    meaning="sum of `round/message_bits` over the rounds so far",
    **_MB, short="MB", heading="messages", bar=4, printed="Messages in total",
)  # fmt: skip
ROUND_DELAY_S = _metric(
    "round/delay_s", "Time delay of a round", "s", "round",
    meaning="T_i, the largest T_m of an edge: Q · max over its devices of (compute + upload), plus its cloud hop",
    shown="s", **_STUDY, heading="T", bar=2, printed="Time delay $T_i$",
)  # fmt: skip
ROUND_ENERGY_J = _metric(
    "round/energy_j", "Energy of a round", "J", "round",
    meaning="E_i, the sum over edges of Q · Σ over its devices of (compute + upload), plus its cloud hop",
    shown="J", **_STUDY, heading="E", bar=3, printed="Energy consumption $E_i$",
)  # fmt: skip
ROUND_OBJECTIVE = _metric(
    "round/objective", "Objective of a round", "J", "round",
    meaning="E_i + λ T_i",
    shown="J", **_STUDY, heading="objective", bar=1, curve=True, printed="Objective $E_i + λT_i$",
)  # fmt: skip
ROUND_MESSAGE_BITS = _metric(
    "round/message_bits", "Messages a round", "bit", "round",
    meaning="bits sent upwards: (H·Q + M) · z",
    **_MB,
)  # fmt: skip
ROUND_DISCARDED = _metric(
    "round/discarded", "Discarded uploads", "1", "clock",
    meaning="share of the uploads that were begun and not combined, because they came after a limit of `clock.edge` "
    "or because the device or its edge vanished",
    **_PERCENT, curve=True,
)  # fmt: skip
ROUND_WASTED_J = _metric(
    "round/wasted_j", "Energy of discarded uploads", "J", "clock",
    meaning="energy of computing and sending these uploads",
    shown="J", curve=True,
)  # fmt: skip
ROUND_POLL_DELAY_S = _metric(
    "round/poll_delay_s", "Delay of the poll", "s", "poll",
    meaning="part of `round/delay_s`: the slowest polled device's forward pass, before the round",
    shown="s",
)  # fmt: skip
ROUND_POLL_ENERGY_J = _metric(
    "round/poll_energy_j", "Energy of the poll", "J", "poll",
    meaning="part of `round/energy_j`: the forward passes of the polled devices",
    shown="J",
)  # fmt: skip
ROUND_EDGE_IDLE_S = _metric(
    "round/edge_idle_s", "Idle time of edges", "s", "clock",
    meaning="T_i − T_m, summed over the edges whose model reached the cloud",
    shown="s",
)  # fmt: skip
ROUND_TOO_FEW = _metric(
    "round/too_few", "Edge iterations with too few models", "1", "few",
    meaning="edge iterations in which an edge kept its model, because its aggregator needs more models than arrived",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
PRIVACY_EPSILON = _metric(
    "privacy/epsilon", "Privacy ε", "1", "private",
    meaning="the largest ε over devices for `privacy.delta`, of all of their uploads that have arrived so far; "
    "clustering and loss queries are not part of it",
    format="{:,.3g}", curve=True,
)  # fmt: skip
UPDATE_NORM = _metric(
    "update/norm", "Move of the global model", "1", "inside",
    meaning="L2 norm of the change of the global model's weights in the round",
    format="{:,.3g}", curve=True,
)  # fmt: skip
UPDATE_DRIFT = _metric(
    "update/drift", "Drift of devices", "1", "inside",
    meaning="root of the mean square of the L2 distance between a device's trained weights and those of its edge from "
    "which it started, over devices and edge iterations",
    format="{:,.3g}", curve=True,
)  # fmt: skip
COMPRESSION_ERROR = _metric(
    "compression/error", "Error of compression", "1", "inside",
    meaning="√(Σ ‖u − û‖² / Σ ‖u‖²) over the compressed uploads of devices: u is what a compressor was given, with "
    "what was left of the last update, and û what arrived",
    **_PERCENT, curve=True,
)  # fmt: skip
FAIRNESS = _metric(
    "total/fairness", "Fairness of participation", "1", "clock",
    meaning="Jain's index (Σ x)² / (N Σ x²) of the numbers x of rounds in which each device has counted so far: 1 if "
    "all are equal, 1/N if one device has them all, 0 if no device has counted",
    format="{:.3f}",
)  # fmt: skip
ROUND_AWAY = _metric(
    "round/away", "Devices away", "1", "world",
    meaning="number of devices that did not answer when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_AVAILABLE = _metric(
    "round/available", "Devices available", "1", "world",
    meaning="number of devices that a scheduler could choose when the round was planned: they answered, had their "
    "reserve of charge, and under `assignment.once` their edge worked",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_VANISHED = _metric(
    "round/vanished", "Devices vanished", "1", "world",
    meaning="number of scheduled devices that vanished during the round, or whose battery ran out",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_EDGES_DOWN = _metric(
    "round/edges_down", "Edges down", "1", "world",
    meaning="number of edges that did not work when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_EDGES_FAILED = _metric(
    "round/edges_failed", "Edges failed", "1", "world",
    meaning="number of edges that failed before their model reached the cloud",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_LOW_BATTERY = _metric(
    "round/low_battery", "Devices low on charge", "1", "battery",
    meaning="number of devices below their reserve when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
CHARGE_LEAST_J, CHARGE_LOW_J, CHARGE_MEDIAN_J, CHARGE_HIGH_J = (
    _metric(
        f"battery/{name}_j", f"Charge of devices, {words}", "J", "battery",
        meaning=f"{words} of the devices' charges when the round was planned",
        shown="J", curve=name == "median",
    )
    for name, words in (
        ("min", "least"), ("p10", "10th percentile"), ("median", "median"), ("p90", "90th percentile"),
    )
)  # fmt: skip
WALL_SCHEDULE_S = _metric(
    "wall/schedule_s", "Scheduling, on this machine", "s", "round",
    meaning="measured time of scheduling",
    shown="s",
)  # fmt: skip
WALL_ASSIGN_S = _metric(
    "wall/assign_s", "Latency", "s", "round",
    meaning="measured time of the assignment, which the paper calls latency",
    shown="ms", scale=1e3, table="assignment", format="{:.2f}", heading="latency", bar=4, printed="Latency, median",
)  # fmt: skip
WALL_ALLOCATE_S = _metric(
    "wall/allocate_s", "Allocation, on this machine", "s", "round",
    meaning="measured time of the allocation and the bill",
    shown="s",
)  # fmt: skip
WALL_TRAIN_S = _metric(
    "wall/train_s", "Training, on this machine", "s", "round",
    meaning="measured time of the round's training",
    shown="s",
)  # fmt: skip
WALL_EVALUATE_S = _metric(
    "wall/evaluate_s", "Evaluation, on this machine", "s", "round",
    meaning="measured time of the evaluation. The next round is planned while actors evaluate; that time counts "
    "for the next round and not here",
    shown="s",
)  # fmt: skip
CLASS_BALANCE = _metric(
    "schedule/class_balance", "Class balance of the schedule", "1", "round",
    meaning="entropy of the scheduled devices' class shares over its maximum; 1 is balanced",
    format="{:.3f}", curve=True,
)  # fmt: skip

CLUSTERING_ARI = _metric(
    "clustering/ari", "Adjusted Rand index", "1", "end",
    meaning="agreement of Algorithm 2's clusters with the true majority classes, equation (28); 1 is the same",
    table="clustering", format="{:.3f}", short="ARI", heading="ARI", bar=3,
)  # fmt: skip
CLUSTERING_DELAY_S = _metric(
    "clustering/delay_s", "Delay of the clustering", "s", "end",
    meaning="bill of Algorithm 2: all N devices, geographic assignment, no cloud hop, one edge iteration at the "
    "allocated frequencies; `scheduling.clustering_bill` has other readings",
    shown="s", table="clustering", format="{:,.2f}", short="delay s", heading="delay", bar=1,
)  # fmt: skip
CLUSTERING_ENERGY_J = _metric(
    "clustering/energy_j", "Energy of the clustering", "J", "end",
    meaning="energy on the same bill",
    shown="J", table="clustering", format="{:,.2f}", short="energy J", heading="energy", bar=2,
)  # fmt: skip

# The assignment study logs the gap (objective - lower bound) / objective.
ASSIGNMENT_GAP = _metric(
    "assignment/gap", "Gap to the lower bound", "1", "fleet",
    meaning="(objective − lower bound) / objective: how far from the optimum the assignment is at most",
    **_PERCENT, table="assignment", heading="gap to bound",
)  # fmt: skip

# The training of the assigner logs these metrics; their step is the number of devices assigned so far.
ASSIGNER_RETURN = _metric(
    "assigner/return", "Return of an episode", "1", "learning",
    meaning="mean sum of rewards of the last 50 training episodes, exploration included (the paper's Figure 5)",
    **_LEARNING, short="return", heading="return of 50 devices", curve=True,
)  # fmt: skip
ASSIGNER_GREEDY_RETURN = _metric(
    "assigner/greedy_return", "Return of the greedy policy", "1", "learning",
    meaning="the same sum of ±1 rewards without exploration, mean over the held-out fleets",
    **_LEARNING, short="greedy", heading="greedy return", curve=True,
)  # fmt: skip
ASSIGNER_AGREEMENT = _metric(
    "assigner/agreement", "Devices that get the teacher's edge", "1", "learning",
    meaning="share of the held-out fleets' devices that get the teacher's edge",
    **_PERCENT, table="learning", short="agree", heading="agreement",
)  # fmt: skip
ASSIGNER_OBJECTIVE = _metric(
    "assigner/objective", "Objective of held-out fleets", "J", "learning",
    meaning="mean E + λT of the policy's assignments of the held-out fleets",
    shown="J", **_LEARNING,
)  # fmt: skip
ASSIGNER_LOSS = _metric(
    "assigner/loss", "Loss", "1", "learning",
    meaning="loss of the last update",
    table="learning", format="{:.3f}", curve=True,
)  # fmt: skip
ASSIGNER_EPISODES = _metric(
    "assigner/episodes", "Episodes", "1", "learning",
    meaning="fleets seen in training so far",
    table="learning", format="{:,.0f}", heading="episodes",
)  # fmt: skip
ASSIGNER_STEPS_PER_S = _metric(
    "assigner/steps_per_s", "Environment steps a second", "1/s", "learning",
    meaning="environment steps per second of training since the point before",
    shown="1/s", **_LEARNING,
)  # fmt: skip
WALL_LEARN_S = _metric(
    "wall/learn_s", "Learning, on this machine", "s", "learning",
    meaning="training time so far, without solving fleets and evaluating",
    shown="s", **_LEARNING,
)  # fmt: skip
for _reference, _short in (("hfel-300", "/HFEL-300"), ("local_search", "/search"), ("lower_bound", "/bound")):
    _metric(
        assigner_ratio(_reference), f"Objective over that of {_reference}", "1", "reference",
        meaning=f"`assigner/objective` divided by the mean objective of {_reference} on the same fleets",
        table="learning", format="{:.3f}", short=_short,
    )  # fmt: skip

# The training of a learned scheduler logs these metrics; their step is the number of rounds played so far.
AGENT_RETURN = _metric("agent/return", "Return of an episode", "1", "agent", **_LEARNING, short="return", curve=True,
    heading="return", meaning="mean return of the last 100 training episodes, exploration included")  # fmt: skip
AGENT_LOSS = _metric("agent/loss", "Loss", "1", "agent", meaning="PPO's loss of the last update", table="learning")
_PLAYED = {  # label, unit and meaning; the last two compare the agent with another scheduler
    "return": ("return", "1", "mean sum of rewards of an episode"),
    "reached": ("share that reaches the target", "1", "share of the episodes that reach the target"),
    "joules": ("joules to the target", "J", "mean energy of the episodes that reach the target"),
    "seconds": ("seconds to the target", "s", "mean simulated delay of the episodes that reach the target"),
    "rounds": ("rounds to the target", "1", "mean rounds of the episodes that reach the target"),
    "ratio": ("joules over those", "1", "median over fleets of the agent's joules to the target over those"),
    "p": ("p-value", "1", "p-value of Wilcoxon's test, not adjusted, of the agent's joules against those")}  # fmt: skip
for _player in ("", *RIVALS):
    for _quantity, (_label, _unit, _words) in list(_PLAYED.items())[: 7 if _player else 5]:
        _metric(
            agent_metric(_quantity, _player), f"{_label} of {_player or 'the agent'}", _unit, "agent", format="{:.3g}",
            meaning=f"{_words} of {_player or 'the greedy policy'}, on the held-out fleets", table="learning",
            heading="" if _player else _label, short=f"J/{_player}" if _quantity == "ratio" else "",
        )  # fmt: skip

# Every edge m logs these metrics, see `edge_metric`. They are rows of the glossary only, because M is a setting.
PER_EDGE = (
    Metric("edge/<m>/delay_s", "Delay of edge m", "s", "round", "T_m of edge m, from 0 to M − 1, with its cloud hop"),
    Metric("edge/<m>/energy_j", "Energy of edge m", "J", "round", "E_m of edge m, with its cloud hop"),
    Metric("edge/<m>/devices", "Devices of edge m", "1", "round", "number of scheduled devices at edge m"),
)

SENT = ("device_bits", "edge_bits")  # what is sent on each hop, where this is not a whole model
# The other columns of a run's table of rounds (`hflray.tracking.Tables`).
COLUMNS = frozenset({"round", "devices", "edges", "bandwidth_hz", "cpu_hz", "model_bits", "polled"} | {*SENT})


def may_be_own(name: str) -> bool:
    """Return whether a metric of the user's own (`target.metric`) may have this name, which no other value has."""
    return name.isidentifier() and name not in METRICS and name not in COLUMNS


def describe(name: str) -> Metric:
    """Return the row of a metric of the glossary, or of one of the user's own. Raises KeyError if it can be neither."""
    if may_be_own(name):
        return Metric(name, name, "1", "round", format="{:,.4g}", short=name, heading=name, curve=True)
    return METRICS[name]


def own_of(names: Collection[str]) -> list[Metric]:
    """Return the rows of the user's own metrics among the `names` of logged metrics."""
    return [describe(name) for name in names if may_be_own(name)]


def rows(table: Table, logged: Collection[str] = ()) -> list[Metric]:
    """Return the rows of a kind of task, in the order of its tables; the user's own `logged` metrics come first."""
    own = own_of(logged) if table == "training" else []
    return [*own, *(row for row in METRICS.values() if row.table == table)]


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
WITH_A_WORLD = _names("world")
WITH_A_POLL = _names("poll")
WITH_A_LEAST = _names("few")
WITH_PRIVACY = _names("private")
WITH_PARTS = _names("inside")
WITH_BATTERIES = _names("battery")
MAIN = (ACCURACY, *_names("kind"))  # a run logs one of these
LEARNING = _names("learning")
OF_AGENTS = _names("agent")
AT_THE_END = _names("end")
CHARGE_QUANTILES = {CHARGE_LEAST_J: "0", CHARGE_LOW_J: "0.1", CHARGE_MEDIAN_J: "0.5", CHARGE_HIGH_J: "0.9"}


def edge_metric(edge: int, quantity: str) -> str:
    """Return the name of an edge's metric; `quantity` is ``delay_s``, ``energy_j`` or ``devices``."""
    return f"edge/{edge}/{quantity}"


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
