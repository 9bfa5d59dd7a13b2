"""The learned assigner at inference: the shipped policy, its polish, and the messages about wrong policies."""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hflray.assignment import build_assigner, configured_assigner, d3qn
from hflray.assignment.features import feature_rows
from hflray.assignment.network import NetworkSpec, build_network
from hflray.assignment.policy import SHIPPED, load_policy, policy_path, save_policy, shipped
from hflray.assignment.search import SHORTLIST
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.physics.access import MeasuredAccess
from hflray.support.native import compiler
from tests.assignment.rounds import WORK, assign, objective
from tests.assignment.rounds import random_round as round_of
from tests.assignment.test_local_search import MoveClock

CARD = {"trained_on": {"num_scheduled": [5, 10], "num_edges": [3, 3]}, "note": "weights as drawn"}


def random_round(seed=0, scheduled=50, edges=5):
    return round_of(seed, 2 * scheduled, edges, scheduled)


def objective_of(name, fleet, devices, **options):
    return objective(fleet, devices, assign(name, fleet, devices, **options))


@pytest.fixture
def policy(tmp_path):
    torch.manual_seed(0)
    path = tmp_path / "policy.safetensors"
    save_policy(path, build_network(NetworkSpec("bilstm", "db", num_edges=3, hidden=8)), CARD)
    assert path.stat().st_mode & 0o777 == 0o644
    return path


def test_the_answer_is_the_networks_argmax(policy):
    fleet, devices = random_round(scheduled=8, edges=3)
    network, card = load_policy(policy)
    assert card == CARD
    with torch.no_grad():
        q = network(torch.from_numpy(feature_rows("db", fleet, WORK, devices)[0])[None])[0]
    rng = np.random.default_rng(0)
    state = rng.bit_generator.state
    edges = build_assigner("d3qn", policy=policy).assign(fleet, WORK, devices, rng)
    np.testing.assert_array_equal(edges, q.argmax(-1).numpy())
    assert edges.dtype == np.intp
    assert rng.bit_generator.state == state


@pytest.mark.parametrize("name", shipped())
def test_the_edges_of_each_shipped_policy_are_torchs_to_the_last_one(name):
    """Most fleets are answered by the pass in C; where two edges are close, torch is asked."""
    network, _ = load_policy(policy_path(name))
    assigner, answered, count = build_assigner("d3qn", policy=name), 0, 0
    any_number = assigner.fixed_edges is None
    sizes = [(50, 5), (10, 5), (100, 5), *([(30, 3), (20, 10), (1, 2), (120, 12)] if any_number else [])]
    for scheduled, edges in sizes:
        for seed in range(6):
            fleet, devices = random_round(3000 + seed, scheduled, edges)
            values, _ = feature_rows(assigner.spec.features, fleet, WORK, devices)
            with torch.no_grad(), d3qn.one_thread():
                expected = network(torch.from_numpy(values)[None])[0].argmax(-1).numpy()
            edges_of = assigner.assign(fleet, WORK, devices, np.random.default_rng(0))
            np.testing.assert_array_equal(edges_of, expected)
            count += 1
            answered += assigner._fast is not None and assigner._fast.edges(values) is not None
    if any_number and compiler():
        assert answered > 0.7 * count


@pytest.mark.parametrize(
    "scheduled, edges, largest", [(50, 5, 1.08), (10, 5, 1.12), (100, 5, 1.08), (30, 3, 1.1), (50, 8, 1.12)]
)
def test_the_shipped_policy_is_near_local_search(scheduled, edges, largest):
    ratios = []
    for seed in range(20):
        fleet, devices = random_round(1000 + seed, scheduled, edges)
        ratios.append(objective_of("d3qn", fleet, devices) / objective_of("local_search", fleet, devices))
    assert np.mean(ratios) < largest


def test_polish_to_an_optimum_is_no_worse_than_local_search():
    alone, polished, search = [], [], []
    for seed in range(10):
        fleet, devices = random_round(2000 + seed)
        alone.append(objective_of("d3qn", fleet, devices))
        polished.append(objective_of("d3qn", fleet, devices, polish_ms="optimum"))
        search.append(objective_of("local_search", fleet, devices))
    assert all(p <= a * (1 + 1e-9) for p, a in zip(polished, alone, strict=True))
    assert np.mean(polished) <= np.mean(search) * 1.005
    fleet, devices = random_round(2000)
    first = build_assigner("d3qn", polish_ms="optimum")
    one, two = (first.assign(fleet, WORK, devices, np.random.default_rng(s)) for s in (0, 1))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("polish_ms", [1, 1.5, 2])
def test_the_polish_keeps_its_budget(monkeypatch, polish_ms):
    """Each move takes a microsecond, and the polish checks the clock every `AT_ONCE` exchanges."""
    fleet, devices = random_round(3, scheduled=60, edges=3)
    clock = MoveClock(monkeypatch)
    monkeypatch.setattr(d3qn, "time", clock)
    assign("d3qn", fleet, devices, polish_ms=float(polish_ms))
    largest = 2 * 60 * 3 + SHORTLIST + d3qn.AT_ONCE  # the excess of one step; there are 1,770 exchanges
    assert polish_ms * 1000 <= clock.moves < polish_ms * 1000 + largest
    assert "exchange" in clock.answers


def test_the_shipped_policy_is_small_and_documented_and_needs_no_ray():
    assert SHIPPED.stat().st_size <= 3_000_000
    _, card = load_policy(SHIPPED)
    for key in ("trained_on", "seed", "env_steps", "git_commit", "results", "fine_tuned"):
        assert key in card
    assert (SHIPPED.parent / "any_deployment.md").read_text(encoding="utf-8").startswith("# ")
    code = (
        "import sys; from hflray.assignment import build_assigner; build_assigner('d3qn'); "
        "print([m for m in ('ray', 'mlflow', 'gymnasium') if m in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"


def test_another_number_of_edges_names_both_and_the_command(policy):
    fleet, devices = random_round(5, 8, 4)
    with pytest.raises(ConfigError, match=r"M = 3 edges, this fleet has 4.*fig5.*fleet.num_edges=4"):
        build_assigner("d3qn", policy=policy).assign(fleet, WORK, devices, np.random.default_rng(0))


def test_more_devices_than_trained_for_warn_once(policy, caplog):
    d3qn._warned.clear()
    fleet, devices = random_round(6, 12, 3)
    assigner = build_assigner("d3qn", policy=policy)
    with caplog.at_level(logging.WARNING, logger="hflray"):
        for _ in range(3):
            assigner.assign(fleet, WORK, devices, np.random.default_rng(0))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "num_scheduled = 12" in message
    assert "10" in message


def test_uploads_that_the_policy_does_not_see_warn_once(policy, caplog):
    """It answered by gains, on which no measured upload depends, and nothing said so."""
    d3qn._warned.clear()
    fleet, devices = random_round(6, 8, 3)
    measured = replace(fleet, access=MeasuredAccess())
    assigner = build_assigner("d3qn", policy=policy)
    with caplog.at_level(logging.WARNING, logger="hflray"):
        for each in (fleet, measured, measured):
            assigner.assign(each, WORK, devices, np.random.default_rng(0))
    (message,) = [record.getMessage() for record in caplog.records]
    assert "local_search sees the rates" in message


def test_a_file_that_is_missing_changed_cut_or_no_policy_is_refused(policy, tmp_path):
    with safe_open(policy, framework="pt") as reader:
        metadata = reader.metadata()
    tensors = load_file(policy)
    changed, cut, other = (tmp_path / f"{name}.safetensors" for name in ("changed", "cut", "other"))
    cut.write_bytes(policy.read_bytes()[:-100])
    tensors[sorted(tensors)[0]].view(-1)[0] += 1e-3
    save_file(tensors, changed, metadata=metadata)
    save_file({"x": torch.zeros(2)}, other)
    for path, words in (
        (tmp_path / "none.safetensors", r"none\.safetensors does not exist.*fig5_assigner_learning"),
        (changed, "checksum differs"),
        (cut, "cannot be read"),
        (other, "not a policy"),
    ):
        with pytest.raises(ConfigError, match=words):
            build_assigner("d3qn", policy=path)


@pytest.mark.parametrize("spec", [NetworkSpec("bilstm", "db", num_edges=3, hidden=8), NetworkSpec("shared", "db")])
def test_weights_that_give_nan_are_an_error(tmp_path, spec):
    network = build_network(spec)
    with torch.no_grad():
        network.value.bias.fill_(float("nan"))
    save_policy(tmp_path / "nan.safetensors", network, CARD)
    fleet, devices = random_round(7, 8, 3)
    with pytest.raises(ConfigError, match=r"devices\[0\].*no finite value"):
        build_assigner("d3qn", policy=tmp_path / "nan.safetensors").assign(
            fleet, WORK, devices, np.random.default_rng(0)
        )


def test_the_configuration_sets_policy_and_polish(policy):
    config = load_config(None, ["assignment.name=d3qn", f"assignment.policy={policy}", "assignment.polish_ms=optimum"])
    assigner = configured_assigner(config)
    assert assigner.path == policy
    assert assigner.polish_ms == float("inf")


def test_the_polish_minimises_the_objective_of_the_coupling():
    ratios = []
    for seed in range(6):
        fleet, devices = random_round(seed)
        joint, separate = (
            objective(fleet, devices, assign("d3qn", fleet, devices, polish_ms="optimum", coupling=c), coupling="joint")
            for c in ("joint", "per_edge")
        )
        ratios.append(joint / separate)
    assert np.mean(ratios) < 0.995
