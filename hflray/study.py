"""The assignment study: one assigner on many random fleets, what its assignments cost and how long it took to decide.

The paper's Figure 6: each of 100 times a fleet is drawn under Table I, H of its devices are scheduled uniformly, and
the round is billed; there is no training. The fleets depend on the seed alone, so every assigner gets the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hflray import metrics
from hflray.allocation import allocate_round
from hflray.assignment import configured_assigner
from hflray.assignment.bounds import lower_bound
from hflray.config import BITS_PER_KB, ExperimentConfig
from hflray.cost import Workload, round_cost
from hflray.fleet import sample_fleet
from hflray.seeding import stream

MODEL_KB = 448.0  # z of a study whose configuration has none: Table I, Fashion-MNIST


@dataclass(frozen=True)
class FleetRecord:
    """One fleet: its number from 1, delay (s), energy (J), objective (J), gap to the lower bound, and latency (s)."""

    fleet: int
    delay_s: float
    energy_j: float
    objective: float
    gap: float
    latency_s: float

    def metrics(self) -> dict[str, float]:
        """The entries of the glossary, by name; the fleet's number is the step."""
        return {
            metrics.ROUND_DELAY_S: self.delay_s,
            metrics.ROUND_ENERGY_J: self.energy_j,
            metrics.ROUND_OBJECTIVE: self.objective,
            metrics.ASSIGNMENT_GAP: self.gap,
            metrics.WALL_ASSIGN_S: self.latency_s,
        }


def run_study(config: ExperimentConfig) -> Iterator[FleetRecord]:
    """Yield a record for each of ``max_rounds`` fleets.

    Raises:
        InfeasibleError: an edge's allocation failed.
    """
    work = Workload(
        model_bits=config.cost.model_bits or MODEL_KB * BITS_PER_KB,
        local_iterations=config.training.local_iterations,
        edge_iterations=config.training.edge_iterations,
        delay_weight=config.cost.delay_weight,
    )
    assigner = configured_assigner(config)
    for index in range(config.max_rounds + 1):  # number 0 warms up: what is compiled or loaded once is not latency
        rng = stream(config.seed, "study", index)
        fleet = sample_fleet(config.fleet, rng)
        devices = np.sort(rng.choice(fleet.num_devices, config.scheduling.num_scheduled, replace=False))
        begin = time.perf_counter()
        assignment = assigner.assign(fleet, work, devices, stream(config.seed, "assign", index))
        latency_s = time.perf_counter() - begin
        if index == 0:
            continue
        allocation = allocate_round(
            fleet, work, devices, assignment, method=config.allocation.method, coupling=config.allocation.coupling
        )
        cost = round_cost(fleet, work, devices, assignment, allocation)
        bound = lower_bound(fleet, work, devices)
        yield FleetRecord(index, cost.delay_s, cost.energy_j, cost.objective, 1.0 - bound / cost.objective, latency_s)
