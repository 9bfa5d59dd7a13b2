"""What is kept of a round, and what of it is logged under which name of the glossary."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray import metrics
from hflray.allocation import Allocation
from hflray.cost import RoundCost


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """What happened in one round.

    Attributes:
        round: i, from 1.
        accuracy, test_loss: of the global model after the round.
        devices, assignment: who was scheduled, sorted, and the edge of each, (H,).
        allocation: bandwidth and CPU frequency of each.
        cost: simulated delay and energy of this round.
        totals: ``delay_s``, ``energy_j``, ``objective``, ``message_bits`` summed from round 1.
        class_balance: see `hflray.metrics.class_balance`.
        samples_trained: samples passed through local training, over all edge and local iterations.
        model_hash: SHA-256 of the global model's float32 bytes.
        wall: seconds of this machine by phase: schedule_s, assign_s, allocate_s, train_s, evaluate_s. While actors
            evaluate, the next round may be scheduled, assigned and allocated here; that counts for the round it is
            for, and evaluate_s is what the evaluation took beyond it: all phases of all rounds add up to the time
            that passed.
        changed: settings that differ from the round before, ``{dotted key: [before, now]}``; see
            `hflray.experiment.Experiment.load_state_dict`.
    """

    round: int
    accuracy: float
    test_loss: float
    devices: NDArray[np.intp]
    assignment: NDArray[np.intp]
    allocation: Allocation
    cost: RoundCost
    totals: dict[str, float]
    class_balance: float
    samples_trained: int
    model_hash: str
    wall: dict[str, float]
    changed: dict[str, list[Any]] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """The round's entries of the glossary, by name."""
        cost = self.cost
        values = {
            metrics.ACCURACY: self.accuracy,
            metrics.TEST_LOSS: self.test_loss,
            metrics.CLASS_BALANCE: self.class_balance,
            metrics.ROUND_DELAY_S: float(cost.delay_s),
            metrics.ROUND_ENERGY_J: float(cost.energy_j),
            metrics.ROUND_OBJECTIVE: float(cost.objective),
            metrics.ROUND_MESSAGE_BITS: float(cost.message_bits),
            metrics.TOTAL_DELAY_S: self.totals["delay_s"],
            metrics.TOTAL_ENERGY_J: self.totals["energy_j"],
            metrics.TOTAL_OBJECTIVE: self.totals["objective"],
            metrics.TOTAL_MESSAGE_BITS: self.totals["message_bits"],
            metrics.WALL_SCHEDULE_S: self.wall["schedule_s"],
            metrics.WALL_ASSIGN_S: self.wall["assign_s"],
            metrics.WALL_ALLOCATE_S: self.wall["allocate_s"],
            metrics.WALL_TRAIN_S: self.wall["train_s"],
            metrics.WALL_EVALUATE_S: self.wall["evaluate_s"],
        }
        for edge in range(len(cost.edge_devices)):
            values[metrics.edge_metric(edge, "delay_s")] = float(cost.edge_delay_s[edge])
            values[metrics.edge_metric(edge, "energy_j")] = float(cost.edge_energy_j[edge])
            values[metrics.edge_metric(edge, "devices")] = float(cost.edge_devices[edge])
        return values

    def schedule(self) -> dict[str, list[Any]]:
        """Who took part and what each was given, (H,) lists ready for JSON; all that the round's bill follows from."""
        return {
            "devices": self.devices.tolist(),
            "edges": self.assignment.tolist(),
            "bandwidth_hz": self.allocation.bandwidth_hz.tolist(),
            "cpu_hz": self.allocation.cpu_hz.tolist(),
        }
