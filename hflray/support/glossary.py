"""The glossary's rows: what each logged number means, and how and where it is shown (`hflray.metrics`)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

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


METRICS: dict[str, Metric] = {}  # in the order in which tables show them


def metric(name: str, label: str, unit: str, logged: Logged, **display: Any) -> str:
    """Add a row to the glossary and return its name. The shown unit is that of the number unless another is given."""
    METRICS[name] = Metric(name, label, unit, logged, **{"shown": "" if unit == "1" else unit} | display)
    return name


PERCENT: dict[str, Any] = {"shown": "%", "scale": 100.0, "format": "{:.1f}"}
STUDY: dict[str, Any] = {"table": "assignment", "format": "{:.1f}"}
_MB: dict[str, Any] = {"shown": "MB", "scale": 1 / 8e6, "format": "{:,.0f}"}

ACCURACY = metric(
    "accuracy", "Test accuracy", "1", "round",
    meaning="share of the test set that the global model classifies correctly",
    **PERCENT, short="accuracy", heading="accuracy", curve=True,
)  # fmt: skip
R2 = metric(
    "r2", "R² on the test set", "1", "kind",
    meaning="1 − Σ (y − ŷ)² / Σ (y − ȳ)² over the test set of a regression, in place of `accuracy`",
    format="{:.3f}", short="R²", heading="R²", curve=True, printed="$R^2$ on the test set",
)  # fmt: skip
TOKEN_ACCURACY = metric(
    "token_accuracy", "Tokens predicted", "1", "kind",
    meaning="share of the test set's next tokens that the global model predicts, in place of `accuracy`",
    **PERCENT, short="tokens", heading="tokens predicted", curve=True,
)  # fmt: skip
TEST_LOSS = metric(
    "test_loss", "Test loss", "nats", "round",
    meaning="mean loss of the global model on the test set: cross-entropy in nats; for a regression, squared errors in "
    "units of the training targets' variance; a loss of your own in its own unit",
    curve=True,
)  # fmt: skip


def on_validation(name: str) -> str:
    """Return the name of a metric of the test set on the validation part (``data.validation``)."""
    return f"validation_{name.removeprefix('test_')}"


VALIDATION_ACCURACY = metric(
    on_validation(ACCURACY), "Validation accuracy", "1", "validation",
    meaning="`accuracy` on the validation part, which decides where there is one",
    **PERCENT, curve=True,
)  # fmt: skip
VALIDATION_R2 = metric(
    on_validation(R2), "R² on the validation part", "1", "validation",
    meaning="`r2` on the validation part, of a regression, in place of `validation_accuracy`",
    format="{:.3f}", curve=True, printed="$R^2$ on the validation part",
)  # fmt: skip
VALIDATION_TOKEN_ACCURACY = metric(
    on_validation(TOKEN_ACCURACY), "Tokens predicted on the validation part", "1", "validation",
    meaning="`token_accuracy` on the validation part, of tokens, in place of `validation_accuracy`",
    **PERCENT, curve=True,
)  # fmt: skip
VALIDATION_LOSS = metric(
    on_validation(TEST_LOSS), "Validation loss", "nats", "validation",
    meaning="`test_loss` on the validation part",
    curve=True,
)  # fmt: skip
ROUNDS_TO_TARGET = metric(
    "rounds_to_target", "Rounds to the target accuracy", "1", "end",
    meaning="the first round that reached `target_accuracy` or `target`, on the validation part where there is one; "
    "absent if none did",
    format="{:.0f}", mean="{:.1f}", short="to target", heading="rounds to target",
)  # fmt: skip
OBJECTIVE_TO_TARGET = metric(
    "objective_to_target", "Objective to the target accuracy", "J", "end",
    meaning="`total/objective` at that round; absent if the target was not reached",
)  # fmt: skip
DELAY_TO_TARGET_S = metric(
    "delay_s_to_target", "Delay to the target accuracy", "s", "end",
    meaning="`total/delay_s` at that round; absent if the target was not reached",
)  # fmt: skip
ENERGY_TO_TARGET_J = metric(
    "energy_j_to_target", "Energy to the target accuracy", "J", "end",
    meaning="`total/energy_j` at that round; absent if the target was not reached",
)  # fmt: skip
TOTAL_OBJECTIVE = metric(
    "total/objective", "Objective E + λT", "J", "round",
    meaning="sum of `round/objective` over the rounds so far; clustering is not part of it",
    short="objective", heading="objective", bar=1, printed="Objective $E + λT$",
)  # fmt: skip
TOTAL_DELAY_S = metric(
    "total/delay_s", "Time delay T", "s", "round",
    meaning="sum of `round/delay_s` over the rounds so far; clustering is not part of it",
    short="delay s", heading="delay T", bar=2, printed="Time delay $T$",
)  # fmt: skip
TOTAL_ENERGY_J = metric(
    "total/energy_j", "Energy E", "J", "round",
    meaning="sum of `round/energy_j` over the rounds so far; clustering is not part of it",
    short="energy J", heading="energy E", bar=3, printed="Energy consumption $E$",
)  # fmt: skip
TOTAL_MESSAGE_BITS = metric(
    "total/message_bits", "Messages", "bit", "round",
    meaning="sum of `round/message_bits` over the rounds so far",
    **_MB, short="MB", heading="messages", bar=4, printed="Messages in total",
)  # fmt: skip
ROUND_DELAY_S = metric(
    "round/delay_s", "Time delay of a round", "s", "round",
    meaning="T_i, the largest T_m of an edge: Q · max over its devices of (compute + upload), plus its cloud hop",
    **STUDY, heading="T", bar=2, printed="Time delay $T_i$",
)  # fmt: skip
ROUND_ENERGY_J = metric(
    "round/energy_j", "Energy of a round", "J", "round",
    meaning="E_i, the sum over edges of Q · Σ over its devices of (compute + upload), plus its cloud hop",
    **STUDY, heading="E", bar=3, printed="Energy consumption $E_i$",
)  # fmt: skip
ROUND_OBJECTIVE = metric(
    "round/objective", "Objective of a round", "J", "round",
    meaning="E_i + λ T_i",
    **STUDY, heading="objective", bar=1, curve=True, printed="Objective $E_i + λT_i$",
)  # fmt: skip
ROUND_MESSAGE_BITS = metric(
    "round/message_bits", "Messages a round", "bit", "round",
    meaning="bits sent upwards: (H·Q + M) · z",
    **_MB,
)  # fmt: skip
ROUND_DISCARDED = metric(
    "round/discarded", "Discarded uploads", "1", "clock",
    meaning="share of the uploads that were begun and not combined, because they came after a limit of `clock.edge` "
    "or because the device or its edge vanished",
    **PERCENT, curve=True,
)  # fmt: skip
ROUND_WASTED_J = metric(
    "round/wasted_j", "Energy of discarded uploads", "J", "clock",
    meaning="energy of computing and sending these uploads",
    curve=True,
)  # fmt: skip
ROUND_POLL_DELAY_S = metric(
    "round/poll_delay_s", "Delay of the poll", "s", "poll",
    meaning="part of `round/delay_s`: the slowest polled device's forward pass, before the round",
)  # fmt: skip
ROUND_POLL_ENERGY_J = metric(
    "round/poll_energy_j", "Energy of the poll", "J", "poll",
    meaning="part of `round/energy_j`: the forward passes of the polled devices",
)  # fmt: skip
ROUND_DOWNLOAD_S = metric(
    "round/download_s", "Downloads", "s", "download",
    meaning="part of `round/delay_s`: the downloads, over all edge iterations, of the device that receives for longest",
)  # fmt: skip
ROUND_DOWNLOAD_J = metric(
    "round/download_j", "Energy of downloads", "J", "download",
    meaning="part of `round/energy_j`: what edges need to send the model to their devices, in all edge iterations",
)  # fmt: skip
ROUND_DOWNLOAD_BITS = metric(
    "round/download_bits", "Bits sent to devices", "bit", "download",
    meaning="bits that edges send to devices; a broadcast counts once; `round/message_bits` does not have them",
)  # fmt: skip
ROUND_DROPPED = metric(
    "round/dropped", "Devices left out by limits", "devices", "limits",
    meaning="scheduled devices that could not meet `allocation.limits`",
)  # fmt: skip
ROUND_EDGE_IDLE_S = metric(
    "round/edge_idle_s", "Idle time of edges", "s", "clock",
    meaning="T_i − T_m, summed over the edges whose model reached the cloud; with an asynchronous cloud T_m is how "
    "long the edge is under way in the round",
)  # fmt: skip
CLOCK_S = metric(
    "clock_s", "Simulated time", "s", "cloud",
    meaning="simulated seconds from the start of the first round to the end of this one, where the cloud is not "
    "synchronous",
    format="{:,.0f}",
)  # fmt: skip
ROUND_UPDATES = metric(
    "round/updates", "Updates a round", "1", "asynchronous",
    meaning="models of edges that an asynchronous cloud received",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_STALENESS = metric(
    "round/staleness", "Staleness", "1", "asynchronous",
    meaning="mean over these updates of the versions that the cloud had made since the edge fetched its model",
    format="{:,.2f}", curve=True,
)  # fmt: skip
ROUND_ARRIVALS = metric(
    "round/arrivals", "Arrivals a round", "1", "arrivals",
    meaning="models of devices that asynchronous edges mixed in, in the turns whose updates the cloud received",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_DEVICE_STALENESS = metric(
    "round/device_staleness", "Staleness at edges", "1", "arrivals",
    meaning="mean over these arrivals of the versions that the edge had made since the device fetched its model",
    format="{:,.2f}", curve=True,
)  # fmt: skip
ROUND_TOO_FEW = metric(
    "round/too_few", "Edge iterations with too few models", "1", "few",
    meaning="edge iterations in which an edge kept its model, because its aggregator needs more models than arrived",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
PRIVACY_EPSILON = metric(
    "privacy/epsilon", "Privacy ε", "1", "private",
    meaning="the largest ε over devices for `privacy.delta`, of all of their uploads that have arrived so far; "
    "clustering and loss queries are not part of it",
    format="{:,.3g}", curve=True,
)  # fmt: skip
UPDATE_NORM = metric(
    "update/norm", "Move of the global model", "1", "inside",
    meaning="L2 norm of the change of the global model's weights in the round",
    format="{:,.3g}", curve=True,
)  # fmt: skip
UPDATE_DRIFT = metric(
    "update/drift", "Drift of devices", "1", "inside",
    meaning="root of the mean square of the L2 distance between a device's trained weights and those of its edge from "
    "which it started, over devices and edge iterations",
    format="{:,.3g}", curve=True,
)  # fmt: skip
COMPRESSION_ERROR = metric(
    "compression/error", "Error of compression", "1", "inside",
    meaning="√(Σ ‖u − û‖² / Σ ‖u‖²) over the compressed uploads of devices: u is what a compressor was given, with "
    "what was left of the last update, and û what arrived",
    **PERCENT, curve=True,
)  # fmt: skip
FAIRNESS = metric(
    "total/fairness", "Fairness of participation", "1", "clock",
    meaning="Jain's index (Σ x)² / (N Σ x²) of the numbers x of rounds in which each device has counted so far: 1 if "
    "all are equal, 1/N if one device has them all, 0 if no device has counted",
    format="{:.3f}",
)  # fmt: skip
ROUND_AWAY = metric(
    "round/away", "Devices away", "1", "world",
    meaning="number of devices that did not answer when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_AVAILABLE = metric(
    "round/available", "Devices available", "1", "world",
    meaning="number of devices that a scheduler could choose when the round was planned: they answered, had their "
    "reserve of charge, and under `assignment.once` their edge worked",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_VANISHED = metric(
    "round/vanished", "Devices vanished", "1", "world",
    meaning="number of scheduled devices that vanished during the round, or whose battery ran out",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_EDGES_DOWN = metric(
    "round/edges_down", "Edges down", "1", "world",
    meaning="number of edges that did not work when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_EDGES_FAILED = metric(
    "round/edges_failed", "Edges failed", "1", "world",
    meaning="number of edges that failed before their model reached the cloud",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
ROUND_LOW_BATTERY = metric(
    "round/low_battery", "Devices low on charge", "1", "battery",
    meaning="number of devices below their reserve when the round was planned",
    format="{:,.0f}", mean="{:,.1f}",
)  # fmt: skip
CHARGE_LEAST_J, CHARGE_LOW_J, CHARGE_MEDIAN_J, CHARGE_HIGH_J = (
    metric(
        f"battery/{name}_j", f"Charge of devices, {words}", "J", "battery",
        meaning=f"{words} of the devices' charges when the round was planned",
        curve=name == "median",
    )
    for name, words in (
        ("min", "least"), ("p10", "10th percentile"), ("median", "median"), ("p90", "90th percentile"),
    )
)  # fmt: skip
WALL_SCHEDULE_S = metric(
    "wall/schedule_s", "Scheduling, on this machine", "s", "round",
    meaning="measured time of scheduling",
)  # fmt: skip
WALL_ASSIGN_S = metric(
    "wall/assign_s", "Latency", "s", "round",
    meaning="measured time of the assignment, which the paper calls latency",
    shown="ms", scale=1e3, table="assignment", format="{:.2f}", heading="latency", bar=4, printed="Latency, median",
)  # fmt: skip
WALL_ALLOCATE_S = metric(
    "wall/allocate_s", "Allocation, on this machine", "s", "round",
    meaning="measured time of the allocation and the bill",
)  # fmt: skip
WALL_TRAIN_S = metric(
    "wall/train_s", "Training, on this machine", "s", "round",
    meaning="measured time of the round's training",
)  # fmt: skip
WALL_EVALUATE_S = metric(
    "wall/evaluate_s", "Evaluation, on this machine", "s", "round",
    meaning="measured time of the evaluation",
)  # fmt: skip
CLASS_BALANCE = metric(
    "schedule/class_balance", "Class balance of the schedule", "1", "round",
    meaning="entropy of the scheduled devices' class shares over its maximum; 1 is balanced",
    format="{:.3f}", curve=True,
)  # fmt: skip

CLUSTERING_ARI = metric(
    "clustering/ari", "Adjusted Rand index", "1", "end",
    meaning="agreement of Algorithm 2's clusters with the true majority classes, equation (28); 1 is the same",
    table="clustering", format="{:.3f}", short="ARI", heading="ARI", bar=3,
)  # fmt: skip
CLUSTERING_DELAY_S = metric(
    "clustering/delay_s", "Delay of the clustering", "s", "end",
    meaning="bill of Algorithm 2: all N devices, geographic assignment, no cloud hop, one edge iteration at the "
    "allocated frequencies; `scheduling.clustering_bill` has other readings",
    table="clustering", format="{:,.2f}", short="delay s", heading="delay", bar=1,
)  # fmt: skip
CLUSTERING_ENERGY_J = metric(
    "clustering/energy_j", "Energy of the clustering", "J", "end",
    meaning="energy on the same bill",
    table="clustering", format="{:,.2f}", short="energy J", heading="energy", bar=2,
)  # fmt: skip

# Every edge m logs these metrics, see `edge_metric`. They are rows of the glossary only, because M is a setting.
PER_EDGE = (
    Metric("edge/<m>/delay_s", "Delay of edge m", "s", "round", "T_m of edge m, from 0 to M − 1, with its cloud hop"),
    Metric("edge/<m>/energy_j", "Energy of edge m", "J", "round", "E_m of edge m, with its cloud hop"),
    Metric("edge/<m>/devices", "Devices of edge m", "1", "round", "number of scheduled devices at edge m"),
    Metric(
        "edge/<m>/accuracy", "Accuracy of edge m", "1", "round",
        "the main metric of edge m's own model on the test set, with `tree.gossip` only; r2 or token_accuracy for "
        "other data",
    ),
    Metric(
        "region/<r>/delay_s", "Delay of region r", "s", "round",
        "when the model of region r has reached the cloud, with `tree.region` only",
    ),
    Metric(
        "region/<r>/energy_j", "Energy of region r", "J", "round",
        "what the edges of region r and its own hop take, with `tree.region` only",
    ),
)  # fmt: skip


def edge_metric(edge: int, quantity: str) -> str:
    """Return the name of an edge's metric; `quantity` is ``delay_s``, ``energy_j``, ``devices`` or a main metric."""
    return f"edge/{edge}/{quantity}"


def region_metric(region: int, quantity: str) -> str:
    """Return the name of a region's metric; `quantity` is ``delay_s`` or ``energy_j``."""
    return f"region/{region}/{quantity}"


# Assignment studies, and the training of an assigner or a scheduler.
_LEARNING: dict[str, Any] = {"table": "learning", "format": "{:.1f}"}


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective divided by that of `reference`, such as ``teacher`` or ``lower_bound``."""
    return f"assigner/ratio/{reference}"


RIVALS = ("energy_aware", "ikc", "fedavg", "best_channel")


def agent_metric(quantity: str, player: str = "") -> str:
    """Return the name of a quantity on held-out fleets: of a scheduler of `RIVALS`, or else of the agent."""
    return f"agent/{player or 'held_out'}/{quantity}"


# The assignment study logs the gap (objective - lower bound) / objective.
ASSIGNMENT_GAP = metric(
    "assignment/gap", "Gap to the lower bound", "1", "fleet",
    meaning="(objective − lower bound) / objective: how far from the optimum the assignment is at most",
    **PERCENT, table="assignment", heading="gap to bound",
)  # fmt: skip

# The training of the assigner logs these metrics; their step is the number of devices assigned so far.
ASSIGNER_RETURN = metric(
    "assigner/return", "Return of an episode", "1", "learning",
    meaning="mean sum of rewards of the last 50 training episodes, exploration included (the paper's Figure 5)",
    **_LEARNING, short="return", heading="return of 50 devices", curve=True,
)  # fmt: skip
ASSIGNER_GREEDY_RETURN = metric(
    "assigner/greedy_return", "Return of the greedy policy", "1", "learning",
    meaning="the same sum of ±1 rewards without exploration, mean over the held-out fleets",
    **_LEARNING, short="greedy", heading="greedy return", curve=True,
)  # fmt: skip
ASSIGNER_AGREEMENT = metric(
    "assigner/agreement", "Devices that get the teacher's edge", "1", "learning",
    meaning="share of the held-out fleets' devices that get the teacher's edge",
    **PERCENT, table="learning", short="agree", heading="agreement",
)  # fmt: skip
ASSIGNER_OBJECTIVE = metric(
    "assigner/objective", "Objective of held-out fleets", "J", "learning",
    meaning="mean E + λT of the policy's assignments of the held-out fleets",
    **_LEARNING,
)  # fmt: skip
ASSIGNER_LOSS = metric(
    "assigner/loss", "Loss", "1", "learning",
    meaning="loss of the last update",
    table="learning", format="{:.3f}", curve=True,
)  # fmt: skip
ASSIGNER_EPISODES = metric(
    "assigner/episodes", "Episodes", "1", "learning",
    meaning="fleets seen in training so far",
    table="learning", format="{:,.0f}", heading="episodes",
)  # fmt: skip
ASSIGNER_STEPS_PER_S = metric(
    "assigner/steps_per_s", "Environment steps a second", "1/s", "learning",
    meaning="environment steps per second of training since the point before",
    **_LEARNING,
)  # fmt: skip
WALL_LEARN_S = metric(
    "wall/learn_s", "Learning, on this machine", "s", "learning",
    meaning="training time so far, without solving fleets and evaluating",
    **_LEARNING,
)  # fmt: skip
for _reference, _short in (("hfel-300", "/HFEL-300"), ("local_search", "/search"), ("lower_bound", "/bound")):
    metric(
        assigner_ratio(_reference), f"Objective over that of {_reference}", "1", "reference",
        meaning=f"`assigner/objective` divided by the mean objective of {_reference} on the same fleets",
        table="learning", format="{:.3f}", short=_short,
    )  # fmt: skip

# The training of a learned scheduler logs these metrics; their step is the number of rounds played so far.
AGENT_RETURN = metric("agent/return", "Return of an episode", "1", "agent", **_LEARNING, short="return", curve=True,
    heading="return", meaning="mean return of the last 100 training episodes, exploration included")  # fmt: skip
AGENT_LOSS = metric("agent/loss", "Loss", "1", "agent", meaning="PPO's loss of the last update", table="learning")
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
        metric(
            agent_metric(_quantity, _player), f"{_label} of {_player or 'the agent'}", _unit, "agent", shown="",
            meaning=f"{_words} of {_player or 'the greedy policy'}, on the held-out fleets",
            format="{:.3g}", table="learning",
            heading="" if _player else _label, short=f"J/{_player}" if _quantity == "ratio" else "",
        )  # fmt: skip
