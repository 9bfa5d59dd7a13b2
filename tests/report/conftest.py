"""A finished sweep for the report's tests: two schedulers, two seeds, two rounds, in the journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.report.runs import SweepRecord, read_sweep
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Tracker, default_uri
from tests.conftest import SMALL

NAME = "tiny"
AXES = ("sweep.scheduling.name={grid: [ikc, fedavg]}", "sweep.seed={grid: [0, 1]}")


@pytest.fixture(scope="session")
def records() -> dict[str, list[RoundRecord]]:
    """The records of each run's rounds, by the run's name."""
    return {}


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, records: dict[str, list[RoundRecord]]) -> Path:
    """Return a folder of results with one finished sweep, logged as `hflray.tune` logs it, but run without Ray."""
    root = tmp_path_factory.mktemp("results")
    file: SweepFile = load_sweep(None, [f"name={NAME}", *SMALL, "max_rounds=2", *AXES])
    folder = SweepFolder(root / f"{NAME}-20260101-000000", file, default_uri(root), "hflray", True)
    folder.save()
    tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path, sinks=())
    for trial in expand(file):
        tracker.start(trial.name, trial.name, trial.config, {})
        with Experiment(trial.config) as experiment:
            rounds = records.setdefault(trial.name, [])
            for record in experiment:
                values = record.metrics() | (experiment.summary() if experiment.finished else {})
                tracker.round(trial.name, record.round, values, record.schedule(), experiment.devices())
                rounds.append(record)
        tracker.artifact(trial.name, "tables")
        tracker.finish(trial.name)
    assert tracker.close()
    return root


@pytest.fixture(scope="session")
def sweep(results: Path) -> SweepRecord:
    """Return the sweep as read from its journal."""
    return read_sweep(results, NAME)
