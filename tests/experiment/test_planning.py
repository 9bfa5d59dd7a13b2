"""hflray.experiment.planning: the decisions and the bill of a round, without any training."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray

from hflray.allocation import allocate_round
from hflray.assignment import configured_assigner
from hflray.config import ExperimentConfig
from hflray.cost import Workload, poll_cost, round_cost
from hflray.experiment import Experiment
from hflray.experiment.planning import Planner
from hflray.experiment.record import PlannedRound
from hflray.experiment.scenario import Scenario
from hflray.scheduling import DeviceHistory, build_scheduler
from hflray.world import World
from tests.conftest import small_config

NOBODY = "world.availability={name: bernoulli, options: {probability: 1e-9}}"


def planner_of(config: ExperimentConfig, model_bits: float = 1e6) -> Planner:
    """Return a planner whose polls find that a device with a smaller index loses more."""

    def losses(devices: NDArray[np.intp]) -> NDArray[np.float64]:
        return -np.asarray(devices, dtype=np.float64)

    parts = (Workload.of(config, model_bits), configured_assigner(config), allocate_round)
    return Planner(config, Scenario.build(config), *parts, losses)


def plan_of(planner: Planner, history: DeviceHistory | None = None, index: int = 1) -> PlannedRound:
    section, fleet = planner.config.scheduling, planner.scenario.fleet
    counts = {"num_devices": fleet.num_devices, "num_scheduled": section.num_scheduled}
    scheduler = build_scheduler(section.name, **counts, clusters=np.arange(fleet.num_devices) % 3, **section.options)
    world = World(planner.config, fleet)
    return planner.plan(index, scheduler, world, history or DeviceHistory(fleet.num_devices), None)[0]


def test_a_plan_is_the_round_that_an_experiment_trains() -> None:
    config = small_config("scheduling.name=fedavg", "assignment.name=hfel")
    experiment = Experiment(config)
    record = experiment.run_round()
    plan = plan_of(planner_of(config, experiment.work.model_bits))
    np.testing.assert_array_equal(plan.schedule.devices, record.devices)
    np.testing.assert_array_equal(plan.schedule.edges, record.assignment)
    np.testing.assert_array_equal(plan.allocation.bandwidth_hz, record.allocation.bandwidth_hz)
    assert plan.cost.objective == record.cost.objective
    assert set(plan.wall) | {"train_s", "evaluate_s"} == set(record.wall)


def test_a_scheduler_that_chooses_edges_asks_no_assigner() -> None:
    class Unasked:
        def assign(self, *_: object) -> NDArray[np.intp]:
            return pytest.fail("the scheduler has chosen the edges")

    planner = planner_of(small_config("scheduling.name=joint_cost"))
    planner = Planner(**(vars(planner) | {"assigner": Unasked()}))
    assert len(plan_of(planner).schedule) == planner.config.scheduling.num_scheduled


def test_a_round_of_nobody_waits_and_polls_nobody() -> None:
    plan = plan_of(planner_of(small_config("scheduling.name=power_of_choice", NOBODY, "world.wait_s=7")))
    assert len(plan.schedule) == 0
    assert plan.poll is None
    assert (plan.cost.delay_s, plan.cost.energy_j) == (7, 0)


def test_a_poll_decides_and_is_billed() -> None:
    planner = planner_of(small_config("scheduling.name=power_of_choice", "scheduling.options={candidates: 12}"))
    plan, fleet = plan_of(planner), planner.scenario.fleet
    np.testing.assert_array_equal(plan.schedule.devices, np.arange(6))  # they lose most
    assert plan.poll == poll_cost(fleet, np.arange(12))
    plain = round_cost(fleet, planner.work, *plan.schedule, plan.allocation)
    assert plan.cost.energy_j == plain.energy_j + plan.poll.energy_j


def test_a_device_whose_edge_is_down_is_not_scheduled_if_it_keeps_that_edge() -> None:
    settings = ("scheduling.name=fedavg", "scheduling.num_scheduled=12", "assignment.name=best_gain")
    planner = planner_of(
        small_config(*settings, "assignment.once=true", "world.edge_failure={mtbf_s: 1, mttr_s: 1}", "seed=1")
    )
    fleet, history = planner.scenario.fleet, DeviceHistory(12)
    up = World(planner.config, fleet).outlook(1, fleet).edges_up
    assert up.any()
    assert not up.all()
    history.edge_of[:5] = np.flatnonzero(~up)[0]
    plan = plan_of(planner, history)
    np.testing.assert_array_equal(plan.schedule.devices, np.arange(5, 12))
    assert up[plan.schedule.edges].all()
    # One deadline of all edges does not wait for the hop of an edge that is down, however long it would be.
    shares = []
    for gain in (fleet.cloud_gain, np.where(up, fleet.cloud_gain, 1e-25)):
        scenario = replace(planner.scenario, fleet=replace(fleet, cloud_gain=gain))
        joint = replace(planner, scenario=scenario, allocate=partial(allocate_round, coupling="joint"))
        shares.append(plan_of(joint, history).allocation.bandwidth_hz.tolist())
    assert shares[0] == shares[1]
