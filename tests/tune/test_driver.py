"""`hflray.tune.driver`: a killed sweep continues bit for bit, and no round is lost or repeated in its results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run
from ray.tune.trainable.metadata import _TrainingRunMetadata

from hflray import metrics
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.sweep import expand, load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal, default_uri
from hflray.tune import stopping
from hflray.tune.callback import slim
from tests.disks import small_disk_at
from tests.servers import mlflow_server
from tests.tune import test_cli
from tests.tune.test_cli import call

pytestmark = pytest.mark.timeout(1200)  # the limit for a busy machine

run_in_process = test_cli.run_in_process  # a fixture
ROUNDS = 8
SWEEP = f"""
name: long
tracking: {{sinks: [mlflow, csv]}}
experiment:
  max_rounds: {ROUNDS}
  data: {{name: digits}}
  fleet: {{num_devices: 12, num_edges: 2}}
  scheduling: {{num_scheduled: 4, num_clusters: 5}}
  training: {{local_iterations: 5, edge_iterations: 5, batch_size: 4, backend: serial}}
sweep:
  scheduling.name: {{grid: [ikc, fedavg]}}
"""


LIVING = "world.dropout.rate_per_s: {grid: [0.0, 0.05]}"


@pytest.fixture
def sweep(tmp_path) -> Path:
    (tmp_path / "long.yaml").write_text(SWEEP)
    return tmp_path


def start(folder: Path, *arguments: str, stdout: Any = subprocess.PIPE, **settings: str) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "120"} | settings
    command = [sys.executable, "-m", "hflray.tune", *arguments]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=stdout, stderr=subprocess.STDOUT, text=True)
    started.append(process)
    return process


started: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def _no_sweep_outlives_its_test() -> Iterator[None]:
    yield
    while started:
        process = started.pop()
        process.kill()
        process.communicate()


def journal_rounds(folder: Path) -> dict[str, list[int]]:
    """Return the rounds in the journals by trial."""
    whole = {
        path.stem: path.read_text().rpartition("\n")[0].splitlines()
        for path in folder.glob("hflray_results/long-*/journal/*.jsonl")
    }
    entries = {name: map(json.loads, lines) for name, lines in whole.items()}
    return {name: [entry["round"] for entry in each if "round" in entry] for name, each in entries.items()}


def model_hashes(folder: Path, trial: str) -> dict[int, str]:
    (path,) = folder.glob("hflray_results/long-*")
    return {entry["round"]: entry["model_hash"] for entry in Journal(path).entries(trial) if "round" in entry}


def wait_for_round(folder: Path, index: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not any(index in rounds for rounds in journal_rounds(folder).values()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"round {index} was not reached within 400 s"
        time.sleep(0.05)


@cache
def reference_rounds(text: str) -> dict[str, list[RoundRecord]]:
    """Run the trials of a sweep file in a plain loop and return their rounds by name; cached for tests of one file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "long.yaml"
        path.write_text(text)
        return {trial.name: list(Experiment(trial.config)) for trial in expand(load_sweep(path))}


def check_complete(folder: Path, uri: str | None = None) -> None:
    """Check that journal, MLflow and CSV files have every round of every trial once, as in the reference run."""
    client = MlflowClient(uri or default_uri(folder / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    rounds = reference_rounds((folder / "long.yaml").read_text())
    assert set(runs) == set(rounds)
    for name, records in rounds.items():
        run = runs[name]
        assert run.info.status == "FINISHED"
        for metric in (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE):
            history = client.get_metric_history(run.info.run_id, metric)
            assert [m.step for m in history] == list(range(1, ROUNDS + 1))
            assert [m.value for m in history] == [record.metrics()[metric] for record in records]
        (path,) = folder.glob(f"hflray_results/long-*/csv/{name}.csv")
        table = pd.read_csv(path)
        assert table["round"].tolist() == list(range(1, ROUNDS + 1))
        for metric in (metrics.ACCURACY, metrics.TOTAL_OBJECTIVE):
            assert table[metric].tolist() == [record.metrics()[metric] for record in records]
        assert model_hashes(folder, name) == {record.round: record.model_hash for record in records}
        timelines = {record.round: record.timeline for record in records if record.deviates}
        paths = [*folder.glob(f"hflray_results/long-*/timelines/{name}.csv.gz")]
        assert len(paths) == bool(timelines)
        for path in paths:
            rows = pd.read_csv(path)
            tables = [pd.DataFrame({"round": n, **happens.table()}) for n, happens in timelines.items()]
            whole = pd.concat(tables, ignore_index=True)
            pd.testing.assert_frame_equal(rows, whole, check_exact=True, check_dtype=False)


def trial_processes(driver: int) -> Iterator[psutil.Process]:
    for process in psutil.Process(driver).children(recursive=True):
        if process.name().startswith("ray::ImplicitFunc"):
            yield process


@pytest.mark.slow  # tests/chaos/test_campaign.py kills a driver, and tests/damage/test_matrix.py reads the refusals
def test_a_killed_driver_continues_after_its_last_round(sweep, run_in_process) -> None:
    # The rounds are shorter, but not too short for the kill. The second trial's world is on, so it has a timeline.
    text = SWEEP.replace("batch_size: 4", "batch_size: 8")
    (sweep / "long.yaml").write_text(text.replace("scheduling.name: {grid: [ikc, fedavg]}", LIVING))
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 3, process)
    process.kill()
    process.wait()

    code, _, err = run_in_process("long.yaml")
    assert code == 2
    assert "is unfinished" in err
    assert "--fresh" in err
    assert len(err.splitlines()) == 1

    done = call("--resume", "long", cwd=sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    check_complete(sweep)
    code, _, err = run_in_process("--resume", "long")
    assert code == 2
    assert "no unfinished sweep" in err


@pytest.mark.slow
@pytest.mark.parametrize("index", [1, 2, 5, 7])
def test_a_driver_that_is_killed_at_any_round_continues(sweep, index: int) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, index, process)
    process.kill()
    process.wait()
    assert call("--resume", "long", cwd=sweep).returncode == 0
    check_complete(sweep)


def test_tune_keeps_little_of_an_ended_trial() -> None:
    """A trial of thousands leaves a few bytes in the driver and in the states that Tune saves."""
    data = _TrainingRunMetadata()
    values = {f"edge/{m}/delay_s": 1.5 for m in range(60)}
    data.last_result = {"trial_id": "a", "round": 2, "done": True, "metrics": values}
    for name, value in values.items():
        data.update_metric(f"metrics/{name}", value)
    invalidations: list[int] = []
    trial = SimpleNamespace(run_metadata=data, invalidate_json_state=lambda: invalidations.append(1))
    before = len(data.get_json_state())
    slim(trial)
    assert invalidations
    assert len(data.get_json_state()) < before / 10


@pytest.mark.slow
def test_a_resume_does_not_repeat_an_ended_trial(sweep) -> None:
    (sweep / "long.yaml").write_text(SWEEP + "tune: {max_concurrent: 1}\n")
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, ROUNDS, process)
    while not any('"end"' in path.read_text() for path in sweep.glob("hflray_results/long-*/journal/*.jsonl")):
        time.sleep(0.05)
    process.kill()
    process.wait()
    before = {path: path.read_text() for path in sweep.glob("hflray_results/long-*/journal/*.jsonl")}
    (ended,) = [path for path, text in before.items() if '"end"' in text]
    done = call("--resume", "long", cwd=sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ended.read_text() == before[ended]
    check_complete(sweep)


@pytest.mark.slow
def test_a_kill_while_the_rest_is_sent_leaves_no_run_without_its_model(sweep) -> None:
    """The sweep is taken back to the moment after its last round, when MLflow had the rounds and nothing more."""
    assert call("long.yaml", cwd=sweep).returncode == 0
    (path,) = sweep.glob("hflray_results/long-*/sweep.json")
    folder = SweepFolder.load(path.parent)
    folder.finished = False
    folder.save()
    uri = default_uri(sweep / "hflray_results")
    folders = []
    for run in runs_by_name(uri).values():
        MlflowClient(uri).update_run(run.info.run_id, status="RUNNING")
        folders.append(Path(run.info.artifact_uri.removeprefix("file://")))
        shutil.rmtree(folders[-1] / "model")
        (folders[-1] / "rounds.parquet").unlink()
    done = call("--resume", "long", cwd=sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    check_complete(sweep)
    for artifacts in folders:
        assert (artifacts / "model" / "MLmodel").exists()
        assert len(pd.read_parquet(artifacts / "rounds.parquet")) == ROUNDS
    assert SweepFolder.load(path.parent).finished


@pytest.mark.slow
def test_a_killed_trial_restarts_from_its_checkpoint(sweep) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 3, process)
    next(trial_processes(process.pid)).kill()
    output, _ = process.communicate(timeout=600)
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
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    check_complete(sweep)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_sweep_prints_how_to_continue(sweep, number: signal.Signals) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 2, process)
    process.send_signal(number)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 130, output
    assert "python -m hflray.tune --resume long-" in output
    assert "Traceback" not in output
    assert call("--resume", "long", cwd=sweep).returncode == 0
    check_complete(sweep)


@pytest.mark.slow
def test_a_search_makes_its_trials_while_it_runs(tmp_path) -> None:
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


SMALL = """
name: long
experiment:
  max_rounds: 6
  data: {name: synthetic, samples_per_device: [20, 40]}
  fleet: {num_devices: 12, num_edges: 2}
  scheduling: {name: ikc, num_scheduled: 4}
  assignment: {name: geographic}
  training: {local_iterations: 1, edge_iterations: 1, batch_size: 16, backend: serial}
"""


def runs_by_name(uri: str) -> dict[str, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    return {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}


@pytest.mark.slow
def test_trials_that_are_stopped_early_show_the_reason(tmp_path) -> None:
    """ASHA ends two trials at its rung and a stop rule ends a third. A fourth diverges without effect on the others."""
    text = SMALL.replace("scheduling: {name: ikc", "scheduling: {name: fedavg")
    text += "sweep:\n  training.learning_rate: {grid: [0.05, 0.00001, 0.000001, 1.0e+20]}\n"
    text += (
        "tune:\n  max_concurrent: 1\n  early_stopping: {grace_rounds: 2, reduction: 2, metric: test_loss, mode: min}\n"
    )
    (tmp_path / "long.yaml").write_text(text + "  stop: {total/objective: 10}\n")
    done = call("long.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "⊣ stopped early" in done.stdout
    runs = {
        run.data.params["training.learning_rate"]: run
        for run in runs_by_name(default_uri(tmp_path / "hflray_results")).values()
    }
    assert {rate: run.info.status for rate, run in runs.items()} == {
        "0.05": "FINISHED", "1e-05": "FINISHED", "1e-06": "FINISHED", "1e+20": "FAILED",
    }  # fmt: skip
    stopped = {rate: run.data.tags.get("hflray.stopped") for rate, run in runs.items()}
    assert stopped["1e-05"] == stopped["1e-06"] == "asha after round 2"
    best = runs["0.05"].data.metrics[metrics.TOTAL_OBJECTIVE]
    last = len(
        MlflowClient(default_uri(tmp_path / "hflray_results")).get_metric_history(
            runs["0.05"].info.run_id, metrics.ACCURACY
        )
    )
    assert best >= 10
    assert 2 < last < 6
    assert stopped["0.05"] == f"total/objective reached 10 in round {last}"
    assert stopped["1e+20"] is None
    for rate, tag in stopped.items():
        if tag:
            assert any(
                line.endswith(f"stopped early: {tag}") and f"={rate}" in line for line in done.stdout.splitlines()
            )
    # A sweep whose trials were stopped early is finished, so it cannot be resumed.
    assert call("--resume", "long", cwd=tmp_path).returncode == 2
    again = subprocess.run(
        [sys.executable, "-m", "hflray.compare", "long"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert again.stdout.count("2 ⊣") == 2


@pytest.mark.slow
def test_a_population_continues_from_its_best(tmp_path) -> None:
    """The worst trials adopt the state of the best with changed settings."""
    text = (
        SMALL
        + "sweep:\n  training.learning_rate: {loguniform: [0.0001, 0.1]}\n"
        + "  training.batch_size: {choice: [8, 16, 32]}\n"
    )
    (tmp_path / "long.yaml").write_text(text + "tune: {samples: 4, population: {every: 2, replaced: 0.5}}\n")
    done = call("long.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    uri = default_uri(tmp_path / "hflray_results")
    runs = runs_by_name(uri)
    trials = {trial.name: trial for trial in expand(load_sweep(tmp_path / "long.yaml"))}
    assert set(runs) == set(trials)
    changes = {name: json.loads(run.data.tags.get("hflray.population", "[]")) for name, run in runs.items()}
    own = {name: [c for c in entries if c["after_round"] in (2, 4)] for name, entries in changes.items()}
    assert sum(f"{name}: adopts the state of " in done.stdout for name in trials) >= 2
    assert all(len(entries) == len(changes[name]) for name, entries in own.items())
    (folder,) = tmp_path.glob("hflray_results/long-*")
    exchanges = {name: {e["exchange"]: e for e in Journal(folder).entries(name) if "exchange" in e} for name in trials}
    for name, run in runs.items():
        assert run.info.status == "FINISHED"
        history = MlflowClient(uri).get_metric_history(run.info.run_id, metrics.ACCURACY)
        assert [metric.step for metric in history] == list(range(1, 7))
        for change in changes[name]:
            for key, (old, new) in change["changed"].items():
                assert key in ("training.learning_rate", "training.batch_size")
                assert old != new
    for name, entries in changes.items():  # an exchange is in the journal, and its donor had the settings that changed
        assert {change["after_round"] for change in entries} <= set(exchanges[name])
        for change in entries:
            line = exchanges[name][change["after_round"]]
            earlier = [e for n, e in exchanges[line["from"]].items() if n < change["after_round"]]
            values = earlier[-1]["values"] if earlier else trials[line["from"]].values
            assert change["from"] == line["from"]
            for key, (old, new) in change["changed"].items():
                assert (old, new) == (values[key], line["values"][key])
            assert 0.0001 <= line["values"]["training.learning_rate"] <= 0.1
            assert line["values"]["training.batch_size"] in (8, 16, 32)


@pytest.mark.slow
@pytest.mark.parametrize("down_s", [30])
def test_a_server_that_is_down_for_a_while_gets_every_round_once(sweep, down_s: float) -> None:
    with mlflow_server(sweep) as server:
        process = start(sweep, "long.yaml", "--tracking-uri", server.uri)
        wait_for_round(sweep, 2, process)
        server.stop()
        stopped = time.monotonic()
        before = sum(map(len, journal_rounds(sweep).values()))
        time.sleep(down_s)
        assert process.poll() is None or process.returncode == 0
        after = sum(map(len, journal_rounds(sweep).values()))
        assert after > before  # trials do not wait for the server
        server.start()
        assert time.monotonic() - stopped > down_s
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        (folder,) = sweep.glob("hflray_results/long-*")
        if "has not received everything" in output:
            sync(folder)
        check_complete(sweep, server.uri)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Mount a file system of 40 MB and return its folder."""
    with small_disk_at(tmp_path / "disk", "40m") as place:
        yield place


@pytest.mark.slow
def test_a_server_with_a_full_disk_loses_no_round(sweep, small_disk) -> None:
    with mlflow_server(sweep, store=small_disk) as server:
        process = start(sweep, "long.yaml", "--tracking-uri", server.uri)
        wait_for_round(sweep, 2, process)
        with (small_disk / "ballast").open("wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(2**16))
                file.flush()
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        assert "does not answer" in output
        assert "python -m hflray.tracking sync" in output
        (folder,) = sweep.glob("hflray_results/long-*")
        assert folder.joinpath("sweep.json").exists()
        (small_disk / "ballast").unlink()
        sync(folder)
        check_complete(sweep, server.uri)


def sync(folder: Path) -> None:
    """Run the command of the closing message."""
    command = [sys.executable, "-m", "hflray.tracking", "sync", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "everything is in MLflow" in done.stdout


@pytest.mark.slow
def test_the_first_interrupt_saves_the_round_and_the_second_stops_at_once(tmp_path) -> None:
    """Checkpoints are due only every 100 rounds, so that only Ctrl-C can have saved the states."""
    (tmp_path / "long.yaml").write_text(SWEEP.replace("sweep:", "  checkpoint: {every: 100}\nsweep:"))
    process = start(tmp_path, "long.yaml")
    wait_for_round(tmp_path, 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 130, output
    assert stopping.MESSAGE in " ".join(output.split())
    reached = [int(path.name) for path in tmp_path.glob("hflray_results/long-*/checkpoints/*/*")]
    assert min(reached) >= 1
    assert max(reached) >= 2

    process = start(tmp_path, "--resume", "long")
    wait_for_round(tmp_path, max(reached) + 1, process)
    before = journal_rounds(tmp_path)
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "python -m hflray.tune --resume long-" in output
    for name, rounds in journal_rounds(tmp_path).items():
        assert max(rounds, default=0) <= max(before.get(name, []), default=0) + 2
    assert call("--resume", "long", cwd=tmp_path).returncode == 0
    check_complete(tmp_path)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_skipped_for_an_earlier_one(sweep) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 4, process)
    process.kill()
    process.wait()
    for path in sweep.glob("hflray_results/long-*/checkpoints/*/*"):
        path.write_bytes(path.read_bytes()[:1000])
    done = call("--resume", "long", cwd=sweep)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its checksum differs" in done.stdout
    assert "starting from round 1" in done.stdout
    check_complete(sweep)


@pytest.mark.slow
def test_a_second_process_cannot_run_the_same_sweep(sweep) -> None:
    process = start(sweep, "long.yaml")
    wait_for_round(sweep, 1, process)
    second = call("--resume", "long", cwd=sweep)
    assert second.returncode == 2
    assert f"process {process.pid} is running this sweep" in second.stderr
    assert len(second.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_missing_server_is_an_error_with_require_tracking(sweep) -> None:
    done = call("long.yaml", "--tracking-uri", "http://127.0.0.1:9", "--require-tracking", cwd=sweep)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "tracking.uri: cannot open 'http://127.0.0.1:9'" in done.stderr


OWN = '''
import numpy as np
from hflray.scheduling import Scheduler


class InTurn(Scheduler):
    """The next H devices in turn."""

    position = 0

    def __init__(self, step=1, **base):
        super().__init__(**base)
        self.step = step

    def schedule(self, context):
        chosen = (self.position + self.step * np.arange(self.num_scheduled)) % self.num_devices
        self.position = int(chosen[-1] + 1)
        return np.sort(chosen)

    def state_dict(self):
        return super().state_dict() | {"position": self.position}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.position = state["position"]


class First:
    """Assign every device to the first edge."""

    def assign(self, fleet, work, devices, rng):
        return np.zeros(len(devices), dtype=np.intp)


class Lazy(First):
    """The first answer, which is that of the trial before the sweep starts, is right."""

    asked = 0

    def assign(self, fleet, work, devices, rng):
        self.asked += 1
        if self.asked > 1:
            return fleet.no_such_thing
        return super().assign(fleet, work, devices, rng)
'''


@pytest.mark.slow  # tests/sweep/test_results.py holds what a resume does with texts that were changed or are gone
def test_a_sweep_with_files_of_the_users_own_is_killed_and_goes_on_with_their_texts(tmp_path, run_in_process) -> None:
    """The trials train with actors in processes of their own; the file is changed, and then gone, before the resume."""
    (tmp_path / "ideas").mkdir()
    (tmp_path / "ideas" / "own.py").write_text(OWN)
    text = SWEEP.replace(", backend: serial", ", num_actors: 1").replace(
        "sweep:\n  scheduling.name: {grid: [ikc, fedavg]}",
        "  scheduling: {name: 'own.py:InTurn', num_scheduled: 4, options: {step: 2}}\n"
        "sweep:\n  assignment.name: {grid: ['own.py:First', 'own.py:Lazy', geographic]}",
    )
    text = text.replace("  scheduling: {num_scheduled: 4, num_clusters: 5}\n", "")
    text = text.replace("batch_size: 4", "batch_size: 16")  # shorter rounds
    (tmp_path / "ideas" / "long.yaml").write_text(text)
    trials = expand(load_sweep(tmp_path / "ideas" / "long.yaml"))
    process = start(tmp_path, "ideas/long.yaml")
    wait_for_round(tmp_path, 2, process)
    process.kill()
    process.wait()

    (tmp_path / "ideas" / "own.py").write_text(OWN + "# changed\n")
    then, now = (hashlib.sha256(each.encode()).hexdigest()[:12] for each in (OWN, OWN + "# changed\n"))
    for arguments in (["ideas/long.yaml"], ["--resume", "long"]):
        code, _, err = run_in_process(*arguments)
        assert (code, len(err.splitlines())) == (2, 1)
        assert then in err
        assert now in err
    (tmp_path / "ideas" / "own.py").unlink()
    code, _, err = run_in_process("--resume", "long")
    assert (code, "--trust" in err) == (2, True)
    done = call("--resume", "long", "--trust", cwd=tmp_path)
    line = 1 + OWN.splitlines().index("            return fleet.no_such_thing")
    assert done.returncode == 1
    assert f"failed: own.py:{line}: AttributeError: 'Fleet' object has no attribute 'no_such_thing'" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr

    client = MlflowClient(default_uri(tmp_path / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert [name.partition("λ1-")[2] for name in runs if runs[name].info.status == "FINISHED"]
    for trial in trials:
        run = runs[trial.name]
        assert run.data.tags["reference/scheduler"] == trial.config.scheduling.name
        path = client.download_artifacts(run.info.run_id, "references/own.py", str(tmp_path))
        assert Path(path).read_text() == OWN
        if "Lazy" in trial.name:
            continue
        serial = trial.config.training.model_copy(update={"backend": "serial"})
        hashes = model_hashes(tmp_path, trial.name)
        records = {r.round: r.model_hash for r in Experiment(trial.config.model_copy(update={"training": serial}))}
        assert ROUNDS in hashes
        assert hashes == {n: records[n] for n in hashes}
    (copy,) = tmp_path.glob("hflray_results/long-*/references/own.py")
    assert copy.read_text() == OWN
