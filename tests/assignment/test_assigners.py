"""What holds for every registered assigner, and the assigner that a configuration builds."""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.allocation import allocate_round
from hflray.assignment import assign_among, assigned, build_assigner, check_any_edges, configured_assigner
from hflray.assignment.bounds import lower_bound
from hflray.config import load_config
from hflray.cost import Workload
from hflray.errors import ConfigError, InfeasibleError
from tests.assignment.brute import brute_force
from tests.assignment.rounds import WORK, assign, random_round
from tests.conftest import refusal

SEARCHING: list[tuple[str, dict[str, Any]]] = [
    ("hfel", {}),
    ("hfel", {"redraw": True}),
    ("hfel", {"coupling": "joint"}),
    ("local_search", {}),
    ("local_search", {"restarts": 2}),
    ("local_search", {"coupling": "joint", "restarts": 1}),
    ("local_search", {"coupling": "joint", "exchanges": False}),
    ("local_search", {"candidates": 12}),
    ("local_search", {"candidates": 3, "start": "random"}),
    ("d3qn", {}),
    ("d3qn", {"polish_ms": "optimum"}),
]
SIMPLE = sorted(set(registry.BUILTIN["assigner"]) - {name for name, _ in SEARCHING})
ALL = [(name, {}) for name in SIMPLE] + SEARCHING


def test_an_assigner_cannot_change_whom_the_scheduler_chose() -> None:
    class Shifted:
        def assign(self, fleet: Any, work: Any, devices: Any, rng: Any) -> Any:
            devices += 1
            return np.zeros(len(devices), dtype=int)

    fleet, devices = random_round(0)
    before = devices.copy()
    with pytest.raises(ValueError, match="read-only"):
        assigned(Shifted(), fleet, WORK, devices, np.random.default_rng(0))  # type: ignore[arg-type]
    assert devices.tolist() == before.tolist()


@pytest.mark.parametrize("name, options", ALL)
def test_every_assigner_keeps_its_contract(name: str, options: dict[str, Any]) -> None:
    sizes = [(1, 10), (5, 1), (1, 1), (2, 2), (6, 3), (4, 20)]
    for number, (num_edges, scheduled) in enumerate(sizes):
        fleet, devices = random_round(number, 30, num_edges, scheduled)
        before = np.array(fleet.gain)
        edges, again = (assign(name, fleet, devices, 3, **options) for _ in range(2))
        assert edges.shape == (scheduled,)
        assert edges.dtype == np.intp
        assert ((edges >= 0) & (edges < num_edges)).all()
        np.testing.assert_array_equal(edges, again)
        np.testing.assert_array_equal(fleet.gain, before)
    for wrong, fact in (([0, 30], "devices[1]"), ([], "empty")):  # tests/test_cost.py has all
        with refusal(ConfigError, fact):
            assign(name, fleet, wrong, **options)


@pytest.mark.parametrize("name", ["geographic", "best_gain", "hfel", "local_search", "random", "d3qn"])
def test_edges_that_are_down_are_taken_out_and_answers_mapped_back(name: str) -> None:
    fleet, devices = random_round(1, 30, 5, 20)
    up, rng = np.array([False, True, False, True, True]), np.random.default_rng(2)
    assert set(assign_among(build_assigner(name), up, fleet, WORK, devices, rng).tolist()) <= {1, 3, 4}
    if name == "geographic":
        nearest = assign_among(build_assigner(name), up, fleet, WORK, devices, rng)
        expected = np.array([1, 3, 4])[fleet.distance_m[devices][:, [1, 3, 4]].argmin(axis=1)]
        np.testing.assert_array_equal(nearest, expected)
        everywhere = assign_among(build_assigner(name), np.ones(5, dtype=bool), fleet, WORK, devices, rng)
        np.testing.assert_array_equal(everywhere, assign(name, fleet, devices))


def test_assigners_that_need_all_edges_refuse_fewer() -> None:
    fleet, devices = random_round(1, 30, 5, 9)
    up, policy = np.arange(5) != 2, build_assigner("d3qn", policy="paper_db")
    with pytest.raises(ConfigError, match=r"is for M = 5 edges, this fleet has 4; leave assignment\.policy out"):
        assign_among(policy, up, fleet, WORK, devices, np.random.default_rng(2))
    for assigner, words in ((policy, "M = 5 edges alone"), (build_assigner("home"), "'home' keeps each device")):
        with pytest.raises(ConfigError, match=words):
            check_any_edges(assigner)


BAD = [
    ("gain", (4, 2)),
    ("power_w", (6,)),
    ("samples", (6,)),
    ("cycles_per_sample", (6,)),
    ("max_cpu_hz", (6,)),
    ("edge_bandwidth_hz", (1,)),
    ("cloud_gain", (1,)),
    ("edge_power_w", (1,)),
]
CALLS = {
    "hfel": lambda fleet, devices: assign("hfel", fleet, devices),
    "local_search": lambda fleet, devices: assign("local_search", fleet, devices),
    "candidates": lambda fleet, devices: assign("local_search", fleet, devices, candidates=3),
    "d3qn": lambda fleet, devices: assign("d3qn", fleet, devices),
    "bound": lambda fleet, devices: lower_bound(fleet, WORK, devices),
    "brute force": lambda fleet, devices: brute_force(fleet, WORK, devices),
    "joint": lambda fleet, devices: allocate_round(fleet, WORK, devices, np.full(4, 2), coupling="joint"),
}
FLEET, DEVICES = random_round(0, 12, 3, 12)[0], np.array([1, 4, 6, 9])


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("name, index", BAD)
def test_a_bad_value_is_named_with_its_index_before_any_kernel_runs(call, name, index) -> None:
    for value in (np.nan, 0.0, -1.0, np.inf):
        array = getattr(FLEET, name).copy()
        array[index] = value
        with pytest.raises(ConfigError, match=rf"{name}\[{', '.join(map(str, index))}\]"):
            call(dataclasses.replace(FLEET, **{name: array}), DEVICES)


def test_an_infinite_joint_deadline_names_edge_and_device() -> None:
    gain = FLEET.gain.copy()
    gain[4] = 1e-310
    with pytest.raises(InfeasibleError, match=r"edge 2.*device 4"):
        allocate_round(dataclasses.replace(FLEET, gain=gain), WORK, DEVICES, np.full(4, 2), coupling="joint")


@pytest.mark.parametrize("name", ["hfel", "local_search", "d3qn"])
@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_the_coupling_reaches_the_assigners_that_search(name: str, coupling: str) -> None:
    config = load_config(None, [f"assignment.name={name}", f"allocation.coupling={coupling}"])
    assert configured_assigner(config).coupling == coupling
    assert build_assigner(name).coupling == "per_edge"  # the default
    section = config.assignment.model_copy(update={"options": {"coupling": "per_edge"}})
    assert configured_assigner(config.model_copy(update={"assignment": section})).coupling == "per_edge"


class Outside:
    """An assigner that is not built in and takes no settings."""

    def assign(self, fleet, work, devices, rng):
        return np.zeros(len(devices), dtype=np.intp)


def test_other_assigners_get_no_coupling(monkeypatch) -> None:
    table = registry._table("assigner") | {"outside": f"{__name__}:Outside"}
    monkeypatch.setattr(registry, "_table", lambda kind: table)
    for name in (*SIMPLE, "outside"):
        config = load_config(None, [f"assignment.name={name}", "allocation.coupling=joint"])
        assert not hasattr(configured_assigner(config), "coupling")


def test_per_edge_assignments_stay_the_same() -> None:
    """The digest is that of commit 6c93c38, in which the searches had no couplings."""
    digest = hashlib.sha256()
    for seed in range(6):
        fleet, devices = random_round(seed, 60, 4, 30)
        work = Workload(model_bits=448 * 8192, cloud_hop=bool(seed % 2))
        for name, options in (("hfel", {}), ("local_search", {"restarts": 1}), ("d3qn", {"polish_ms": "optimum"})):
            digest.update(assign(name, fleet, devices, seed, work, **options).astype(np.int8).tobytes())
    assert digest.hexdigest() == "6d1c1ac1cd0fc10c97bfd8a5c449b32b2bb59e2c0dc3a9fefa05a647a6741036"
