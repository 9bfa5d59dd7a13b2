"""hflray.allocation.equal: the split by hand, in a round, and its refusals."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.config import FleetConfig, load_config
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet

FLEET = sample_fleet(FleetConfig(num_devices=6, num_edges=3), np.random.default_rng(2))
WORK = Workload(4e6)
DEVICES, EDGES = np.array([5, 0, 3, 2]), np.array([2, 0, 2, 2])  # edge 1 is empty


def test_bandwidth_is_split_equally_and_cpus_are_at_their_largest_frequency() -> None:
    found = allocate_round(FLEET, WORK, DEVICES, EDGES, method="equal")
    third, whole = FLEET.edge_bandwidth_hz[2] / 3, FLEET.edge_bandwidth_hz[0]
    assert found.bandwidth_hz.tolist() == [third, whole, third, third]
    assert found.cpu_hz.tolist() == FLEET.max_cpu_hz[DEVICES].tolist()


def test_the_optimum_costs_less() -> None:
    costs = [
        round_cost(FLEET, WORK, DEVICES, EDGES, allocate_round(FLEET, WORK, DEVICES, EDGES, method=method)).objective
        for method in ("newton", "fixed_cpu", "equal")
    ]
    assert costs == sorted(costs)
    assert len(set(costs)) == 3


def test_one_deadline_of_all_edges_is_refused_in_the_configuration_and_in_a_call() -> None:
    with pytest.raises(ConfigError, match=r"allocation\.coupling.*joint.*equal"):
        load_config(None, ["allocation.method=equal", "allocation.coupling=joint"])
    with pytest.raises(ConfigError, match=r"allocation\.coupling: 'joint'"):
        allocate_round(FLEET, WORK, DEVICES, EDGES, method="equal", coupling="joint")


def test_a_bad_value_is_named() -> None:
    broken = dataclasses.replace(FLEET, max_cpu_hz=np.array([1e9, 1e9, 0, 1e9, 1e9, 1e9]))
    with pytest.raises(ConfigError, match=r"max_cpu_hz\[2\]"):
        allocate_round(broken, WORK, DEVICES, EDGES, method="equal")
