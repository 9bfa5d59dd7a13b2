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
from hflray.config import BITS_PER_KB, DataConfig, ExperimentConfig
from hflray.cost import Workload, round_cost
from hflray.data.datasets import CIFAR_RANGE, FASHION_RANGE
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet
from hflray.seeding import stream

MODEL_KB = 448.0  # z of a study whose configuration has none: Table I, Fashion-MNIST
# z in KB and the range of D_n by data set, Table I.
OF_DATA = {"fashion_mnist": (MODEL_KB, FASHION_RANGE), "cifar10": (882.0, CIFAR_RANGE)}


def sized_by_data(config: ExperimentConfig) -> ExperimentConfig:
    """The configuration of a task that loads no data, with z and D_n of the data set that it names (Table I).

    What the configuration gives itself, ``cost.model_kb`` and ``fleet.samples``, stays. The default of ``data.name``
    counts as not given, because a configuration that was written out whole names it too: then nothing is changed. A
    configuration made by this function comes back as it is, also after it was written out and read again.

    Raises:
        ConfigError: the data set is another one, and z and D_n are not both given.
    """
    name = config.data.name
    kb_is_given, samples_are_given = config.cost.model_kb is not None, "samples" in config.fleet.model_fields_set
    if name == DataConfig.model_fields["name"].default or (kb_is_given and samples_are_given):
        return config
    if name not in OF_DATA:
        raise ConfigError(
            f"data.name: got '{name}' for a task that loads no data; accepted: {', '.join(OF_DATA)}, whose z and D_n "
            "the paper gives; set cost.model_kb and fleet.samples to those of this data set, or remove data.name"
        )
    model_kb, samples = OF_DATA[name]
    changes: dict[str, object] = {}
    if not kb_is_given:
        changes["cost"] = config.cost.model_copy(update={"model_kb": model_kb})
    if not samples_are_given:
        changes["fleet"] = config.fleet.model_copy(update={"samples": samples})
    return config.model_copy(update=changes)


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
    """Yield a record for each of ``max_rounds`` fleets; z and D_n are those of `sized_by_data`.

    Raises:
        ConfigError: see `sized_by_data`.
        InfeasibleError: an edge's allocation failed.
    """
    config = sized_by_data(config)
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
