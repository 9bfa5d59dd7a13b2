"""hflray.tune.driver: what is killed goes on, bit for bit, with nothing lost and nothing twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from mlflow import MlflowClient

from hflray import metrics
from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep
from hflray.tracking import default_uri
from tests.tune.test_cli import call

ROUNDS = 8
SWEEP = f"""
name: long
experiment:
  max_rounds: {ROUNDS}
  data: {{name: digits}}
  fleet: {{num_devices: 12, num_edges: 2}}
  scheduling: {{num_scheduled: 4, num_clusters: 5}}
  training: {{local_iterations: 5, edge_iterations: 5, batch_size: 4, backend: serial}}
sweep:
  scheduling.name: {{grid: [ikc, fedavg]}}
"""


@pytest.fixture
def sweep(tmp_path) -> Path:
    (tmp_path / "long.yaml").write_text(SWEEP)
    return tmp_path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "120"}
    command = [sys.executable, "-m", "hflray.tune", *arguments]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def rounds_seen(folder: Path) -> dict[str, list[int]]:
    """Rounds in the journals, by trial."""
    return {
        path.stem: [json.loads(line).get("round") for line in path.read_text().splitlines() if '"round"' in line]
        for path in folder.glob("hflray_results/long-*/journal/*.jsonl")
    }


def wait_for_round(folder: Path, index: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not any(index in seen for seen in rounds_seen(folder).values()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no round in two minutes"
        time.sleep(0.05)


def check_complete(folder: Path) -> None:
    """Every trial has every round once, in MLflow as in the unbroken run."""
    client = MlflowClient(default_uri(folder / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    trials = expand(load_sweep(folder / "long.yaml"))
    assert set(runs) == {trial.name for trial in trials}
    for trial in trials:
        run = runs[trial.name]
        assert run.info.status == "FINISHED"
        records = list(Experiment(trial.config))
        for name in (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE):
            history = client.get_metric_history(run.info.run_id, name)
            assert [m.step for m in history] == list(range(1, ROUNDS + 1))
            assert [m.value for m in history] == [record.metrics()[name] for record in records]
        (result,) = folder.glob(f"hflray_results/long-*/{trial.name}/result.json")
        hashes = {e["round"]: e["model_hash"] for e in map(json.loads, result.read_text().splitlines())}
        assert hashes == {record.round: record.model_hash for record in records}


def trial_processes(driver: int) -> Iterator[psutil.Process]:
    for process in psutil.Process(driver).children(recursive=True):
        if process.name().startswith("ray::ImplicitFunc"):
            yield process


def test_a_killed_driver_goes_on_where_it_was(sweep) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 3, process)
    process.kill()
    process.wait()

    again = call("long.yaml", cwd=sweep)
    assert again.returncode == 2
    assert "is unfinished" in again.stderr
    assert "--fresh" in again.stderr
    assert len(again.stderr.splitlines()) == 1

    done = call("--resume", "long", cwd=sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    check_complete(sweep)
    finished = call("--resume", "long", cwd=sweep)
    assert finished.returncode == 2
    assert "no unfinished sweep" in finished.stderr


@pytest.mark.slow
@pytest.mark.parametrize("index", [1, 2, 5, 7])
def test_a_driver_killed_at_any_round(sweep, index: int) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, index, process)
    process.kill()
    process.wait()
    assert call("--resume", "long", cwd=sweep).returncode == 0
    check_complete(sweep)


@pytest.mark.slow
def test_a_killed_trial_starts_again_from_its_checkpoint(sweep) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 3, process)
    next(trial_processes(process.pid)).kill()
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    check_complete(sweep)


@pytest.mark.slow
def test_a_killed_actor_costs_a_round_at_most(sweep) -> None:
    (sweep / "long.yaml").write_text(SWEEP.replace("backend: serial", "backend: ray"))
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 2, process)
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name().startswith("ray::DeviceWorker"):
            child.kill()
            break
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    check_complete(sweep)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stopping_says_how_to_go_on(sweep, how: signal.Signals) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 2, process)
    process.send_signal(how)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "python -m hflray.tune --resume long-" in output
    assert "Traceback" not in output
    assert call("--resume", "long", cwd=sweep).returncode == 0
    check_complete(sweep)


@pytest.mark.slow
def test_a_search_makes_its_trials_as_it_goes(tmp_path) -> None:
    text = SWEEP.split("sweep:")[0].replace(f"max_rounds: {ROUNDS}", "max_rounds: 3\n  target_accuracy: 0.7")
    text += "sweep:\n  scheduling.num_scheduled: {randint: [2, 6]}\n  scheduling.name: {choice: [ikc, fedavg]}\n"
    (tmp_path / "long.yaml").write_text(text + "tune: {samples: 3, search: {metric: objective_to_target}}\n")
    done = call("long.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    client = MlflowClient(default_uri(tmp_path / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert len(runs) == 3
    assert all(run.info.status == "FINISHED" for run in runs)
    assert {int(run.data.params["scheduling.num_scheduled"]) for run in runs} <= set(range(2, 7))
