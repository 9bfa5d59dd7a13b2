"""Small whole files of every format, which the mutations change."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hflray.assignment.policy import SHIPPED as ASSIGNER
from hflray.experiment import Experiment
from hflray.report.exports import export
from hflray.rl.solved_fleets import prepare
from hflray.scheduling.learned import SHIPPED as SCHEDULER
from hflray.support import checkpoint
from hflray.support.arrays import deflated
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.sweep.results import new_folder
from hflray.sweep.tasks.experiment import save
from hflray.tracking import Tracker
from tests.conftest import SMALL
from tests.report.fabricated import explorable, sweep
from tests.rl.small import TINY

NAME = "tiny"
FOLDER = f"{NAME}-20260101-000000"
AXES = ("sweep.scheduling.name={grid: [ikc, fedavg]}",)
DRAWN = ("fleet.num_devices=12", "fleet.num_edges=3", "scheduling.num_scheduled=6", "scheduling.num_clusters=5")


def make(root: Path) -> None:
    """Write a folder with every format: ``exports``, ``results`` and ``files``."""
    export(sweep(NAME, [explorable(2, *DRAWN, f"seed={seed}") for seed in (0, 1)]), root / "exports" / NAME)
    results(root / "results")
    (root / "files").mkdir()
    rng = np.random.default_rng(0)
    images = {f"x_{part}": rng.integers(0, 256, (20, 10, 10), np.uint8) for part in ("train", "test")}
    labels = {f"y_{part}": np.arange(20) % 10 for part in ("train", "test")}
    np.savez(root / "files" / "data.npz", **images, **labels)  # type: ignore[arg-type]
    shutil.copy(ASSIGNER, root / "files" / "assigner.safetensors")
    shutil.copy(SCHEDULER, root / "files" / "scheduler.safetensors")
    prepare(TINY, 3, root / "files" / "pool", workers=1)
    (root / "files" / "trace.csv").write_text("time_s,device,available\n0,0,1\n5,1,0\n9.5,0,0\n")
    clients = {str(n): {"active": [0, 50], "inactive": [10, 60], "finish_time": 100} for n in range(3)}
    (root / "files" / "fedscale.json").write_text(json.dumps(clients))


def swept() -> SweepFile:
    """Return a small sweep of two trials with two rounds."""
    return load_sweep(None, [f"name={NAME}", *SMALL, "max_rounds=2", "world.dropout.rate_per_s=0.01", *AXES])


def results(root: Path, file: SweepFile | None = None, finished: bool = False) -> Path:
    """Write a results folder with a sweep, and return the sweep's folder."""
    file = file or swept()
    folder = new_folder(root, file, f"sqlite:///{root}/mlflow.db", "hflray")
    path = root / f"{file.name}-20260101-000000"
    folder = replace(folder, path=path, sinks=("csv",), finished=finished)
    folder.path.mkdir(parents=True)
    folder.save()
    tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path, sinks=())
    for trial in expand(file):
        tracker.start(trial.name, trial.name, trial.config, {"hflray.task": "experiment"})
        with Experiment(trial.config) as experiment:
            for record in experiment:
                values = record.metrics() | (experiment.summary() if experiment.finished else {})
                timeline = deflated({"device": [0, 1], "upload_s": [0.5, 1.5]})
                tracker.round(trial.name, record.round, values, record.schedule(), experiment.devices(), timeline, "0")
            Checkpoints(folder.place, trial.name).save(2, partial(save, experiment))
        tracker.artifact(trial.name, "tables")
        tracker.finish(trial.name)
    assert tracker.close()
    return folder.path


def experiment_of(root: Path) -> Experiment:
    """Return an experiment into which the state of a checkpoint can be loaded."""
    return Experiment(expand(swept())[0].config)


def state_of(folder: Path) -> dict[str, Any]:
    """Return the state of the last trial's checkpoint in a results folder."""
    checkpoints = Checkpoints(str(folder), sorted(path.name for path in (folder / "checkpoints").iterdir())[-1])
    with checkpoints.open(2) as place:
        return checkpoint.load(place / "state")
