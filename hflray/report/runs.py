"""The runs of a sweep as a report needs them: from MLflow, or from the journal where MLflow is away.

`hflray.report.exports` reads and writes the same runs as small files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml

from hflray import metrics
from hflray.config import ExperimentConfig, flatten, validate
from hflray.errors import ConfigError, HflrayError, nearest
from hflray.report.labels import DEPLOYMENT, describe, rank
from hflray.results import SweepFolder, locate
from hflray.tasks import Shown, find_task
from hflray.tracking import History, read_histories, read_journal

LEFT_OUT = ": left out: "  # what is said of a run that is not among the sweep's
# What says where and how long a run ran, not what it computed.
QUIET = (
    "tracking", "checkpoint", "data.root", "max_rounds", "target_accuracy", "training.backend", "training.kernel",
    "training.threads", "training.device", "training.num_actors", "training.devices_per_actor", "training.autotune",
    "training.cuda_graph", "training.release", "learning.minutes", "learning.env_steps", "learning.cache",
)  # fmt: skip
SEED = "seed"

Told = Callable[[int, int], None]


def _silent(done: int, of: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Run:
    """A run: its history, its configuration, and of which part of an exhibit it is (`hflray.report.exports`)."""

    history: History
    config: ExperimentConfig
    part: str = ""

    @property
    def name(self) -> str:
        """The trial's readable name."""
        return self.history.name

    @property
    def said(self) -> str:
        """The name, after that of its part."""
        return f"{self.part}/{self.name}" if self.part else self.name

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """A row per round, by round; no rows if there are none."""
        rounds = self.history.tables.rounds
        return rounds[rounds["round"] >= 0].reset_index(drop=True) if "round" in rounds else rounds

    @property
    def devices(self) -> pd.DataFrame | None:
        """A row per device, see `hflray.tracking.Tables`."""
        return self.history.tables.devices

    @property
    def commit(self) -> str:
        """The commit it ran from, short; ``-dirty``: with changes that are in no commit."""
        whole = self.history.environment.get("git_commit", "unknown")
        return whole.removesuffix("-dirty")[:12] + ("-dirty" if whole.endswith("-dirty") else "")

    @property
    def modified(self) -> bool:
        """Whether it ran from a checkout with changes that are in no commit."""
        return self.commit.endswith("-dirty")

    @property
    def seed(self) -> int:
        """The root seed."""
        return self.config.seed

    @property
    def ended(self) -> bool:
        """Whether it came to its end: its last round, its target, or a rule that stops it."""
        return self.history.status == "FINISHED"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration's dotted keys."""
        return self.settings_of(self.config)

    @cached_property
    def telling(self) -> tuple[tuple[str, str], ...]:
        """Every setting that is not `QUIET`, as text: with the seed, what tells its trial from others."""
        return tuple((key, repr(value)) for key, value in self.settings.items() if not quiet(key))

    @staticmethod
    def settings_of(config: ExperimentConfig) -> dict[str, Any]:
        """A configuration's dotted keys."""
        return flatten(config.model_dump(mode="json"))

    def series(self, metric: str) -> pd.Series[float]:
        """A metric over the rounds, indexed by round; empty if it was not logged. It is kept: do not change it."""
        if metric not in self._series:
            known = metric in self.rounds
            values = self.rounds[metric].set_axis(self.rounds["round"]) if known else pd.Series(dtype=float)
            self._series[metric] = values.dropna().astype(float)
        return self._series[metric]

    @cached_property
    def _series(self) -> dict[str, pd.Series[float]]:
        return {}

    def last(self, metric: str) -> float:
        """A metric's last value; NaN if it was not logged."""
        values = self.series(metric)
        return float(values.iloc[-1]) if len(values) else float(self.history.values.get(metric, np.nan))

    def reached(self, accuracy: float) -> int | None:
        """The first round with this test accuracy, or None."""
        values = self.series(metrics.ACCURACY)
        hits = values.index[values >= accuracy]
        return int(hits[0]) if len(hits) else None


@dataclass
class Sweep:
    """A sweep's runs and what is to be said of them.

    Attributes:
        name: of the sweep; its folder has the time appended.
        title: the folder's name, or the name of the export.
        task, description: of the sweep file.
        runs: those that can be read, in the order they were begun.
        notes: what is missing, one line each.
        parts: of an export, what is said of each part; of the only one under the empty name.
    """

    name: str
    title: str
    task: str
    description: str
    runs: list[Run]
    notes: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Shown:
        """How its task wants to be shown. Raises ConfigError: there is no such task."""
        return find_task(self.task).shown

    @cached_property
    def keys(self) -> list[str]:
        """The dotted keys in which the runs differ, the seed left out."""
        return differing(self.runs)

    def label(self, run: Run, leave_out: Sequence[str] = ()) -> str:
        """What tells a run's group from the others, such as ``ikc, H = 30``."""
        return describe(run, [key for key in self.keys if key not in leave_out])

    def groups(self, leave_out: Sequence[str] = ()) -> dict[str, list[Run]]:
        """Runs that differ in the seed only (and in `leave_out`), by label."""
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (run.config.scheduling.num_scheduled, rank(run))):
            found.setdefault(self.label(run, leave_out), []).append(run)
        return found

    def find(self, name: str) -> Run:
        """The run of this name. Raises ConfigError: there is none."""
        for run in self.runs:
            if run.name == name:
                return run
        names = [run.name for run in self.runs]
        raise ConfigError(f"{name}: no such run in {self.title}{nearest(name, names)}; there: {', '.join(names)}")


def quiet(key: str) -> bool:
    """Whether a setting is `QUIET`."""
    return any(key == name or key.startswith(f"{name}.") for name in QUIET)


def differing(runs: Sequence[Run]) -> list[str]:
    """The dotted keys in which runs differ, in the configuration's order, without seeds and `QUIET`.

    Runs on several deployments differ in a seed only; a run on one deployment and a run that draws the edges with each
    fleet differ in more than that.
    """
    if not runs:
        return []
    return [
        key
        for key in dict.fromkeys(key for run in runs for key in run.settings)
        if key != SEED and not quiet(key) and len({repr(seedless(run, key)) for run in runs}) > 1
    ]


def seedless(run: Run, key: str) -> Any:
    """The value of a setting; of the deployment's seed only whether there is one."""
    value = run.settings.get(key)
    return value is not None if key == DEPLOYMENT else value


def read_sweep(results: Path, name: str, tracking_uri: str | None = None, told: Told = _silent) -> Sweep:
    """The runs of a sweep from MLflow; where it is away, or has less of a run, from the journal in the sweep's folder.

    Args:
        results: the folder of results.
        name: the sweep's name (then the latest of this name), or the name or path of its folder.
        tracking_uri: None: the one the sweep was logged to.
        told: called with the number of runs read and their total.

    Raises:
        ConfigError: no such sweep, or nobody has its runs; it names a journal that cannot be read.
    """
    path = Path(name)
    if (path / "sweep.json").exists():
        results, name = path.resolve().parent, path.resolve().name
    folder = locate(results, name)
    notes: list[str] = []
    journal = _journal(folder, notes)
    try:
        if tracking_uri is None and "mlflow" not in folder.sinks:
            histories = list(journal.values())
        else:
            histories = read_histories(tracking_uri or folder.uri, folder.experiment, folder.path.name, told)
    except ConfigError as error:
        if not journal:
            raise ConfigError("; ".join([str(error), *notes])) from error
        notes.append(f"{error}; everything here is from the journal in {folder.path}")
        histories = list(journal.values())
    fuller = [_fuller(history, journal.get(history.name)) for history in histories]
    logged = {history.name for history in histories}
    fuller += [history for name, history in journal.items() if name not in logged]
    return put_together(folder.file.name, folder.path.name, folder.file.task, folder.file.description, fuller, notes)


def _journal(folder: SweepFolder, notes: list[str]) -> dict[str, History]:
    """The journal's runs by name, none if there is no journal; what of it cannot be read goes to `notes`."""
    try:
        return {history.name: history for history in read_journal(folder.path, notes)}
    except ConfigError:  # there is none, or the notes say why
        return {}


def _fuller(logged: History, journal: History | None) -> History:
    """Of the two the one with more rounds, or else with more said of each."""
    if journal is None:
        return logged
    size = (len(logged.tables.rounds), logged.tables.devices is not None)
    return journal if (len(journal.tables.rounds), journal.tables.devices is not None) > size else logged


def put_together(
    name: str, title: str, task: str, description: str, histories: Sequence[History], notes: list[str]
) -> Sweep:
    """Put a sweep together; runs that cannot be read, or have no rounds, become notes."""
    runs = []
    for history in histories:
        try:
            config = validate(ExperimentConfig, yaml.safe_load(history.config) or {})
        except (HflrayError, yaml.YAMLError) as error:
            reason = str(error).splitlines()[0]
            notes.append(f"{history.name}{LEFT_OUT}its configuration cannot be read ({reason})")
            continue
        run = Run(history, config)
        failed = f"failed after {len(run.rounds)} rounds: {history.error.splitlines()[0]}" if history.error else ""
        if run.rounds.empty:
            notes.append(f"{run.name}{LEFT_OUT}{failed or 'it has no rounds yet'}")
            continue
        if failed:
            notes.append(f"{run.name}: {failed}")
        elif history.status != "FINISHED":
            notes.append(f"{run.name}: not finished, {len(run.rounds)} of at most {config.max_rounds} rounds")
        runs.append(run)
    if not runs:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise ConfigError(f"{title}: no run of it has a round yet{reasons}; let it run, or name another sweep")
    return Sweep(name, title, task, description, runs, notes)
