"""Task ``train_assigner``: from the sweep file to the policy and the logged curve."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from hflray import metrics
from hflray.assignment.policy import load_policy
from hflray.config import load_config
from hflray.sweep import expand, load_sweep
from hflray.tune import cli
from hflray.tune.learning import POLICIES, progress_of, total_of

FILE = Path(__file__).parents[2] / "tune_configs" / "fig5_assigner_learning.yaml"
VALUES = {
    metrics.ASSIGNER_RETURN: 16.04,
    metrics.ASSIGNER_GREEDY_RETURN: 24.0,
    metrics.assigner_ratio("local_search"): 1.0871,
    metrics.WALL_LEARN_S: 61.7,
}


def test_progress_counts_seconds_or_steps() -> None:
    timed = load_config(None, ["learning.minutes=2"])
    assert progress_of(timed, 5000, VALUES)[:3] == (61, 120, "second")
    assert total_of(timed) == 120
    counted = load_config(None, ["learning.minutes=null", "learning.env_steps=8000"])
    done, total, unit, text = progress_of(counted, 5000, VALUES)
    assert (done, total, unit) == (5000, 8000, "step")
    assert total_of(counted) == 8000
    assert text == "return 16.0, held-out 24.0, objective 1.087 × local search"


def test_the_shipped_sweep_compares_features_and_teachers() -> None:
    trials = {trial.name: trial.config for trial in expand(load_sweep(FILE))}
    assert len(trials) == 6
    assert [name.split("-start")[0] for name in trials] == [
        "H50-λ1-db-hfel-300-s0",
        "H50-λ1-db-hfel-300-s1",
        "H50-λ1-db-hfel-300-s2",
        "H50-λ1-paper-hfel-300-s0",
        "H50-λ1-db-hfel-300-s0",
        "H50-λ1-db-local_search-s0",
    ]


def test_a_sweep_leaves_policies_and_curves(tmp_path, monkeypatch, ray_session) -> None:
    cache = f"learning.cache={tmp_path / 'fleets'}"
    arguments = [str(FILE), "--smoke", "--set", cache, "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    [folder] = (path.parent for path in (tmp_path / "results").glob("*/sweep.json"))
    [policy] = (folder / POLICIES).glob("*.safetensors")
    network, card = load_policy(policy)
    assert network.spec.features == "db"
    [journal] = (folder / "journal").glob("*.jsonl")
    points = [entry for entry in map(json.loads, journal.read_text().splitlines()) if "round" in entry]
    assert [entry["round"] for entry in points] == sorted(entry["round"] for entry in points)
    assert points[-1]["round"] == card["env_steps"] >= 2000
    assert {*metrics.LEARNING, metrics.assigner_ratio("hfel-100")} <= set(points[-1]["metrics"])
