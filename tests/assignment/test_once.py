"""Devices that keep their first edge (`assignment.once`)."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.assignment import assign_the_rest, reachable
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.support import checkpoint
from tests.conftest import small_config
from tests.world.living import living, results

MOVING = (
    "scheduling.name=fedavg", "scheduling.num_scheduled=9", "assignment.name=best_gain", "max_rounds=5",
    "world.mobility={name: gauss_markov, options: {speed_m_per_s: 200}, slot_s: 0.1}",
)  # fmt: skip
FAILING = ("world.edge_failure={mtbf_s: 6, mttr_s: 6}", "world.wait_s=1", "max_rounds=12")
ONCE = "assignment.once=true"


def test_the_assigner_answers_for_those_that_keep_no_edge() -> None:
    assert assign_the_rest(np.array([2, -1, 0, -1]), lambda: np.array([0, 1, 1, 2])).tolist() == [2, 1, 0, 2]
    kept = np.array([2, 0])
    own = assign_the_rest(kept, lambda: pytest.fail("all devices keep theirs"))
    assert own.tolist() == [2, 0]
    assert own is not kept


def test_a_device_is_reachable_if_its_edge_is_up() -> None:
    assert reachable(np.array([-1, 0, 1, 0]), np.array([False, True])).tolist() == [True, False, True, False]


@pytest.mark.parametrize("once", [True, False])
def test_a_device_that_moves_keeps_its_edge_or_is_assigned_anew(once: bool) -> None:
    edges: dict[int, set[int]] = {}
    with living(*MOVING, f"assignment.once={once}") as experiment:
        for record in experiment:
            for device, edge in zip(record.devices.tolist(), record.assignment.tolist(), strict=True):
                edges.setdefault(device, set()).add(edge)
    assert (max(map(len, edges.values())) == 1) == once


def test_devices_of_an_edge_that_is_down_are_not_scheduled() -> None:
    idle = 0
    with living(*MOVING, *FAILING, ONCE) as experiment:
        while not experiment.finished:
            kept = experiment.history.edge_of
            record = experiment.run_round()
            mine = kept[record.devices]
            assert ((mine < 0) | (mine == record.assignment)).all()
            idle += len(record.devices) < 9
    assert idle > 0


def test_a_resumed_run_keeps_the_edges(tmp_path) -> None:
    settings = (*MOVING, "world.edge_failure={mtbf_s: 20, mttr_s: 5}", "world.wait_s=1", ONCE)
    expected = results(living(*settings))
    first = living(*settings)
    for _ in range(2):
        first.run_round()
    checkpoint.save(tmp_path / "state", first.state_dict())
    resumed = living(*settings)
    resumed.load_state_dict(checkpoint.load(tmp_path / "state"))
    assert results(resumed) == expected[2:]


def test_without_it_nothing_is_remembered() -> None:
    with Experiment(small_config("scheduling.name=fedavg")) as experiment:
        experiment.run_round()
        assert "history" not in experiment.state_dict()


def test_a_scheduler_that_chooses_edges_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"once: got true with .*, which chooses the edges"):
        Experiment(small_config("scheduling.name=joint_cost", ONCE))
