"""The input of the searching assigners: bad values are refused by name before any kernel runs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.bounds import brute_force, lower_bound
from hflray.cost import Workload
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)
FLEET = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
DEVICES = np.array([1, 4, 6, 9])

CALLS = {
    "hfel": lambda fleet, devices: build_assigner("hfel").assign(fleet, WORK, devices, np.random.default_rng(0)),
    "local_search": lambda fleet, devices: build_assigner("local_search").assign(
        fleet, WORK, devices, np.random.default_rng(0)
    ),
    "candidates": lambda fleet, devices: build_assigner("local_search", candidates=3).assign(
        fleet, WORK, devices, np.random.default_rng(0)
    ),
    "bound": lambda fleet, devices: lower_bound(fleet, WORK, devices),
    "brute force": lambda fleet, devices: brute_force(fleet, WORK, devices),
    "joint": lambda fleet, devices: allocate_round(
        fleet, WORK, devices, np.full(np.shape(devices), 2), coupling="joint"
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("value", [np.nan, 0.0, -1.0, np.inf])
@pytest.mark.parametrize(
    "name, index",
    [
        ("gain", (4, 2)),
        ("power_w", (6,)),
        ("samples", (6,)),
        ("cycles_per_sample", (6,)),
        ("max_cpu_hz", (6,)),
        ("edge_bandwidth_hz", (1,)),
        ("cloud_gain", (1,)),
        ("edge_power_w", (1,)),
    ],
)
def test_a_bad_value_is_named_with_its_index(call, name, index, value):
    array = getattr(FLEET, name).copy()
    array[index] = value
    with pytest.raises(ConfigError, match=rf"{name}\[{', '.join(map(str, index))}\]"):
        call(dataclasses.replace(FLEET, **{name: array}), DEVICES)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    "devices, text", [([], "devices"), ([1, 12], r"devices\[1\]"), ([-1], r"devices\[0\]"), ([1, 1], "twice")]
)
def test_a_bad_schedule_is_an_error(call, devices, text):
    with pytest.raises(ConfigError, match=text):
        call(FLEET, devices)


def test_an_infinite_joint_deadline_names_edge_and_device():
    gain = FLEET.gain.copy()
    gain[4] = 1e-310
    with pytest.raises(InfeasibleError, match=r"edge 2.*device 4"):
        allocate_round(dataclasses.replace(FLEET, gain=gain), WORK, DEVICES, np.full(4, 2), coupling="joint")
