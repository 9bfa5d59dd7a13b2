"""The room on the disks that a sweep needs, estimated from its configuration and compared with the free space.

The sizes follow from the model (P weights of 4 bytes), the number of checkpoints that Tune keeps, the rounds, H, M and
N. The remaining constants were measured on finished sweeps, see `tests/sweep/test_disk_space.py`, which compares the
estimate with the files of a real sweep.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.config.files import flatten
from hflray.errors import NoRoomError
from hflray.experiment.scenario import data_key
from hflray.models import build, num_parameters
from hflray.models.problem import Problem
from hflray.support.files import MIB, existing, free_bytes, size_text
from hflray.sweep import SweepFile, Trial
from hflray.sweep.preflight import Checked
from hflray.sweep.results import SweepFolder
from hflray.sweep.tasks import find_task
from hflray.training.start import SESSION_BYTES, ray_folder

MIN_RESERVE_BYTES = 16 * MIB

# Bytes, measured. A metric is a name and a number in JSON, or a cell of a CSV file; a scheduled device is four numbers
# of a round's schedule.
METRIC, CELL, SCHEDULED, LINE, RUN = 45, 20, 60, 100, 8_000
TUNE_LINE, TUNE_TRIAL = 700, 14_000  # what Tune adds to a line of result.json, and a trial's share of Tune's state
DATABASE, ROW, SETTING = 950_000, 300, 190  # MLflow's SQLite file: empty, each metric of a round, each parameter
# A timeline in the journal: each round, and each row of it, which is a device in an edge iteration; a row in the file.
TIMELINE, TIMELINE_ROW, TIMELINE_CELLS = 500, 38, 34
TRACE, PIXEL, TABLES = 31_000, 53, 30_000  # MLflow's artifacts of a run beside the weights
RAY_PROCESS = 100_000  # the logs of each of Ray's processes


@dataclass(frozen=True)
class Places:
    """Where a sweep writes.

    Attributes:
        results: the folder of the results.
        temporary: the system's temporary folder, where a checkpoint is made before it is copied.
        ray: Ray's temporary folder; None for a cluster, whose nodes have their own.
        storage: the shared folder of ``--storage``, which then has the checkpoints; None if there is none or if it is
            not a folder.
        remote: whether the checkpoints go to a storage that is not a folder, such as S3.
    """

    results: Path
    temporary: Path
    ray: Path | None = None
    storage: Path | None = None
    remote: bool = False

    @classmethod
    def of(cls, folder: SweepFolder) -> Places:
        """Return the places of a sweep that this process starts."""
        storage = folder.storage
        remote = storage is not None and "://" in storage
        local = Path(storage).expanduser().resolve() if storage is not None and not remote else None
        ray = None if os.environ.get("RAY_ADDRESS") else ray_folder()
        return cls(folder.path.parent, Path(tempfile.gettempdir()), ray, local, remote)


@dataclass
class Need:
    """What a sweep needs in one folder.

    Attributes:
        folder: the folder.
        fix: how to use another folder.
        parts: bytes by their use.
        used: bytes of these parts that the folder has already, because the sweep continues.
    """

    folder: Path
    fix: str
    parts: dict[str, int] = field(default_factory=dict)
    used: int = 0

    @property
    def total(self) -> int:
        """The bytes that are still to be written."""
        return max(0, sum(self.parts.values()) - self.used)


@dataclass(frozen=True)
class Demand:
    """What a sweep needs in all.

    Attributes:
        places: where it writes.
        needs: what it needs in each folder.
        reserve_bytes: the free space below which its trials pause.
    """

    places: Places
    needs: Sequence[Need]
    reserve_bytes: int

    def disks(self) -> list[list[Need]]:
        """Return the needs by file system."""
        disks: dict[int, list[Need]] = {}
        for need in self.needs:
            disks.setdefault(existing(need.folder).stat().st_dev, []).append(need)
        return list(disks.values())

    def lines(self) -> list[str]:
        """Return a line for each file system, with the estimate and the free space."""
        lines = []
        for disk in self.disks():
            parts = _joined(need.parts for need in disk)
            total = sum(need.total for need in disk)
            uses = ", ".join(f"{use} {size_text(size)}" for use, size in parts.items())
            lines.append(
                f"about {size_text(total)} of disk in {_folders(disk)} ({uses}), where {size_text(_free(disk))} are "
                f"free; trials pause while less than {size_text(self.reserve_bytes)} are free"
            )
        return lines

    def check(self) -> list[str]:
        """Return a warning for each disk with less than twice the room that is needed.

        Raises:
            NoRoomError: a disk has less room than is needed; the message has a line for each such disk.
        """
        errors, warnings = [], []
        for disk in self.disks():
            needed, free = sum(need.total for need in disk) + self.reserve_bytes, _free(disk)
            uses = _joined(need.parts for need in disk) | {"reserve": self.reserve_bytes}
            listing = ", ".join(f"{use} {size_text(size)}" for use, size in uses.items())
            if free < needed:
                fixes = " or ".join(dict.fromkeys(need.fix for need in disk))
                errors.append(
                    f"disk: {_folders(disk)}: {size_text(free)} are free, and this sweep needs about "
                    f"{size_text(needed)} ({listing}); free {size_text(needed - free)} there, or {fixes}"
                )
            elif free < 2 * needed:
                warnings.append(
                    f"disk: {_folders(disk)}: {size_text(free)} are free, less than twice the {size_text(needed)} that "
                    f"this sweep needs ({listing}); trials pause while less than {size_text(self.reserve_bytes)} are "
                    "free"
                )
        if errors:
            raise NoRoomError("\n".join(errors))
        return warnings


@dataclass
class _Files:
    """The bytes of the files of some trials, by their use. `state` is the largest checkpoint."""

    state: float = 0.0
    checkpoints: float = 0.0
    journals: float = 0.0
    artifacts: float = 0.0
    tune: float = 0.0

    @classmethod
    def of(cls, folder: SweepFolder, config: ExperimentConfig, checked: Checked, mlflow: bool) -> _Files:
        """Return the files of one trial. `mlflow` says whether MLflow keeps its data in the results folder."""
        task, rounds, every = find_task(folder.file.task), config.max_rounds, config.checkpoint.every
        dataset = checked.datasets.get(data_key(config))
        shape = (0,) if dataset is None else dataset.input_shape
        model = 0 if dataset is None else _model_bytes(Problem.of(dataset, config))
        state, product = task.saved_bytes(config, model)
        num_kept = min(checkpoints_to_keep(folder.file), rounds // every + 1) if every else 0
        names = len(metrics.PER_ROUND) + 3 * config.fleet.num_edges
        lives = config.world.is_on or config.clock.is_on
        names += len(metrics.WITH_A_CLOCK + metrics.WITH_A_WORLD + metrics.WITH_BATTERIES) * lives
        line = LINE + METRIC * names + SCHEDULED * config.scheduling.num_scheduled
        files = cls(
            state=state if num_kept else 0.0,
            checkpoints=num_kept * state,
            journals=RUN + (rounds + 1) * line,
            artifacts=product,
            tune=TUNE_TRIAL + rounds * (line + TUNE_LINE),
        )
        if "csv" in folder.sinks:
            files.journals += rounds * names * CELL
        scheduled = config.scheduling.num_scheduled * config.training.edge_iterations
        timeline = rounds * scheduled * TIMELINE_CELLS if lives and task.trains_model else 0
        if timeline:
            files.journals += timeline + rounds * (TIMELINE + TIMELINE_ROW * scheduled)
        if mlflow:
            files.artifacts += timeline
            settings = len(flatten(config.model_dump()))
            files.artifacts += product + TABLES + rounds * line / 2 + rounds * names * ROW + settings * SETTING
            if task.trains_model:
                files.artifacts += model + TRACE + 2 * PIXEL * math.prod(shape)
        return files


def demand(folder: SweepFolder, trials: Sequence[Trial], checked: Checked) -> Demand:
    """Estimate what a sweep writes if every trial runs to its last round.

    Args:
        folder: the sweep's folder, which need not exist. If it does, the sweep continues, and its files are subtracted.
        trials, checked: the sweep's trials, and the results of their checks.
    """
    tune, places = folder.file.tune, Places.of(folder)
    count = tune.samples if tune.search is not None else len(trials)
    limits = [count, tune.max_concurrent or count]
    limits += [] if places.ray is None else [(os.cpu_count() or 1) // tune.cpus_per_trial]  # a cluster's size varies
    at_once = max(1, min(limits))
    mlflow = "mlflow" in folder.sinks and folder.uri.startswith("sqlite:")
    each = [_Files.of(folder, trial.config, checked, mlflow) for trial in trials]
    per_trial = count / len(each)  # a search has one trial that represents all
    # Tune writes a checkpoint before it deletes the oldest one.
    in_flight = int(at_once * max(files.state for files in each))
    checkpoints = in_flight + int(per_trial * sum(files.checkpoints for files in each))
    tune_bytes = int(per_trial * sum(files.tune for files in each))
    results = Need(places.results, "give another folder with --results", used=used_bytes(folder.path))
    needs = [results]
    if places.storage is not None:
        used = used_bytes(places.storage / folder.path.name)
        needs.append(Need(places.storage, "give another folder with --storage", used=used))
    if not places.remote:
        needs[-1].parts |= {"checkpoints": checkpoints, "Tune's record": tune_bytes}
    results.parts["journals"] = int(per_trial * sum(files.journals for files in each))
    results.parts["artifacts"] = int(per_trial * sum(files.artifacts for files in each) + DATABASE * mlflow)
    scratch = Need(places.temporary, "set TMPDIR to a folder on another disk")
    scratch.parts["checkpoints being written"] = 2 * in_flight
    needs.append(scratch)
    if places.ray is not None:
        needs.append(Need(places.ray, "set RAY_TMPDIR to a folder on another disk"))
        needs[-1].parts["Ray"] = SESSION_BYTES + 4 * at_once * RAY_PROCESS + tune_bytes
    reserve = MIN_RESERVE_BYTES + 2 * in_flight if tune.reserve_mb is None else int(tune.reserve_mb * MIB)
    return Demand(places, [need for need in needs if need.total], reserve)


def checkpoints_to_keep(file: SweepFile) -> int:
    """Return how many checkpoints a trial keeps: the last two, and those that a population may still adopt."""
    return 2 + (file.tune.population.every if file.tune.population is not None else 0)


@cache
def _model_bytes(problem: Problem) -> int:
    return 4 * num_parameters(build(problem))


def used_bytes(folder: Path) -> int:
    """Return the bytes of the files below a folder; 0 if it does not exist."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def _joined(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    joined: dict[str, int] = {}
    for uses in parts:
        for use, size in uses.items():
            joined[use] = joined.get(use, 0) + size
    return joined


def _folders(disk: Sequence[Need]) -> str:
    return " and ".join(dict.fromkeys(str(need.folder) for need in disk))


def _free(disk: Sequence[Need]) -> int:
    return min(free_bytes(need.folder) for need in disk)
