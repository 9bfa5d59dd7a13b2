"""`hflray.tune.driver`: a killed sweep continues bit for bit, and no round is lost or repeated in its results.

The chaos campaign (tests/chaos) kills drivers, trials, actors and servers at any write, and tests/damage reads what a
resume says of damage.
"""

from __future__ import annotations

import hashlib
import json
import os
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
import pytest
from mlflow import MlflowClient

from hflray import metrics
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import expand, load_sweep
from hflray.tracking import Journal, default_uri
from hflray.tune import stopping
from hflray.tune.driver import adopt_older
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


def check_complete(folder: Path) -> None:
    """Check that journal, MLflow and CSV files have every round of every trial once, as in the reference run."""
    client = MlflowClient(default_uri(folder / "hflray_results"))
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
def test_a_finished_sweep_goes_on_with_more_rounds_to_the_same_bits(sweep) -> None:
    for arguments in (("long.yaml", "--set", "max_rounds=3"), ("--resume", "long", "--set", f"max_rounds={ROUNDS}")):
        done = call(*arguments, cwd=sweep)
        assert done.returncode == 0, done.stdout + done.stderr
    check_complete(sweep)
    again = call("--resume", "long", cwd=sweep)
    assert again.returncode == 2


@pytest.mark.slow
def test_the_first_interrupt_saves_the_round_and_the_second_stops_at_once(tmp_path) -> None:
    """Checkpoints are due only every 100 rounds, so that only Ctrl-C can have saved the states."""
    (tmp_path / "long.yaml").write_text(SWEEP.replace("sweep:", "  checkpoint: {every: 100}\nsweep:"))
    process = start(tmp_path, "long.yaml")
    wait_for_round(tmp_path, 2, process)
    process.send_signal(signal.SIGTERM)
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


def test_checkpoints_of_hflray_0_1_and_0_2_are_saved_by_their_step_and_damaged_ones_are_left_out(tmp_path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path, place=str(tmp_path))
    contents = {
        "checkpoint_000000": ("state/state.json", {"round": 3}),
        "checkpoint_000001": ("state/state.json", {"round": 4}),
        "checkpoint_000002": ("state/state.json", {}),
        "checkpoint_000003": ("training/training.json", {"env_steps": 9000}),
    }
    for name, (file, content) in contents.items():
        path: Path = tmp_path / "t" / name / file
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    adopt_older(folder, "t")
    saved = Checkpoints(str(tmp_path), "t")
    assert saved.rounds() == [9000, 4]
    with saved.open(4) as opened:
        assert json.loads((opened / "state" / "state.json").read_text()) == {"round": 4}
    saved.save(9001, lambda scratch: None)
    adopt_older(folder, "t")  # those of today are not replaced
    assert saved.rounds() == [9001, 9000]
    adopt_older(folder, "another")
