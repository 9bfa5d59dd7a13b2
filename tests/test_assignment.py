"""The assigner that a configuration builds, and its coupling."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from hflray import registry
from hflray.assignment import assign_among, build_assigner, configured_assigner
from hflray.config import load_config
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

SEARCHING = ("hfel", "local_search", "d3qn")


@pytest.mark.parametrize("name", SEARCHING)
@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_the_coupling_reaches_the_assigners_that_search(name, coupling):
    config = load_config(None, [f"assignment.name={name}", f"allocation.coupling={coupling}"])
    assert configured_assigner(config).coupling == coupling
    assert build_assigner(name).coupling == "per_edge"  # the default


def test_an_option_replaces_the_coupling():
    config = load_config(None, ["assignment.name=local_search", "allocation.coupling=joint"])
    config = config.model_copy(
        update={"assignment": config.assignment.model_copy(update={"options": {"coupling": "per_edge"}})}
    )
    assert configured_assigner(config).coupling == "per_edge"


@pytest.mark.parametrize("name", ["geographic", "best_gain", "random", "load_balanced", "even_gain", "home"])
def test_the_simple_assigners_have_no_coupling(name):
    assigner = configured_assigner(load_config(None, [f"assignment.name={name}", "allocation.coupling=joint"]))
    assert not hasattr(assigner, "coupling")
    with pytest.raises(ConfigError, match="coupling"):
        build_assigner(name, coupling="joint")


class Outside:
    """An assigner that is not built in and takes no settings."""

    def assign(self, fleet, work, devices, rng):
        return np.zeros(len(devices), dtype=np.intp)


def test_an_assigner_from_outside_gets_no_coupling(monkeypatch):
    table = registry._table("assigner") | {"outside": "tests.test_assignment:Outside"}
    monkeypatch.setattr(registry, "_table", lambda kind: table)
    config = load_config(None, ["assignment.name=outside", "allocation.coupling=joint"])
    assert type(configured_assigner(config)).__name__ == "Outside"


def test_hfel_with_cvxpy_under_one_deadline_is_refused_before_anything_runs():
    config = load_config(None, ["assignment.name=hfel", "allocation.coupling=joint", "allocation.method=cvxpy"])
    with pytest.raises(ConfigError, match=r"allocation\.coupling: 'joint' needs allocation\.method 'newton'"):
        configured_assigner(config)


def test_per_edge_assignments_stay_the_same():
    """The digest is that of commit 6c93c38, in which the searches had no couplings."""
    digest = hashlib.sha256()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        fleet = sample_fleet(FleetConfig(num_devices=60, num_edges=4), rng)
        devices = np.sort(rng.choice(60, 30, replace=False))
        work = Workload(model_bits=448 * 8192, cloud_hop=bool(seed % 2))
        for name, options in (("hfel", {}), ("local_search", {"restarts": 1}), ("d3qn", {"polish_ms": "optimum"})):
            edges = build_assigner(name, **options).assign(fleet, work, devices, np.random.default_rng(seed))
            digest.update(edges.astype(np.int8).tobytes())
    assert digest.hexdigest() == "6d1c1ac1cd0fc10c97bfd8a5c449b32b2bb59e2c0dc3a9fefa05a647a6741036"


def test_edges_that_are_down_are_taken_out_and_answers_mapped_back() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=30, num_edges=5), np.random.default_rng(1))
    up, work, rng = np.array([False, True, False, True, True]), Workload(1e6), np.random.default_rng(2)
    devices = np.arange(20)
    for name in ("geographic", "best_gain", "hfel", "local_search", "random", "d3qn"):
        answer = assign_among(build_assigner(name), up, fleet, work, devices, rng)
        assert set(answer.tolist()) <= {1, 3, 4}
    nearest = assign_among(build_assigner("geographic"), up, fleet, work, devices, rng)
    np.testing.assert_array_equal(nearest, np.array([1, 3, 4])[fleet.distance_m[devices][:, [1, 3, 4]].argmin(axis=1)])
    everywhere = assign_among(build_assigner("geographic"), np.ones(5, dtype=bool), fleet, work, devices, rng)
    np.testing.assert_array_equal(everywhere, build_assigner("geographic").assign(fleet, work, devices, rng))


def test_a_policy_of_a_fixed_number_of_edges_refuses_fewer() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=30, num_edges=5), np.random.default_rng(1))
    up, assigner = np.array([True, True, False, True, True]), build_assigner("d3qn", policy="paper_db")
    with pytest.raises(ConfigError, match=r"is for M = 5 edges, this fleet has 4; leave assignment\.policy out"):
        assign_among(assigner, up, fleet, Workload(1e6), np.arange(9), np.random.default_rng(2))
