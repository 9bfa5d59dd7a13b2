"""Geographic assignment, and the errors that every simple assigner shares."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.assignment import build_assigner
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=1e6)


@pytest.fixture
def fleet():
    return sample_fleet(FleetConfig(num_devices=30, num_edges=4), np.random.default_rng(0))


def test_the_nearest_edge_is_assigned(fleet):
    distance = np.array([[3.0, 1.0, 2.0, 9.0], [5.0, 7.0, 5.0, 6.0], [8.0, 8.0, 8.0, 1.0]])
    small = dataclasses.replace(fleet.take([0, 1, 2]), distance_m=distance)
    edges = build_assigner("geographic").assign(small, WORK, [2, 0, 1], np.random.default_rng(0))
    assert edges.tolist() == [3, 1, 0]  # the order is that of `devices`, and the lower index wins a tie
    assert edges.dtype.kind == "i"


def test_only_distance_counts(fleet):
    devices = np.arange(0, 30, 3)
    edges = build_assigner("geographic").assign(fleet, WORK, devices, np.random.default_rng(0))
    gap = np.linalg.norm(fleet.position_m[devices, None] - fleet.edge_position_m, axis=-1)
    np.testing.assert_array_equal(edges, gap.argmin(axis=1))


@pytest.mark.parametrize("name", ["geographic", "random", "best_gain"])
@pytest.mark.parametrize(
    "devices, words",
    [
        ([0, 30], "device 30 does not exist; accepted: 0 to 29"),
        ([-1], "device -1 does not exist"),
        ([1, 1], "listed twice"),
        ([], "empty"),
        ([0.5], "integer"),
        ([[0, 1]], "1-D"),
    ],
)
def test_bad_devices_are_refused(fleet, name, devices, words):
    with pytest.raises(ConfigError, match=words):
        build_assigner(name).assign(fleet, WORK, devices, np.random.default_rng(0))


def test_a_wrong_option_and_a_wrong_name_are_refused():
    with pytest.raises(
        ConfigError, match=r"assigner 'geographic': unknown option 'exchanges' \(got 3\); accepted: none"
    ):
        build_assigner("geographic", exchanges=3)
    with pytest.raises(ConfigError, match="unknown assigner 'geografic'; did you mean 'geographic'"):
        build_assigner("geografic")
