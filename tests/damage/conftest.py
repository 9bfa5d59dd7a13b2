"""One interrupted sweep for all cells of the matrix: one trial has ended, and one was stopped in round 3."""

from __future__ import annotations

import itertools
import logging
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow import MlflowClient

from hflray import metrics
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.support import checkpoint
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import expand, load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal
from hflray.tracking.addresses import named
from hflray.tune import cli
from hflray.tune.callback import SweepCallback
from tests.damage.cells import OPEN

ROUNDS = 4
SWEEP = f"""
name: mended
tracking: {{sinks: [mlflow, csv]}}
experiment:
  max_rounds: {ROUNDS}
  data: {{name: synthetic, samples_per_device: [20, 40]}}
  fleet: {{num_devices: 12, num_edges: 2}}
  scheduling: {{name: fedavg, num_scheduled: 4}}
  assignment: {{name: geographic}}
  training: {{local_iterations: 1, edge_iterations: 1, batch_size: 16, backend: serial}}
  checkpoint: {{every: 1}}
sweep:
  seed: {{grid: [0, 1]}}
tune: {{max_concurrent: 1}}
"""

numbers = itertools.count()
Answer = tuple[int, str, str]  # exit code, output, error output


@dataclass
class Interrupted:
    """The interrupted sweep.

    Attributes:
        place: the folder with its sweep file and ``hflray_results``; every test begins with the same contents.
        kept: a copy of `place`, never changed.
        rounds: the rounds of each trial without an interruption, by its name.
        models: the final global models, by the trial's name.
    """

    place: Path
    kept: Path
    rounds: dict[str, list[RoundRecord]]
    models: dict[str, np.ndarray[Any, Any]]

    @property
    def results(self) -> Path:
        """The folder of results."""
        return self.place / "hflray_results"

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        (path,) = self.kept.glob("hflray_results/mended-*")
        return self.results / path.name

    def check(self, tracked: bool = True) -> None:
        """Assert that each trial has ended with every round once, as without an interruption, in journal and model.

        `tracked` says whether MLflow and the CSV files are checked as well.
        """
        journal = Journal(self.folder)
        assert journal.run_keys() == sorted(self.rounds)
        for name, records in self.rounds.items():
            ending = journal.ending(name)
            assert ending is not None
            assert ending.status == "FINISHED"
            values = {entry["round"]: entry["metrics"] for entry in journal.entries(name) if "round" in entry}
            assert sorted(values) == list(range(1, ROUNDS + 1))
            for record in records:
                for metric, value in record.metrics().items():
                    if not metric.startswith("wall/"):
                        assert values[record.round][metric] == value, (name, record.round, metric)
            if name.endswith(OPEN):
                with (saved := Checkpoints(str(self.folder), name)).open(saved.rounds()[0]) as state:
                    np.testing.assert_array_equal(checkpoint.load(state / "state")["global_model"], self.models[name])
        if tracked:
            self._check_trackers()

    def _check_trackers(self) -> None:
        client = MlflowClient(SweepFolder.load(self.folder).uri)
        experiment = client.get_experiment_by_name("hflray")
        assert experiment is not None
        runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
        for name, records in self.rounds.items():
            history = client.get_metric_history(runs[name].info.run_id, metrics.ACCURACY)
            assert [(m.step, m.value) for m in history] == [(r.round, r.accuracy) for r in records]
            assert runs[name].info.status == "FINISHED"


@pytest.fixture
def call(monkeypatch, capsys, caplog) -> Callable[..., Answer]:
    """Return a function that runs ``python -m hflray.tune`` in this process; warnings count as output."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["hflray.tune", *arguments])
        capsys.readouterr()
        caplog.clear()
        code, (out, err) = _main(), capsys.readouterr()
        return code, "\n".join([out, *(r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING)]), err

    return run


def _main() -> int:
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="session")
def _interrupted(ray_session, tmp_path_factory) -> Interrupted:
    top = tmp_path_factory.mktemp("mended")
    place, kept = top / "place", top / "kept"
    place.mkdir()
    (place / "mended.yaml").write_text(SWEEP)
    on_result = SweepCallback.on_trial_result

    def interrupt(self: SweepCallback, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
        on_result(self, iteration, trials, trial, result, **info)
        if trial.config["trial"]["name"].endswith(OPEN) and result["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(SweepCallback, "on_trial_result", interrupt)
        patch.setattr(sys, "argv", ["hflray.tune", "mended.yaml", "-q"])
        assert _main() == 130
    shutil.copytree(place, kept)
    rounds, models = {}, {}
    for trial in expand(load_sweep(place / "mended.yaml")):
        experiment = Experiment(trial.config)
        rounds[trial.name], models[trial.name] = list(experiment), experiment.global_model
    return Interrupted(place, kept, rounds, models)


@pytest.fixture
def interrupted(_interrupted, monkeypatch) -> Interrupted:
    """Return the interrupted sweep in the current folder, as it was when it was interrupted."""
    while _interrupted.place.exists():  # a thread of the sweep before may still write into it
        shutil.rmtree(_interrupted.place, ignore_errors=True)
    shutil.copytree(_interrupted.kept, _interrupted.place)
    # MLflow keeps its connections to a path, so each test has a database at a path of its own.
    database = _interrupted.results / f"mlflow-{next(numbers)}.db"
    (_interrupted.results / "mlflow.db").rename(database)
    folder = SweepFolder.load(_interrupted.folder)
    folder.uri = named(f"sqlite:///{database}")
    folder.save()
    monkeypatch.chdir(_interrupted.place)
    return _interrupted
