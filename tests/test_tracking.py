"""hflray.tracking: runs in MLflow as the design names them, and a journal that needs no server."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hflray.config import load_config
from hflray.errors import ConfigError
from hflray.tracking import Tracker, default_uri, environment, git_commit
from tests.conftest import small_config


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One database for the module: making it takes MLflow seconds."""
    return tmp_path_factory.mktemp("results")


def open_tracker(results, sweep: str) -> Tracker:
    return Tracker(default_uri(results), "tests", sweep, results / sweep)


def test_a_run_holds_params_metrics_tags_and_artifacts(results, tmp_path) -> None:
    config = small_config("cost.delay_weight=0.5")
    tracker = open_tracker(results, "one")
    tracker.start("t1", "a-readable-name", config, {"hflray.trial": "t1"})
    tracker.round("t1", 1, {"accuracy": 0.25, "round/delay_s": 3.0, "edge/0/devices": 2.0})
    tracker.round("t1", 2, {"accuracy": 0.5, "round/delay_s": math.inf})
    tracker.finish("t1")
    tracker.close()

    client = MlflowClient(default_uri(results))
    run = client.get_run(tracker.run_ids()[0])
    assert run.info.run_name == "a-readable-name"
    assert run.info.status == "FINISHED"
    assert run.data.params["cost.delay_weight"] == "0.5"
    assert run.data.params["scheduling.num_scheduled"] == "6"
    assert run.data.params["fleet.power_dbm"] == "[0.0, 23.0]"
    assert run.data.tags["hflray.sweep"] == "one"
    assert run.data.tags["hflray.scheduler"] == "ikc"
    assert "mlflow.parentRunId" not in run.data.tags
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/delay_s")] == [1]

    names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert names == {"config.yaml", "environment.json"}
    path = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert load_config(path) == config
    saved = json.loads(Path(client.download_artifacts(run.info.run_id, "environment.json", str(tmp_path))).read_text())
    assert {"git_commit", "python", "cpu", "torch", "ray", "numpy"} <= set(saved)


def test_a_failed_run_says_why(results) -> None:
    tracker = open_tracker(results, "two")
    tracker.start("t1", "bad", small_config(), {})
    tracker.finish("t1", error="round 1: the weights are not finite")
    run = MlflowClient(default_uri(results)).get_run(tracker.run_ids()[0])
    assert run.info.status == "FAILED"
    assert run.data.tags["hflray.error"] == "round 1: the weights are not finite"


def test_a_server_that_fails_costs_a_warning_and_nothing_is_lost(results, monkeypatch, caplog) -> None:
    tracker = open_tracker(results, "three")
    tracker.start("t1", "patient", small_config(), {})
    sent = tracker._client.log_batch

    def down(*_: object, **__: object) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(tracker._client, "log_batch", down)
    for step in (1, 2, 3):
        tracker.round("t1", step, {"accuracy": step / 10})
    tracker.finish("t1")
    assert "nobody there" in caplog.text
    assert caplog.text.count("does not answer") == 1  # left alone for a while after the first failure
    monkeypatch.setattr(tracker._client, "log_batch", sent)
    tracker.close()
    client = MlflowClient(default_uri(results))
    history = client.get_metric_history(tracker.run_ids()[0], "accuracy")
    assert [m.step for m in history] == [1, 2, 3]
    assert client.get_run(tracker.run_ids()[0]).info.status == "FINISHED"
    lines = [json.loads(line) for line in (results / "three" / "journal" / "patient.jsonl").read_text().splitlines()]
    assert [line.get("round") for line in lines] == [None, 1, 2, 3, None]


def test_a_store_that_cannot_be_opened_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri: .*http://127.0.0.1:9") as error:
        Tracker("http://127.0.0.1:9", "tests", "x", tmp_path / "x")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_the_commit_is_known_in_a_checkout_only(tmp_path) -> None:
    assert git_commit(tmp_path) == "unknown"
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert git_commit(tmp_path) == head
    assert environment()["torch"].startswith("2.13")
