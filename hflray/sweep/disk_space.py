"""The reserve of free space on a sweep's disks: below it no sweep starts, and trials pause (``tune.reserve_mb``)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hflray.config import ExperimentConfig
from hflray.errors import NoRoomError
from hflray.experiment.scenario import data_key
from hflray.models import build, num_parameters
from hflray.models.problem import Problem
from hflray.support.files import MIB, existing, free_bytes, size_text
from hflray.sweep import SweepFile, Trial
from hflray.sweep.preflight import Checked
from hflray.sweep.results import SweepFolder
from hflray.sweep.tasks import find_task
from hflray.training.machine import available_cpus
from hflray.training.start import ray_folder

MIN_RESERVE_BYTES = 16 * MIB


@dataclass(frozen=True)
class Places:
    """Where a sweep writes.

    Attributes:
        results: the folder of the results.
        temporary: the system's temporary folder, where a checkpoint is made before it is copied.
        ray: Ray's temporary folder; None for a cluster, whose nodes have their own.
        storage: the shared folder of ``--storage``, which then has the checkpoints; None if there is none or if it is
            not a folder, such as S3.
    """

    results: Path
    temporary: Path
    ray: Path | None = None
    storage: Path | None = None

    @classmethod
    def of(cls, folder: SweepFolder) -> Places:
        """Return the places of a sweep that this process starts."""
        storage = folder.storage
        local = Path(storage).expanduser().resolve() if storage is not None and "://" not in storage else None
        ray = None if os.environ.get("RAY_ADDRESS") else ray_folder()
        return cls(folder.path.parent, Path(tempfile.gettempdir()), ray, local)


@dataclass(frozen=True)
class Reserve:
    """The free space that the disks of a sweep keep.

    Attributes:
        places: where the sweep writes.
        size: the free bytes below which its trials pause.
    """

    places: Places
    size: int

    @classmethod
    def of(cls, folder: SweepFolder, trials: Sequence[Trial], checked: Checked) -> Reserve:
        """Return the reserve of a sweep, which by default has room for the rounds that its running trials save.

        Args:
            folder: the sweep's folder, which need not exist.
            trials, checked: the sweep's trials, and the results of their checks.
        """
        tune, places = folder.file.tune, Places.of(folder)
        if tune.reserve_mb is not None:
            return cls(places, int(tune.reserve_mb * MIB))
        count = tune.samples if tune.search is not None else len(trials)
        limits = [count, tune.max_concurrent or count]
        limits += (
            [] if places.ray is None else [len(available_cpus()) // tune.cpus_per_trial]
        )  # a cluster's size varies
        states = (_saved_bytes(folder.file.task, trial.config, checked) for trial in trials)
        return cls(places, MIN_RESERVE_BYTES + 2 * max(1, min(limits)) * max(states))

    def check(self) -> None:
        """Refuse to start on a disk that is too full.

        Raises:
            NoRoomError: a disk has less room than the reserve; the message has a line for each such disk.
        """
        fixes = {
            self.places.results: "give another folder with --results",
            self.places.storage: "give another folder with --storage",
            self.places.temporary: "set TMPDIR to a folder on another disk",
            self.places.ray: "set RAY_TMPDIR to a folder on another disk",
        }
        disks: dict[int, list[Path]] = {}
        for place in filter(None, fixes):
            disks.setdefault(existing(place).stat().st_dev, []).append(place)
        lines = []
        for folders in disks.values():
            free = min(map(free_bytes, folders))
            if free < self.size:
                lines.append(
                    f"disk: {' and '.join(map(str, folders))}: {size_text(free)} are free; accepted: at least the "
                    f"reserve of {size_text(self.size)} (tune.reserve_mb); free {size_text(self.size - free)} there, "
                    f"or {' or '.join(fixes[folder] for folder in folders)}"
                )
        if lines:
            raise NoRoomError("\n".join(lines))


def checkpoints_to_keep(file: SweepFile) -> int:
    """Return how many checkpoints a trial keeps: the last two, and those that a population may still adopt."""
    return 2 + (file.tune.population.every if file.tune.population is not None else 0)


def _saved_bytes(task: str, config: ExperimentConfig, checked: Checked) -> int:
    """Return about how many bytes a checkpoint of a trial takes; 0 if it saves none."""
    if not config.checkpoint.every:
        return 0
    dataset = checked.datasets.get(data_key(config))
    return find_task(task).saved_bytes(config, 0 if dataset is None else _model_bytes(Problem.of(dataset, config)))


@cache
def _model_bytes(problem: Problem) -> int:
    return 4 * num_parameters(build(problem))
