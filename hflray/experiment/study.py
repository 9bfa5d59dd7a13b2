"""The assignment study: the costs and the latency of one assigner on many random fleets.

This is the paper's Figure 6. 100 times, a fleet is drawn under Table I, H of its devices are scheduled uniformly, and
the round is billed without training. The fleets depend on the seed only, so every assigner gets the same fleets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from hflray import metrics
from hflray.allocation import allocate_round
from hflray.assignment import Assigner, assigned, configured_assigner
from hflray.config import BITS_PER_KB, AllocationConfig, DataConfig, ExperimentConfig
from hflray.cost import RoundCost, Workload, round_cost
from hflray.data.datasets import CIFAR_RANGE, FASHION_RANGE
from hflray.errors import ConfigError
from hflray.fleet import Fleet, given_fleet, sample_fleet
from hflray.physics.own import is_built_in
from hflray.seeding import stream
from hflray.support.arrays import IntArray
from hflray.support.references import spoken
from hflray.training.method import Spec

MODEL_KB = 448.0  # z if the configuration has none: Table I, Fashion-MNIST
# z in KB and the range of D_n by data set, from Table I.
OF_DATA = {"fashion_mnist": (MODEL_KB, FASHION_RANGE), "cifar10": (882.0, CIFAR_RANGE)}


def sized_by_data(config: ExperimentConfig) -> ExperimentConfig:
    """Return the configuration of a task that loads no data, with z and D_n of its data set (Table I).

    Explicit values of ``cost.model_kb`` and ``fleet.samples`` stay. Nothing changes if ``data.name`` is the default,
    because a configuration that was written out in full names the default too. A configuration that this function
    returned stays the same when it is passed again, also after it was written out and read.

    Raises:
        ConfigError: the paper does not have the data set, and z and D_n are not both set.
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
    """The results of one fleet.

    Attributes:
        fleet: the fleet's number, from 1.
        delay_s: the simulated delay of the round in s.
        energy_j: the simulated energy of the round in J.
        objective: E + λT in J.
        gap: 1 − lower bound / objective; NaN where no bound is known.
        latency_s: the measured seconds of the assignment.
    """

    fleet: int
    delay_s: float
    energy_j: float
    objective: float
    gap: float
    latency_s: float

    def metrics(self) -> dict[str, float]:
        """Return the glossary's entries by name. The fleet's number is their step."""
        values = {
            metrics.ROUND_DELAY_S: self.delay_s,
            metrics.ROUND_ENERGY_J: self.energy_j,
            metrics.ROUND_OBJECTIVE: self.objective,
            metrics.ASSIGNMENT_GAP: self.gap,
            metrics.WALL_ASSIGN_S: self.latency_s,
        }
        return {name: value for name, value in values.items() if not math.isnan(value)}


def refuse_other_uploads(config: ExperimentConfig, place: str) -> None:
    """Raise ConfigError if devices or edges send anything but a whole model, which `place` does not bill."""
    rule, compression, shares = config.training.rule, config.compression, config.cost.secure_aggregation.shares
    for sends_more, setting, got, accepted in (
        (compression.device.name != "none", "compression.device.name", compression.device.name, "none"),
        (compression.edge.name != "none", "compression.edge.name", compression.edge.name, "none"),
        (shares is not None, "cost.secure_aggregation.shares", str(shares), "null"),
        (any(Spec.of("local_rule", rule).build().vectors), "training.rule.name", rule.name, "a rule without vectors"),
    ):
        if sends_more:
            raise ConfigError(
                f"{setting}: got {spoken(got)} for {place}, whose fleets send whole models and nothing else; accepted: "
                f"{accepted}; leave it out"
            )


@dataclass(frozen=True, eq=False)
class Instance:
    """A fleet of a study with its scheduled devices.

    Attributes:
        index: the fleet's number; 0 warms up.
        fleet, work: the round.
        devices: the scheduled devices, (H,) sorted indices.
    """

    index: int
    fleet: Fleet
    work: Workload
    devices: IntArray

    @classmethod
    def of(cls, config: ExperimentConfig, index: int) -> Self:
        """Draw an instance, which depends on the seed, the deployment and its number only.

        Of a fleet that is not drawn alone, the scheduled devices are drawn.

        Raises:
            ConfigError: see `sized_by_data`.
        """
        config = sized_by_data(config)
        rng = stream(config.seed, "study", index)
        fleet = given_fleet(config.fleet, config.seed) or sample_fleet(config.fleet, rng)
        fleet = fleet.with_tree(config.tree, config.fleet, config.seed).with_physics(config.cost)
        devices = np.sort(rng.choice(fleet.num_devices, config.scheduling.num_scheduled, replace=False))
        return cls(index, fleet, Workload.of(config, MODEL_KB * BITS_PER_KB), devices)

    def assigned(self, assigner: Assigner, seed: int) -> tuple[IntArray, float]:
        """Return an assigner's answer, (H,), and the measured seconds that it took."""
        rng, begin = stream(seed, "assign", self.index), time.perf_counter()
        assignment = assigned(assigner, self.fleet, self.work, self.devices, rng)
        return assignment, time.perf_counter() - begin

    def bound(self) -> float:
        """Return the objective, J, that no assignment is below; NaN where no bound is known."""
        if not is_built_in(self.fleet.download):
            return math.nan
        from hflray.assignment.bounds import lower_bound  # with SciPy and Numba, which another task may not need

        return lower_bound(self.fleet, self.work, self.devices)

    def bill(self, assignment: IntArray, config: AllocationConfig) -> RoundCost:
        """Return the bill of an assignment. Raises InfeasibleError: an edge's allocation failed."""
        allocation = allocate_round(
            self.fleet, self.work, self.devices, assignment, method=config.method, coupling=config.coupling
        )
        return round_cost(self.fleet, self.work, self.devices, assignment, allocation)


def run_study(config: ExperimentConfig) -> Iterator[FleetRecord]:
    """Yield a record for each of ``max_rounds`` fleets, with z and D_n of `sized_by_data`.

    Raises:
        ConfigError: see `sized_by_data`.
        InfeasibleError: an edge's allocation failed.
    """
    assigner = configured_assigner(sized_by_data(config))
    for index in range(config.max_rounds + 1):  # fleet 0 is a warm-up, because compiling and loading are not latency
        instance = Instance.of(config, index)
        assignment, latency_s = instance.assigned(assigner, config.seed)
        if index == 0:
            continue
        cost = instance.bill(assignment, config.allocation)
        gap = 1.0 - instance.bound() / cost.objective
        yield FleetRecord(index, cost.delay_s, cost.energy_j, cost.objective, gap, latency_s)
