"""The glossary: every logged metric's name, and the small formulas that are nobody else's.

Per round, with the round as the step. Simulated seconds and joules (``round/…``, ``total/…``, ``edge/…``) are
arithmetic on the paper's cost model; ``wall/…`` is measured on this machine. The two never mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

ACCURACY = "accuracy"
TEST_LOSS = "test_loss"
ROUND_DELAY_S = "round/delay_s"
ROUND_ENERGY_J = "round/energy_j"
ROUND_OBJECTIVE = "round/objective"
ROUND_MESSAGE_BITS = "round/message_bits"
TOTAL_DELAY_S = "total/delay_s"
TOTAL_ENERGY_J = "total/energy_j"
TOTAL_OBJECTIVE = "total/objective"
TOTAL_MESSAGE_BITS = "total/message_bits"
WALL_SCHEDULE_S = "wall/schedule_s"
WALL_ASSIGN_S = "wall/assign_s"
WALL_ALLOCATE_S = "wall/allocate_s"
WALL_TRAIN_S = "wall/train_s"
WALL_EVALUATE_S = "wall/evaluate_s"
CLASS_BALANCE = "schedule/class_balance"

ROUNDS_TO_TARGET = "rounds_to_target"
OBJECTIVE_TO_TARGET = "objective_to_target"
CLUSTERING_ARI = "clustering/ari"
CLUSTERING_DELAY_S = "clustering/delay_s"
CLUSTERING_ENERGY_J = "clustering/energy_j"

ASSIGNMENT_GAP = "assignment/gap"  # (objective - lower bound) / objective, in the assignment study

# Training the assigner; the step is the number of devices assigned so far.
ASSIGNER_RETURN = "assigner/return"
ASSIGNER_GREEDY_RETURN = "assigner/greedy_return"
ASSIGNER_AGREEMENT = "assigner/agreement"
ASSIGNER_OBJECTIVE = "assigner/objective"
ASSIGNER_LOSS = "assigner/loss"
ASSIGNER_EPISODES = "assigner/episodes"
ASSIGNER_STEPS_PER_S = "assigner/steps_per_s"
WALL_LEARN_S = "wall/learn_s"

PER_ROUND = (
    ACCURACY, TEST_LOSS, ROUND_DELAY_S, ROUND_ENERGY_J, ROUND_OBJECTIVE, ROUND_MESSAGE_BITS, TOTAL_DELAY_S,
    TOTAL_ENERGY_J, TOTAL_OBJECTIVE, TOTAL_MESSAGE_BITS, WALL_SCHEDULE_S, WALL_ASSIGN_S, WALL_ALLOCATE_S,
    WALL_TRAIN_S, WALL_EVALUATE_S, CLASS_BALANCE,
)  # fmt: skip
LEARNING = (
    ASSIGNER_RETURN, ASSIGNER_GREEDY_RETURN, ASSIGNER_AGREEMENT, ASSIGNER_OBJECTIVE, ASSIGNER_LOSS, ASSIGNER_EPISODES,
    ASSIGNER_STEPS_PER_S, WALL_LEARN_S,
)  # fmt: skip
AT_THE_END = (ROUNDS_TO_TARGET, OBJECTIVE_TO_TARGET, CLUSTERING_ARI, CLUSTERING_DELAY_S, CLUSTERING_ENERGY_J)


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


def assigner_ratio(reference: str) -> str:
    """Return the name of the mean objective over that of `reference`: ``teacher``, ``hfel-300``, ``lower_bound``…"""
    return f"assigner/ratio/{reference}"


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
