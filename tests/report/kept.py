"""Sweeps that are run without Ray and kept as `hflray.tune` keeps them, for the report to read."""

from __future__ import annotations

from pathlib import Path

from hflray.experiment import Experiment
from hflray.experiment.fleets import Fleets
from hflray.experiment.record import RoundRecord
from hflray.experiment.scenario import Scenario
from hflray.report.runs import SweepRecord, read_sweep
from hflray.sweep import expand, load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Tracker
from tests.conftest import SMALL

NAME = "tiny"


def swept(root: Path, *overrides: str) -> tuple[SweepRecord, dict[str, list[RoundRecord]]]:
    """Run the trials of a sweep; return it as read from its journals, and the records of each run's rounds by name."""
    file = load_sweep(None, [f"name={NAME}", *SMALL, *overrides])
    folder = SweepFolder(root / f"{NAME}-20260101-000000", file, "unused", "hflray", True, sinks=())
    folder.save()
    tracker = Tracker("unused", "hflray", folder.path.name, folder.path, sinks=())
    records: dict[str, list[RoundRecord]] = {}
    for trial in expand(file):
        tracker.start(trial.name, trial.name, trial.config, {})
        scenario = Scenario.build(trial.config, fleets=Fleets(str(folder.path)))
        with Experiment(trial.config, scenario) as experiment:
            rounds = records.setdefault(trial.name, [])
            for record in experiment:
                values = record.metrics() | (experiment.summary() if experiment.finished else {})
                tracker.round(trial.name, record.round, values, record.schedule(), experiment.devices())
                rounds.append(record)
        tracker.artifact(trial.name, "tables")
        tracker.finish(trial.name)
    return read_sweep(root, NAME), records
