"""Task ``train_assigner``, from the sweep file to the policy and the logged curve."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path

import pytest

from hflray import metrics
from hflray.assignment.policy import load_policy
from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.sweep import expand, load_sweep
from hflray.sweep.tasks import Job, Result, Saved
from hflray.sweep.tasks.learning import SMALL_LEARNING, TrainAssignerTask
from hflray.tune import cli

FILE = Path(__file__).parents[3] / "tune_configs" / "fig5_assigner_learning.yaml"
TASK = TrainAssignerTask()
VALUES = {
    metrics.ASSIGNER_RETURN: 16.04,
    metrics.ASSIGNER_GREEDY_RETURN: 24.0,
    metrics.assigner_ratio("local_search"): 1.0871,
    metrics.WALL_LEARN_S: 61.7,
}


def test_progress_counts_seconds_or_steps() -> None:
    timed = load_config(None, ["learning.minutes=2"])
    assert TASK.progress(timed, 5000, VALUES)[:3] == (61, 120, "second")
    assert (TASK.total(timed), TASK.steps(timed)) == (120, 0)
    counted = load_config(None, ["learning.minutes=null", "learning.env_steps=8000"])
    done, total, unit, text = TASK.progress(counted, 5000, VALUES)
    assert (done, total, unit) == (5000, 8000, "step")
    assert (TASK.total(counted), TASK.steps(counted)) == (8000, 8000)
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


@pytest.mark.slow  # Ray and RLlib; the next test trains without them, and tests/tune keeps a policy
def test_a_sweep_writes_policies_and_curves(tmp_path, monkeypatch, ray_session) -> None:
    cache = f"learning.cache={tmp_path / 'fleets'}"
    arguments = [str(FILE), "--smoke", "--set", cache, "--results", str(tmp_path / "results")]
    monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    [folder] = (path.parent for path in (tmp_path / "results").glob("*/sweep.json"))
    [policy] = (folder / "policies").glob("*.safetensors")
    network, card = load_policy(policy)
    assert network.spec.features == "db"
    [journal] = (folder / "journal").glob("*.jsonl")
    points = [entry for entry in map(json.loads, journal.read_text().splitlines()) if "round" in entry]
    assert [entry["round"] for entry in points] == sorted(entry["round"] for entry in points)
    assert points[-1]["round"] == card["env_steps"] >= 2000
    assert {*metrics.LEARNING, metrics.assigner_ratio("hfel-100")} <= set(points[-1]["metrics"])


def test_a_run_without_tune_saves_its_final_state_and_continues_from_it(tmp_path) -> None:
    small = {**SMALL_LEARNING, "env_steps": 1000, "cache": str(tmp_path / "fleets")}
    settings = ["checkpoint.every=0", *(f"learning.{key}={json.dumps(value)}" for key, value in small.items())]
    config = load_config(None, settings)
    results: list[Result] = []
    for result in TASK.run(Job(config)):
        assert result.save is not None
        if result.due:
            result.save(tmp_path)
        results.append(result)
    assert [(result.due, result.last) for result in results] == [(True, True)]  # whatever checkpoint.every is
    assert str(results[0].note).startswith("10 fleets solved in")
    assert (tmp_path / "policy.safetensors").exists()
    longer = config.model_copy(update={"learning": config.learning.model_copy(update={"env_steps": 2000})})
    saved = Saved("one", lambda: contextlib.nullcontext(tmp_path))
    (after,) = TASK.run(Job(longer, saved=[saved]))
    assert after.note is None
    assert after.step >= 2000 > results[0].step
    # A damaged checkpoint is skipped for an earlier one; a whole one of another configuration is an error.
    shutil.copytree(tmp_path / "training", tmp_path / "newer" / "training")
    (arrays,) = (tmp_path / "newer").rglob("arrays.safetensors")
    whole = arrays.read_bytes()
    arrays.write_bytes(whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:])
    newer = Saved("one", lambda: contextlib.nullcontext(tmp_path / "newer"))
    (again,) = TASK.run(Job(longer, saved=[newer, saved]))
    assert again.note is not None
    assert again.note.endswith(f"remove it, or give another; going on after step {results[0].step}")
    assert again.metrics[metrics.ASSIGNER_LOSS] == after.metrics[metrics.ASSIGNER_LOSS]
    other = longer.model_copy(update={"learning": longer.learning.model_copy(update={"gamma": 0.5})})
    with pytest.raises(ConfigError, match="of another configuration"):
        next(TASK.run(Job(other, saved=[newer, saved])))
