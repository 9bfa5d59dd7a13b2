"""hflray.scheduling.joint_cost: quotas, turns, the cheapest devices by hand, and lower costs than IKC's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray import metrics
from hflray.allocation import Coupling, allocate_round
from hflray.assignment import build_assigner
from hflray.config.decisions import LimitsConfig
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.record import PlannedRound
from hflray.fleet import FleetConfig, sample_fleet
from hflray.report.exports import read_exhibit
from hflray.report.runs import RunRecord
from hflray.scheduling import DeviceHistory, build_scheduler, choose_devices_and_edges, configured_scheduler
from hflray.scheduling.joint_cost import JointCost
from hflray.support.arrays import IntArray
from tests.conftest import small_config
from tests.scheduling import toy

RESULTS = Path(__file__).parents[1] / "data" / "results"
WAIT = "scheduling.options.max_wait"
WORK = Workload(model_bits=4e6)
GOOD, BAD = 3e-11, 3e-13
# Devices 0 to 3 are cluster 0 and devices 4 to 7 cluster 1. Devices 1, 2, 4 and 7 have good links, to one edge each.
GAIN = [[BAD, BAD], [GOOD, BAD], [BAD, GOOD], [BAD, BAD], [GOOD, BAD], [BAD, BAD], [BAD, BAD], [BAD, GOOD]]
OWN_COUPLING = "scheduling.options={coupling: per_edge}"
CLUSTERS = [0, 0, 0, 0, 1, 1, 1, 1]


def joint(scheduled: int = 4, **options: Any) -> JointCost:
    scheduler = build_scheduler("joint_cost", num_devices=8, num_scheduled=scheduled, clusters=CLUSTERS, **options)
    assert isinstance(scheduler, JointCost)
    return scheduler


def test_the_cheapest_devices_of_each_cluster_and_their_edges() -> None:
    fleet = toy.fleet(GAIN)
    scheduler = joint()
    assert scheduler.auxiliary == "mini"
    devices, edges = choose_devices_and_edges(scheduler, toy.context(fleet))
    assert (devices.tolist(), edges.tolist()) == ([1, 2, 4, 7], [0, 1, 0, 1])
    assert scheduler.schedule(toy.context(fleet, 2, last_round=[0, 1, 1, 0, 1, 0, 0, 1])).tolist() == [1, 2, 4, 7]


def test_quotas_hold_although_one_cluster_is_cheaper() -> None:
    gain = np.where(np.arange(8)[:, None] < 4, GOOD, BAD) * np.ones((8, 2))
    scheduler = joint(3)
    counts = []
    for index in range(1, 5):
        devices, _ = choose_devices_and_edges(scheduler, toy.context(toy.fleet(gain), index))
        counts.append(np.bincount(devices // 4, minlength=2).tolist())
    assert counts == [[2, 1], [1, 2], [2, 1], [1, 2]]


def test_without_wait_the_devices_of_a_cluster_take_turns() -> None:
    scheduler, fleet = joint(max_wait=0), toy.fleet(GAIN)
    last_round = np.zeros(8, dtype=int)
    rounds = []
    for index in range(1, 5):
        devices, _ = choose_devices_and_edges(scheduler, toy.context(fleet, index, last_round=last_round.copy()))
        last_round[devices] = index
        rounds.append(devices.tolist())
    assert rounds == [[1, 2, 4, 7], [0, 3, 5, 6]] * 2


def test_a_device_that_has_waited_too_long_goes_first() -> None:
    fleet = toy.fleet(GAIN)
    seen = {"last_round": [3, 9, 9, 8, 9, 8, 8, 9]}  # before round 10, device 0 was passed over for 6 rounds
    chosen = {
        wait: choose_devices_and_edges(joint(max_wait=wait), toy.context(fleet, 10, **seen))[0] for wait in (5, 6)
    }
    assert len(set(chosen[5]) & {1, 2}) == 1
    assert 0 in chosen[5]
    assert chosen[6].tolist() == [1, 2, 4, 7]


def test_of_too_many_that_are_due_the_longest_waits_go_first() -> None:
    seen = {"last_round": [1, 2, 3, 3, 9, 9, 9, 9]}
    devices, _ = choose_devices_and_edges(joint(max_wait=0), toy.context(toy.fleet(GAIN), 10, **seen))
    assert devices[:2].tolist() == [0, 1]


def test_absent_devices_and_edges_that_are_down() -> None:
    fleet, absent = toy.fleet(GAIN), np.isin(np.arange(8), [0, 1, 3])
    devices, edges = choose_devices_and_edges(
        joint(), toy.context(fleet, available=~absent, edges_up=np.array([False, True]))
    )
    assert len(devices) == 4  # cluster 0 has one device left, and cluster 1 gives three
    assert 2 in devices
    assert not absent[devices].any()
    assert set(edges) == {1}
    devices, edges = choose_devices_and_edges(joint(), toy.context(fleet, available=np.zeros(8, dtype=bool)))
    assert (len(devices), len(edges)) == (0, 0)


def test_the_objective_is_lower_than_ikcs_with_local_search() -> None:
    ratios: dict[int | None, list[float]] = {0: [], None: []}
    for seed in range(4):
        rng = np.random.default_rng(seed)
        fleet = sample_fleet(FleetConfig(num_devices=60, num_edges=4), rng)
        options = {"num_devices": 60, "num_scheduled": 20, "clusters": np.arange(60) % 10}
        devices = build_scheduler("ikc", **options).schedule(rng)
        rival = objective(fleet, devices, build_assigner("local_search").assign(fleet, WORK, devices, rng))
        for max_wait, values in ratios.items():
            scheduler = build_scheduler("joint_cost", max_wait=max_wait, **options)
            devices, edges = choose_devices_and_edges(scheduler, toy.context(fleet))
            assert np.bincount(devices % 10).tolist() == [2] * 10
            values.append(objective(fleet, devices, edges) / rival)
    assert ratios[0] == ratios[None]  # in the first round
    assert max(ratios[0]) < 0.8


def objective(fleet: Any, devices: np.ndarray, edges: np.ndarray, coupling: Coupling = "per_edge") -> float:
    allocation = allocate_round(fleet, WORK, devices, edges, coupling=coupling)
    return round_cost(fleet, WORK, devices, edges, allocation).objective


def test_an_experiment_chooses_by_the_coupling_that_bills_it() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(9))
    billed_j = []
    for settings in ((), ("allocation.coupling=joint",), ("allocation.coupling=joint", OWN_COUPLING)):
        scheduler = configured_scheduler(small_config("scheduling.name=joint_cost", *settings), np.arange(12) % 3)
        devices, edges = choose_devices_and_edges(scheduler, toy.context(fleet))
        assert edges is not None
        billed_j.append(objective(fleet, devices, edges, "joint"))
    assert billed_j[1] < 0.96 * billed_j[0]
    assert billed_j[2] == billed_j[0]  # an option has precedence


def test_of_a_large_fleet_only_the_cheapest_are_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hflray.scheduling.joint_cost.MOST", 4)
    assert joint().schedule(toy.context(toy.fleet(GAIN))).tolist() == [1, 2, 4, 7]
    with pytest.raises(ConfigError, match="accepted: a whole number from 1 to 4"):
        joint(5)


def exported(sweep: str, **settings: Any) -> RunRecord:
    """Return the exported run of joint_cost with local search and these settings; of several seeds, that of seed 0."""
    settings = {"seed": 0, "assignment.name": "local_search"} | settings
    (run,) = (
        run
        for run in read_exhibit(RESULTS / sweep).runs
        if run.config.scheduling.name == "joint_cost" and settings.items() <= run.settings.items()
    )
    return run


def replayed(run: RunRecord, clusters: IntArray) -> Iterator[PlannedRound]:
    """Plan the rounds of a run again, without training."""
    experiment = Experiment(run.config)
    experiment.clusters = clusters
    experiment.history = DeviceHistory(run.config.fleet.num_devices)
    for index in run.rounds["round"]:
        experiment.round = int(index) - 1
        plan, experiment.world = experiment._plan(experiment.scheduler)
        experiment.history = experiment.history.after(plan.round, *plan.schedule, plan.cost.iteration_delay_s, {})
        yield plan


@pytest.mark.parametrize("wait", [2, None])
def test_an_exported_run_chose_what_its_options_say(wait: int | None) -> None:
    """No default has changed what an export means: each round is planned again, with its devices and edges."""
    run = exported("joint_cost", **{WAIT: wait})
    assert run.devices is not None
    for plan, row in zip(replayed(run, run.devices["cluster"].to_numpy()), run.rounds.itertuples(), strict=True):
        assert (plan.schedule.devices.tolist(), plan.schedule.edges.tolist()) == (list(row.devices), list(row.edges))
        assert plan.cost.objective == pytest.approx(run.rounds[metrics.ROUND_OBJECTIVE][row.Index], rel=1e-9)


def test_beside_an_edge_that_is_down_gossip_is_priced_among_the_others() -> None:
    """With the hops to the neighbours that are down, ten of these forty fleets get other devices or edges."""
    config = small_config("fleet.num_devices=8", "scheduling.num_scheduled=4", "fleet.num_edges=4",
                          "tree.gossip.graph=complete", "scheduling.num_clusters=2")  # fmt: skip
    up, work = np.array([True, True, False, True]), Workload(model_bits=3.7e6, delay_weight=10.0)
    for seed in (0, 19, 39):
        fleet = sample_fleet(config.fleet, np.random.default_rng(seed)).with_tree(config.tree, config.fleet, seed)
        chosen = []
        for seen in (fleet, fleet.with_edges_up(up)):
            context = replace(toy.context(seen), edges_up=up, work=work)
            chosen.append([part.tolist() for part in choose_devices_and_edges(joint(), context)])
        assert chosen[0] == chosen[1]


def test_a_device_that_meets_the_limits_nowhere_is_no_candidate() -> None:
    gain = np.array(GAIN)
    gain[1] *= 1e-7
    work = replace(WORK, limits=LimitsConfig(device_delay_s=600.0, drop=True))
    waited = np.where(np.arange(8) == 1, 0, 4)  # it is left out in each round, so that it has waited longest
    context = replace(toy.context(toy.fleet(gain), 5, last_round=waited), work=work)
    devices, edges = choose_devices_and_edges(joint(), context)
    assert 1 not in devices.tolist()
    assert len(edges) == 4
    devices, edges = choose_devices_and_edges(joint(8), context)  # planning drops it; an error ended the run
    assert (devices.tolist(), len(edges)) == (list(range(8)), 8)
    nobody = replace(context, work=replace(WORK, limits=LimitsConfig(device_delay_s=1e-9, drop=True)))
    assert len(choose_devices_and_edges(joint(), nobody)[0]) == 4
