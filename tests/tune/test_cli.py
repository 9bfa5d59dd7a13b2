"""`hflray.tune.cli`: the command, end to end with Ray Tune and MLflow, and its message for every mistake."""

from __future__ import annotations

import io
import json
import os
import re
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
from hflray.models import to_vector
from hflray.support.checkpoints import Checkpoints
from hflray.sweep import expand, load_sweep, preflight
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.results import new_folder
from hflray.tracking import Journal, default_uri
from hflray.training.machine import available_cpus
from hflray.tune import cli
from tests.conftest import says
from tests.hostile import NAMES
from tests.support.terminal.rendering import WIDTHS, check_whole, render

SWEEP = """
name: tiny
experiment:
  max_rounds: 2
  data: {name: digits}
  fleet: {num_devices: 12, num_edges: 2}
  scheduling: {num_scheduled: 4, num_clusters: 5}
  training: {local_iterations: 1, edge_iterations: 2, batch_size: 16}
  checkpoint: {every: 1}
sweep:
  training.learning_rate: {zip: [0.01, 1.0e+20]}
  scheduling.name: {zip: [ikc, fedavg]}
"""


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run ``python -m hflray.tune`` as a user would, in an empty folder, without a terminal."""
    root = str(Path(cli.__file__).parents[2])
    env = os.environ | {"PYTHONPATH": root, "COLUMNS": "100"}
    command = [sys.executable, "-m", "hflray.tune", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=800, check=False)


def test_a_shared_machine_lends_one_cpu(tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    one, all_cpus = (call("tiny.yaml", "--dry-run", *more, cwd=tmp_path) for more in (("--cpus", "1"), ()))
    assert one.returncode == all_cpus.returncode == 0, one.stderr
    assert says(one.stdout, "1 CPU,")
    assert says(all_cpus.stdout, f"{len(available_cpus())} CPUs,") or len(available_cpus()) == 1
    refused = call("tiny.yaml", "--cpus", "1", "--address", "10.0.0.1:6379", cwd=tmp_path)
    assert refused.returncode == 2
    assert says(refused.stderr, "--cpus", "10.0.0.1:6379", "leave it out")


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


def test_the_task_clustering_logs_its_metrics(ray_session, run_in_process, tmp_path) -> None:
    (tmp_path / "c.yaml").write_text(SWEEP.split("sweep:")[0].replace("name: tiny", "name: tiny\ntask: clustering"))
    code, out, err = run_in_process("c.yaml", "--set", "training.backend=serial", "-q")
    assert code == 0, err
    assert "ARI" in out
    client = MlflowClient(default_uri(tmp_path / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert set(run.data.metrics) == {
        metrics.CLUSTERING_ARI,
        metrics.CLUSTERING_DELAY_S,
        metrics.CLUSTERING_ENERGY_J,
    }


def test_the_task_assignment_logs_every_fleet_and_writes_its_report(ray_session, run_in_process, tmp_path) -> None:
    shipped = Path(cli.__file__).parents[2] / "tune_configs" / "fig6_assignment.yaml"
    overrides = ["max_rounds=3", "scheduling.num_scheduled=10", "allocation.coupling=per_edge"]
    overrides += ["assignment.policy=null", "fleet.deployment_seed=null"]
    axes = ["sweep.assignment.name={zip: [geographic, hfel]}", "sweep.assignment.exchanges={zip: [0, 100]}"]
    axes += ["sweep.assignment.polish_ms={zip: [null, null]}", "sweep.assignment.start={zip: [null, null]}"]
    arguments = [word for text in overrides + axes for word in ("--set", text)]
    code, out, err = run_in_process(str(shipped), *arguments, "-q")
    assert code == 0, err
    assert "HFEL-100" in out
    (folder,) = (tmp_path / "hflray_results").glob("fig6_assignment-*")
    assert {path.name for path in folder.glob("*.svg")} == {"assignment.svg", "pareto.svg"}
    client = MlflowClient(default_uri(tmp_path / "hflray_results"))
    experiment = client.get_experiment_by_name("hflray")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name for run in runs} == {"H10-λ1-geographic-s0", "H10-λ1-hfel-100-s0"}
    for run in runs:
        history = client.get_metric_history(run.info.run_id, metrics.ROUND_OBJECTIVE)
        assert [metric.step for metric in history] == [1, 2, 3]


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


def npz(path: Path, **changes: object) -> Path:
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (300, 16, 16), dtype=np.uint8),
        "y_train": np.arange(300) % 10,
        "x_test": rng.integers(0, 256, (50, 16, 16), dtype=np.uint8),
        "y_test": np.arange(50) % 10,
    }
    np.savez(path, **(arrays | changes))  # type: ignore[arg-type]
    return path


def test_dry_run_lists_the_trials_and_writes_nothing(run_in_process, tmp_path) -> None:
    code, out, err = run_in_process("--dry-run")
    assert (code, err) == (0, "")
    assert "4 trials" in out
    assert out.count("ikc") == 4  # two trials have it in their name and in a column
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_in_the_table_of_trials_is_shown_as_it_is(name: str) -> None:
    file = load_sweep(None, [f"sweep.data.root={{grid: [{json.dumps(name)}]}}"])
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(cli._trials_table(file, expand(file)))
    assert f" {name} " in console.export_text()


def test_references_of_one_class_name_differ_in_the_table_of_trials(tmp_path) -> None:
    for name in ("v1.py", "v2.py"):
        (tmp_path / name).write_text(f"class Net:\n    name = '{name}'\n")
    (tmp_path / "twins.yaml").write_text("sweep: {model.name: {grid: ['v1.py:Net', 'v2.py:Net']}}\n")
    file = load_sweep(tmp_path / "twins.yaml")
    trials = expand(file)
    assert len({trial.name for trial in trials}) == 2
    text = render(cli._trials_table(file, trials), 200)
    assert " v1.py:Net " in text
    assert " v2.py:Net " in text


@pytest.mark.parametrize("width", WIDTHS)
def test_the_trials_of_figure_7_are_listed_whole_at_any_width(width) -> None:
    file = load_sweep(cli.CONFIGS / "fig7_framework.yaml")
    trials = expand(file)
    text = render(cli._trials_table(file, trials), width)
    names = [trial.name for trial in trials]
    check_whole(text, width, [*names, "num_scheduled", "max_rounds", "fashion_mnist", "cifar10"])
    lines = [line.split() for line in text.splitlines()]
    assert [words for words in lines if words[:1] == [names[-1]]]  # a name is one word
    assert ["cifar10", "100", "4", "150"] in [words[-4:] for words in lines] or width < 80


def test_a_dry_run_tries_a_metric_of_the_users_own(run_in_process, tmp_path) -> None:
    (tmp_path / "own.py").write_text("def f(outputs, targets):\n    return outputs.no_such_thing\n")
    (tmp_path / "mine.yaml").write_text(SWEEP + "  target.metric: {grid: ['own.py:f']}\n")
    code, _, err = run_in_process("mine.yaml", "--dry-run")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "target.metric: own.py:f fails (own.py:2: AttributeError: 'numpy.ndarray' object has no attribute" in err


OWN_SINK = """import hflray.tracking
class Mine(hflray.tracking.Sink):
    title = "mine"
    def __init__(self, place):
        self.where = str(place.folder)
        LINE
    def open(self, run):
        return -1
    def rounds(self, run, rounds):
        pass
    def end(self, run, ending):
        pass
"""


@pytest.mark.parametrize("line", ["place['x']", "self.where = None", "open(place.folder / 'log.txt', 'w').close()"])
def test_a_dry_run_builds_a_tracker_of_the_users_own(run_in_process, tmp_path, line: str) -> None:
    (tmp_path / "own.py").write_text(OWN_SINK.replace("LINE", line))
    code, _, err = run_in_process("--dry-run", "--set", "tracking.sinks=[csv, 'own.py:Mine']")
    assert sorted(os.listdir(tmp_path)) == ["own.py"]
    assert (code, bool(err)) == ((0, False) if "open" in line else (2, True))
    if err:
        assert len(err.splitlines()) == 1
        assert says(err, "tracking.sinks: own.py:Mine", "accepted: a class that extends hflray.tracking.Sink")


def test_a_users_own_data_set_is_accepted(run_in_process, tmp_path) -> None:
    npz(tmp_path / "mine.npz")
    code, _, err = run_in_process("--dry-run", "--set", "data.name=mine.npz")
    assert (code, err) == (0, "")


AVAILABILITY = "world.availability={name: trace, options: {path: trace.csv}}"
EDGES = "world.edge_failure.trace=trace.csv"
ALONE = ("fleet.num_devices=1", "scheduling.num_scheduled=1", "scheduling.num_clusters=1")
MISTAKES = [
    ("sheduling.num_scheduled=3", r"sheduling"),
    ("scheduling.num_shceduled=3", r"num_scheduled"),
    ("scheduling.num_scheduled=21", r"scheduling.num_scheduled: 21.*1 to 20"),
    ("scheduling.num_scheduled=0", r"scheduling.num_scheduled: got 0"),
    ("fleet.num_edges=0", r"fleet.num_edges: got 0"),
    ("cost.delay_weight=0", r"cost.delay_weight: got 0"),
    ("fleet.edge_bandwidth_mhz=[-1, 3]", r"fleet.edge_bandwidth_mhz"),
    ("fleet.cloud_bandwidth_mhz=-1", r"fleet.cloud_bandwidth_mhz: got -1"),
    ("scheduling.name=random", r"fedavg, ikc, .*vkc"),
    ("assignment.name=nearest", r"geographic"),
    ("data.name=mnist", r"fashion_mnist"),
    ("data.partition=noniid", r"majority"),
    ("target_accuracy=1.5", r"target_accuracy: got 1.5"),
    ("data.samples_per_device=5000", r"samples"),
    ("nonsense", r"KEY=VALUE"),
    ("data.name=nowhere.npz", r"nowhere.npz"),
    ("world.dropout.rate_per_s=-0.1", r"world.dropout.rate_per_s: got -0.1; accepted: a number at least 0"),
    ("world.availability={name: bernoulli, options: {probability: 0}}", r"otherwise nobody is ever available"),
    (
        "world.battery={capacity_j: 0, harvest_w: 1}",
        r"world.battery.reserve_j: .*so nobody is ever available; accepted",
    ),
    ("world.fading={name: rayleigh, options: {foo: 1}}", r"unknown option 'foo' \(got 1\); accepted: none; remove it"),
    ("world.mobility={name: gauss_markov, options: {seed: 1}}", r"'seed' .*; accepted: speed_m_per_s, memory_s"),
]


@pytest.mark.parametrize("override, message", MISTAKES)
def test_a_mistake_in_a_setting_gives_one_line(run_in_process, tmp_path, override: str, message: str) -> None:
    code, out, err = run_in_process("--set", override)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert re.search(message, err), err
    assert "Traceback" not in err + out
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("lines", "settings", "message"),
    [
        (
            "time_s,device,available 5,0,1 4,1,0",
            (AVAILABILITY,),
            r"trace.csv, line 3: time_s is 4 after 5; times run",
        ),
        ("time_s,device,available 5,20,1", (AVAILABILITY,), r"line 2: device 20 does not exist; accepted: 0 to 19"),
        (
            "time_s,device,available 0,0,0",
            (AVAILABILITY, *ALONE),
            r"leaves every device away for ever after its last",
        ),
        ("time_s,edge,up 4,0,0 5,1,0 6,2,0", (EDGES,), r"leaves all 3 edges down for ever after its last line"),
        ("time_s,edge,up 4,3,0", (EDGES,), r"line 2: edge 3 does not exist; accepted: 0 to 2"),
    ],
)
def test_a_mistake_in_a_trace_gives_one_line(
    run_in_process, tmp_path, lines: str, settings: tuple[str, ...], message: str
) -> None:
    (tmp_path / "trace.csv").write_text("\n".join([*lines.split(), ""]))
    code, out, err = run_in_process("--dry-run", *(word for text in settings for word in ("--set", text)))
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert re.search(message, err), err
    assert os.listdir(tmp_path) == ["trace.csv"]


def test_a_mistake_in_a_file_gives_one_line(run_in_process, tmp_path) -> None:
    (tmp_path / "list.yaml").write_text("- 1\n- 2\n")
    (tmp_path / "broken.yaml").write_text("experiment: {")
    npz(tmp_path / "nan.npz", x_train=np.full((300, 16, 16), np.nan))
    npz(tmp_path / "shape.npz", x_train=np.zeros((300, 4), np.uint8))
    npz(tmp_path / "labels.npz", y_test=np.full(50, 77))
    whole = npz(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    before = sorted(os.listdir(tmp_path))
    for arguments, message in [
        (("list.yaml",), "mapping"),
        (("broken.yaml",), "not valid YAML"),
        (("missing.yaml",), "missing.yaml"),
        (("--set", "data.name=nan.npz"), "x_train"),
        (("--set", "data.name=shape.npz"), "x_train"),
        (("--set", "data.name=labels.npz"), "y_test"),
        (("--set", "data.name=cut.npz"), "cut.npz"),
        (("--set", "data.name=fashion_mnist", "--data-root", "nowhere"), "fashion_mnist.npz"),
    ]:
        code, _, err = run_in_process(*arguments)
        assert code == 2, (arguments, err)
        assert len(err.splitlines()) == 1, err
        assert message in err
    assert sorted(os.listdir(tmp_path)) == before


def test_small_images_are_refused_before_anything_starts(run_in_process, tmp_path) -> None:
    small = np.zeros((300, 12, 12), np.uint8)
    npz(tmp_path / "small.npz", x_train=small, x_test=small[:50])
    code, _, err = run_in_process("--set", "data.name=small.npz")
    assert code == 2
    assert "16" in err


def test_help_names_every_option(run_in_process) -> None:
    code, out, _ = run_in_process("--help")
    assert code == 0
    for option in ("--set", "--smoke", "--dry-run", "--data-root", "--results"):
        assert option in out


def test_a_results_folder_that_cannot_be_written_gives_one_line(run_in_process, tmp_path, monkeypatch) -> None:
    """A file in place of the folder raises the same kind of error as a read-only or full disk, also for root."""
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr(preflight, "check_trials", lambda *_, **__: CheckedTrials())
    code, out, err = run_in_process("--results", "taken")
    assert code == 2, out
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")
    assert "taken" in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    "override, message",
    [
        ("tune.population={}", r"tune.samples: got 1; a population needs at least 2"),
        ("tune={samples: 4, population: {}}", r"sweep.scheduling.name is a grid"),
        ("tune={population: {replaced: 0.9}, samples: 4}", r"tune.population.replaced: got 0.9"),
        ("tune.population={name: pbtt}", r"tune.population.name: got 'pbtt'.*'pbt'"),
        ("tune.early_stopping={metric: acuracy}", r"tune.early_stopping.metric: unknown metric 'acuracy'.*'accuracy'"),
        ("tune.stop={acuracy: 0.5}", r"acuracy.*'accuracy'"),
    ],
)
def test_a_mistake_in_the_tune_section_gives_one_line(run_in_process, tmp_path, override: str, message: str) -> None:
    code, _, err = run_in_process("--set", override)
    assert code == 2
    assert len(err.splitlines()) == 1, err
    assert re.search(message, err), err
    assert os.listdir(tmp_path) == []


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
        cli._check_unfinished(folder, tmp_path)
