"""`hflray.tune.cli`: the command, end to end with Ray Tune and MLflow, and its message for every mistake."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import mlflow.pytorch
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from rich.console import Console

from hflray import metrics
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.models.vector import to_vector
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import expand, load_sweep, preflight
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.results import new_folder
from hflray.sweep.tasks import Job, find_task
from hflray.tracking import Journal, Tracker, default_uri
from hflray.tune import cli
from tests.conftest import own_module, refusals, says

SWEEP = Path(__file__).with_name("tiny.yaml").read_text(encoding="utf-8")


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m hflray.tune`` as a user would, in an empty folder, without a terminal."""
    root = str(Path(cli.__file__).parents[2])
    env = os.environ | {"PYTHONPATH": root, "COLUMNS": "100"}
    command = [sys.executable, "-m", "hflray.tune", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=800, check=False)


def test_a_shared_machine_lends_one_cpu_and_a_cluster_none(tmp_path, run_in_process, monkeypatch) -> None:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    lent = call("tiny.yaml", "--dry-run", "--cpus", "1", cwd=tmp_path)
    assert lent.returncode == 0, lent.stderr
    assert says(lent.stdout, "1 CPU,")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    code, _, err = run_in_process("tiny.yaml", "--cpus", "1")
    assert code == 2
    assert says(err, "--cpus", "10.0.0.1:6379", "leave it out")


def test_a_sweep_end_to_end_with_one_trial_that_diverges(tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    done = call("tiny.yaml", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "round 1, edge iteration 0, device" in done.stdout
    assert "lower training.learning_rate" in done.stdout
    assert f"mlflow ui --backend-store-uri sqlite:///{tmp_path}/hflray_results/mlflow.db" in done.stdout
    assert "/#/compare-runs?runs=" in done.stdout
    assert "digits has 1438 training samples" in done.stdout
    noise = ("Configuration for experiment", "INFO", "WARNING", "tensorboard")
    assert not [line for line in done.stdout.splitlines() if any(word in line for word in noise)]

    client = MlflowClient(default_uri(tmp_path / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = {run.data.params["training.learning_rate"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {"0.01", "1e+20"}
    assert runs["1e+20"].info.status == "FAILED"
    assert (
        "not finite" in runs["1e+20"].data.tags["hflray.error"] or "as large" in runs["1e+20"].data.tags["hflray.error"]
    )
    good = runs["0.01"]
    assert good.info.status == "FINISHED"
    edges = {metrics.edge_metric(m, quantity) for m in (0, 1) for quantity in ("delay_s", "energy_j", "devices")}
    clustering = {metrics.CLUSTERING_ARI, metrics.CLUSTERING_DELAY_S, metrics.CLUSTERING_ENERGY_J}
    assert set(good.data.metrics) == set(metrics.PER_ROUND) | edges | clustering
    accuracies = client.get_metric_history(good.info.run_id, metrics.ACCURACY)
    assert [metric.step for metric in accuracies] == [1, 2]
    artifacts = {artifact.path for artifact in client.list_artifacts(good.info.run_id)}
    assert artifacts == {"config.yaml", "environment.json", "rounds.parquet", "devices.parquet", "model"}
    (dataset_input,) = good.inputs.dataset_inputs
    assert dataset_input.dataset.name == "digits"

    # A loop in this process gives the same bits as Tune's run over actors.
    overrides = ["training.learning_rate=0.01", "scheduling.name=ikc", "training.backend=serial"]
    (trial,) = expand(load_sweep(tmp_path / "tiny.yaml", overrides))
    reference = Experiment(trial.config)
    records = list(reference)
    assert [metric.value for metric in accuracies] == [record.accuracy for record in records]
    (path,) = (tmp_path / "hflray_results").glob("tiny-*/journal/digits-*learning_rate=0.01.jsonl")
    entries = Journal(path.parents[1]).entries(path.stem)
    assert [e["model_hash"] for e in entries if "round" in e] == [record.model_hash for record in records]
    assert Checkpoints(str(path.parents[1]), path.stem).rounds() == [2, 1]

    # The logged tables and the logged model agree with the loop.
    copies = tmp_path / "copies"
    copies.mkdir()
    table = pd.read_parquet(client.download_artifacts(good.info.run_id, "rounds.parquet", str(copies)))
    assert table[metrics.ACCURACY].tolist() == [record.accuracy for record in records]
    assert [row.tolist() for row in table["edges"]] == [record.assignment.tolist() for record in records]
    assert [row.tolist() for row in table["cpu_hz"]] == [record.allocation.cpu_hz.tolist() for record in records]
    devices = pd.read_parquet(client.download_artifacts(good.info.run_id, "devices.parquet", str(copies)))
    assert devices["samples"].tolist() == devices.filter(like="class/").sum(axis=1).tolist()
    assert len(devices["cluster"].unique()) == 5
    model = mlflow.pytorch.load_model(client.download_artifacts(good.info.run_id, "model", str(copies)))
    np.testing.assert_array_equal(to_vector(model), reference.global_model)


def test_an_assignment_study_ends_with_its_table_and_figures(tmp_path) -> None:
    overrides = ["max_rounds=3", "scheduling.num_scheduled=10", "allocation.coupling=per_edge"]
    overrides += ["assignment.policy=null", "fleet.deployment_seed=null"]
    axes = ["sweep.assignment.name={zip: [geographic, hfel]}", "sweep.assignment.exchanges={zip: [0, 100]}"]
    axes += ["sweep.assignment.polish_ms={zip: [null, null]}", "sweep.assignment.start={zip: [null, null]}"]
    file = load_sweep(cli.CONFIGS / "fig6_assignment.yaml", overrides + axes)
    folder = new_folder(tmp_path, file, default_uri(tmp_path), "tests")
    folder.finished, folder.sinks = True, ("csv",)
    folder.save()
    tracker = Tracker(folder.uri, "tests", folder.path.name, folder.path, sinks=())
    for trial in expand(file):
        tracker.start(trial.name, trial.name, trial.config, {})
        for result in find_task("assignment").run(Job(trial.config)):
            tracker.round(trial.name, result.step, result.metrics)
        tracker.finish(trial.name)
    console = Console(width=200, record=True, file=io.StringIO())
    cli._report_study("fig6", folder, console)
    assert "HFEL-100" in console.export_text()
    assert {path.name for path in folder.path.glob("*.svg")} == {"assignment.svg", "pareto.svg"}


@pytest.fixture
def run_in_process(tmp_path, monkeypatch, capsys):
    """Return a function that calls the command's entry point in this process, with the Ray of the tests."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments])
        try:
            cli.main()
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_dry_run_lists_the_trials_and_writes_nothing(run_in_process, tmp_path) -> None:
    code, out, err = run_in_process("--dry-run")
    assert (code, err) == (0, "")
    assert "4 trials" in out
    assert out.count("ikc") == 4  # two trials have it in their name and in a column
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("arguments, facts", refusals("tune/cli"))
def test_a_mistake_gives_one_line_and_leaves_no_file(run_in_process, tmp_path, monkeypatch, arguments, facts) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "own.py").write_text("def f(outputs, targets):\n    return outputs.no_such_thing\n")
    (tmp_path / "trace.csv").write_text("time_s,edge,up\n4,3,0\n")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (300, 12, 12), dtype=np.uint8), np.arange(300) % 10
    np.savez(tmp_path / "small.npz", x_train=x, y_train=y, x_test=x[:50], y_test=y[:50])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "small.npz").read_bytes()[:9000])
    before = sorted(os.listdir(tmp_path))
    if "--results" in arguments:
        monkeypatch.setattr(preflight, "check_trials", lambda *_, **__: CheckedTrials())
    code, out, err = run_in_process(*arguments)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert says(err, "error: ", *facts)
    assert "Traceback" not in err + out
    assert sorted(os.listdir(tmp_path)) == before


OWN_SINK = own_module("small_sink")


@pytest.mark.parametrize("line", ["place['x']", "self.where = None", "open(place.folder / 'log.txt', 'w').close()"])
def test_a_dry_run_builds_a_tracker_of_the_users_own(run_in_process, tmp_path, line: str) -> None:
    (tmp_path / "own.py").write_text(OWN_SINK.replace("LINE", line))
    code, _, err = run_in_process("--dry-run", "--set", "tracking.sinks=[csv, 'own.py:Mine']")
    assert sorted(os.listdir(tmp_path)) == ["own.py"]
    assert (code, bool(err)) == ((0, False) if "open" in line else (2, True))
    if err:
        assert len(err.splitlines()) == 1
        assert says(err, "tracking.sinks: own.py:Mine", "accepted: a class that extends hflray.tracking.Sink")


HEAVY = ("torch", "numba", "scipy", "pandas", "sklearn", "mlflow", "ray.tune", "ray.rllib", "cvxpy")


@pytest.mark.parametrize(
    "module, allowed",
    [("hflray.tune.cli", ()), ("hflray.training.actors", ()), ("hflray.tune.trial", ("torch", "pandas", "ray.tune"))],
)
def test_a_process_imports_only_the_libraries_that_it_needs(module: str, allowed: tuple[str, ...]) -> None:
    """The command, an edge's actor and a trial import only the heavy libraries of their own work."""
    code = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    assert set(eval(output)) <= set(allowed)


def test_other_labels_are_no_other_settings(tmp_path) -> None:
    for labels in ("{}", "{ikc: Ours}"):
        file = load_sweep(None, ["name=mine", f"labels={labels}", "max_rounds=2"])
        folder = new_folder(tmp_path, file, "sqlite:///x.db", "tests")
        if labels == "{}":
            folder.save()
    with pytest.raises(ConfigError, match="name: a sweep 'mine' is unfinished"):
        cli.begin(folder, tmp_path, fresh=False)


@pytest.mark.slow
def test_a_finished_sweep_goes_on_with_more_rounds_to_the_same_bits(tmp_path) -> None:
    small = (tmp_path / "tiny.yaml", SWEEP.replace("{zip: [0.01, 1.0e+20]}", "{zip: [0.01, 0.02]}"))
    small[0].write_text(small[1])
    for arguments in (("tiny.yaml",), ("--resume", "tiny", "--set", "max_rounds=4")):
        done = call(*arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = tmp_path.glob("hflray_results/tiny-*")
    for trial in expand(load_sweep(small[0], ["max_rounds=4"])):
        entries = [entry for entry in Journal(folder).entries(trial.name) if "round" in entry]
        with Experiment(trial.config) as experiment:
            expected = [(record.round, record.model_hash, record.accuracy) for record in experiment]
        made = [(entry["round"], entry["model_hash"], entry["metrics"][metrics.ACCURACY]) for entry in entries]
        assert made == expected
    assert call("--resume", "tiny", cwd=tmp_path).returncode == 2
