"""The runs of a sweep as a report needs them, read from its journal.

`hflray.report.exports` reads and writes the same runs as small files.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.config import ExperimentConfig, flatten, validate_stored
from hflray.errors import ConfigError, HflrayError, nearest
from hflray.experiment.fleets import Fleets, is_stored
from hflray.report.labels import group_by, rank, value_of
from hflray.support.reader import UnfitError, parse_json, parse_yaml
from hflray.sweep.results import locate
from hflray.sweep.tasks import Shown, find_task
from hflray.tracking import History, read_journal
from hflray.tracking.schema import check_tables

LEFT_OUT = ": left out: "  # separates a run's name from the reason why the sweep does not contain it
# Settings that say where and by what a run executes, and how long it lasts. They do not identify a trial.
NEUTRAL = (
    "tracking.", "checkpoint.", "data.root", "training.backend", "training.kernel", "training.threads",
    "training.device", "training.num_actors", "training.devices_per_actor", "training.cuda_graph", "training.release",
    "learning.cache",
)  # fmt: skip
LENGTHS = ("max_rounds", "target_accuracy", "target.", "learning.minutes", "learning.env_steps", "agent.env_steps")
SEED = "seed"
MOVING_SCAFFOLD = "scaffold (its variates moved in each edge iteration)"  # until November 2026


@dataclass(frozen=True)
class RunRecord:
    """One run of a sweep.

    Attributes:
        history: what was logged.
        config: the run's configuration.
        part: the folder of the exhibit's part that holds the run (`hflray.report.exports`); empty without parts.
        brief: whether it was read from a brief export, which has neither devices nor schedules.
        fleet: the file of its stored fleet (`hflray.experiment.fleets`); None: there is none.
        labels: texts that are shown in place of values of settings (`hflray.sweep.SweepFile`), which identify nothing.
    """

    history: History
    config: ExperimentConfig
    part: str = ""
    brief: bool = False
    fleet: bytes | None = None
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """The trial's readable name."""
        return self.history.name

    @property
    def full_name(self) -> str:
        """The run's name, preceded by the name of its part if it has one."""
        return f"{self.part}/{self.name}" if self.part else self.name

    @property
    def machine(self) -> str:
        """The CPU on record, and the GPU if the run trained on one."""
        environment = self.history.environment
        gpu = environment.get("gpu", "a GPU that is not on record") if self.config.training.device == "cuda" else ""
        return environment.get("cpu", "an unknown machine") + (f" with {gpu}" if gpu else "")

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """The table of rounds, one row per round in order; empty before the first round."""
        rounds = self.history.tables.rounds
        return rounds[rounds["round"] >= 0].reset_index(drop=True) if "round" in rounds else rounds

    @property
    def devices(self) -> pd.DataFrame | None:
        """The table of devices, one row per device (`hflray.tracking.RunTables`); None if it was not logged."""
        return self.history.tables.devices

    @property
    def without_schedules(self) -> str:
        """Why the run has no devices or no schedules; empty if it has both."""
        columns = ("devices", "edges", "bandwidth_hz")
        has_fleet = self.fleet is not None or not is_stored(self.config)
        if has_fleet and self.devices is not None and all(name in self.rounds for name in columns):
            return ""
        if self.brief:
            return (
                "it is from a brief export, which has no devices and schedules; export it again from its results, "
                "without --brief"
            )
        if is_stored(self.config) and self.fleet is None:
            return "the file of its fleet is not there; put it back below fleets/, or run it again"
        return (
            "its rounds were logged without schedules (by an older hflray, or with more than 10,000 devices, or the "
            "run has not ended and its journal is elsewhere); run it again to see its rounds in detail"
        )

    @property
    def commit(self) -> str:
        """The run's commit, shortened; ``-dirty`` is appended if the checkout had uncommitted changes."""
        whole = self.history.environment.get("git_commit", "unknown")
        return whole.removesuffix("-dirty")[:12] + ("-dirty" if whole.endswith("-dirty") else "")

    @property
    def modified(self) -> bool:
        """Whether the run's checkout had uncommitted changes."""
        return self.commit.endswith("-dirty")

    @property
    def seed(self) -> int:
        """The root seed."""
        return self.config.seed

    @property
    def ended(self) -> bool:
        """Whether the run ended: at its last round, at its target, or by a stopping rule."""
        return self.history.status == "FINISHED"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration as a mapping from dotted keys to values. An earlier revision of a rule has another name."""
        training, settings = self.config.training, self.settings_of(self.config)
        is_scaffold = training.rule.name == "scaffold" and training.edge_iterations > 1
        if is_scaffold and "rules" not in self.history.environment:
            settings["training.rule.name"] = MOVING_SCAFFOLD
        return settings

    @cached_property
    def all_settings(self) -> dict[str, Any]:
        """`every_setting`, with the names of earlier revisions of a rule."""
        return every_setting(self.config) | self.settings

    @cached_property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """The settings that identify the run's trial, as text: all, with the seed, but `NEUTRAL` ones and `LENGTHS`."""
        return tuple((key, repr(value)) for key, value in self.settings.items() if identifies(key))

    @staticmethod
    def settings_of(config: ExperimentConfig) -> dict[str, Any]:
        """Return a configuration by dotted keys; a clock, a tree and the observers are one value in words each."""
        tree = config.model_dump(mode="json")
        tree["clock"]["cloud"] = config.clock.cloud.label
        if config.clock.edge.asynchronous is not None:
            tree["clock"]["edge"]["asynchronous"] = config.clock.edge.asynchronous.label
        if config.tree.label:
            tree["tree"] = config.tree.label
        if config.observers:
            tree["observers"] = "; ".join(observer.label for observer in config.observers)
        for section, quiet in ((config.cost, tree["cost"]), (config.allocation, tree["allocation"])):
            quiet |= {name: getattr(section, name).model_dump(mode="json") for name in section.quiet}
        return flatten(tree)

    def series(self, metric: str) -> pd.Series[float]:
        """Return a metric over the rounds, indexed by round; empty if it was not logged.

        The series is cached, so callers must not change it.
        """
        if metric not in self._series:
            logged = metric in self.rounds
            values = self.rounds[metric].set_axis(self.rounds["round"]) if logged else pd.Series(dtype=float)
            self._series[metric] = values.dropna().astype(float)
        return self._series[metric]

    @cached_property
    def _series(self) -> dict[str, pd.Series[float]]:
        return {}

    def last(self, metric: str) -> float:
        """Return a metric's last value; NaN if it was not logged."""
        values = self.series(metric)
        return float(values.iloc[-1]) if len(values) else float(self.history.values.get(metric, np.nan))

    @property
    def main_metric(self) -> str:
        """The name of the main metric: the user's own (`target.metric`), accuracy, or what was logged in its place."""
        decides = self.config.target.own_metric and self.config.target_accuracy is None
        chosen = self.config.target.name if decides else None
        names = (chosen, *metrics.MAIN) if chosen else metrics.MAIN
        return next((name for name in names if len(self.series(name))), metrics.ACCURACY)

    @property
    def target(self) -> float | None:
        """The value of the main metric at which the run stops; None: it has no such target."""
        target = self.config.target
        of_accuracy = target.metric == metrics.TEST_LOSS or target.value is None
        return self.config.target_accuracy if of_accuracy else target.value

    def judged(self, metric: str) -> pd.Series[float]:
        """Return the series by which targets judge: a metric on the validation part if it is logged, else its own."""
        on_validation = self.series(metrics.on_validation(metric))
        return on_validation if len(on_validation) else self.series(metric)


@dataclass
class SweepRecord:
    """A sweep's runs, and notes for the reader of its report.

    Attributes:
        name: the sweep's name; the name of its folder has the time appended.
        title: the folder's name, or the name of the export.
        task: the sweep file's task.
        description: the sweep file's description.
        runs: the runs that can be read, in the order in which they began.
        notes: what is missing, one line each.
        parts: the text of ``about.txt`` of each part of an export; an export without parts has the empty name.
    """

    name: str
    title: str
    task: str
    description: str
    runs: list[RunRecord]
    notes: list[str] = field(default_factory=list)
    parts: dict[str, str] = field(default_factory=dict)

    @property
    def shown(self) -> Shown:
        """How the sweep's task is shown. Raises ConfigError: there is no such task."""
        return find_task(self.task).shown

    @cached_property
    def keys(self) -> list[str]:
        """The dotted keys in which the runs differ, without the seed."""
        return with_lengths(self.runs)

    @property
    def main_metric(self) -> str:
        """The name of the main metric of the sweep's first run."""
        return self.runs[0].main_metric

    @property
    def logged(self) -> list[str]:
        """The columns of the runs' tables of rounds, each once."""
        return list(dict.fromkeys(str(name) for run in self.runs for name in run.rounds))

    def groups(self) -> dict[str, list[RunRecord]]:
        """Group the runs that differ only in the seed, by a label such as ``ikc, H = 30``; equal ones count once."""
        runs = sorted(self.runs, key=lambda run: (run.config.scheduling.num_scheduled, rank(run)))
        return {label: once(group) for label, group in group_by(runs, self.keys).items()}

    def find(self, name: str) -> RunRecord:
        """Return the run called `name`. Raises ConfigError: there is none."""
        for run in self.runs:
            if run.name == name:
                return run
        names = [run.name for run in self.runs]
        raise ConfigError(f"{name}: no such run in {self.title}{nearest(name, names)}; there: {', '.join(names)}")


def every_setting(config: ExperimentConfig) -> dict[str, Any]:
    """Return a configuration as a mapping from dotted keys, with each clock as its words, its settings and its kind."""
    kind = {"clock.cloud.kind": config.clock.cloud.kind}
    return flatten(config.model_dump(mode="json")) | RunRecord.settings_of(config) | kind


def is_one_of(key: str, keys: Sequence[str]) -> bool:
    """Return whether a dotted key is one of `keys`, or lies in a section, which is a key that ends in a dot."""
    return any(key == accepted or (accepted.endswith(".") and key.startswith(accepted)) for accepted in keys)


def identifies(key: str) -> bool:
    """Return whether a setting identifies a trial: whether it is none of `NEUTRAL` and `LENGTHS`."""
    return not is_one_of(key, (*NEUTRAL, *LENGTHS))


def differing(runs: Sequence[RunRecord]) -> list[str]:
    """Return the dotted keys in which runs differ, in the configuration's order, without seeds, `NEUTRAL`, `LENGTHS`.

    Runs on two deployments differ only in the deployment's seed, which does not count. A run on one deployment and a
    run that draws the edges anew with each fleet do differ.
    """
    if not runs:
        return []
    return [
        key
        for key in dict.fromkeys(key for run in runs for key in run.settings)
        if key != SEED and identifies(key) and len({repr(value_of(run, key)) for run in runs}) > 1
    ]


def once(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """Return the runs in their order, of which the longest of equal ones counts."""
    longest = {run.identity: run for run in sorted(runs, key=lambda run: len(run.rounds))}
    return [run for run in runs if longest[run.identity] is run]


def has_reached(run: RunRecord) -> bool:
    """Return whether a run reached its target."""
    return metrics.ROUNDS_TO_TARGET in run.history.values


def differing_lengths(runs: Sequence[RunRecord], apart: Callable[[RunRecord], Hashable]) -> list[str]:
    """Return the keys of `LENGTHS` in which runs differ that `apart` does not tell apart.

    What ended a run at its target or by a rule would have ended it with any other `max_rounds` as well that is not
    below its last round, so that such a run differs only from those that had fewer rounds and went on to their end.
    """
    groups: dict[Hashable, list[RunRecord]] = {}
    for run in runs:
        groups.setdefault(apart(run), []).append(run)
    values: dict[tuple[Hashable, str], set[str]] = {}
    for group, members in groups.items():
        ended = [has_reached(run) or run.history.stopped is not None for run in members]
        whole = [run.config.max_rounds for run, early in zip(members, ended, strict=True) if not early]
        for run, early in zip(members, ended, strict=True):
            is_alike = early and run.rounds["round"].max() <= min(whole, default=np.inf)
            for key in run.settings:
                if is_one_of(key, LENGTHS) and not (is_alike and key == "max_rounds"):
                    values.setdefault((group, key), set()).add(repr(run.settings[key]))
    return list(dict.fromkeys(key for (_, key), texts in values.items() if len(texts) > 1))


def with_lengths(runs: Sequence[RunRecord]) -> list[str]:
    """Return the keys of `differing`, and those of `LENGTHS` in which runs that are else equal differ: no seeds."""
    return differing(runs) + differing_lengths(
        runs, lambda run: tuple(item for item in run.identity if item[0] != SEED)
    )


def read_sweep(results: Path, name: str) -> SweepRecord:
    """Read the runs of a sweep from its journal, which has everything that a tracker ever gets.

    Args:
        results: the folder of results.
        name: the sweep's name, for the latest sweep of that name, or the name or path of its folder.

    Raises:
        ConfigError: there is no such sweep, or its journal has no run that can be read.

    Examples:
        >>> from pathlib import Path
        >>> from hflray import ConfigError, read_sweep
        >>> try:
        ...     print([run.name for run in read_sweep(Path("hflray_results"), "no_such_sweep").runs])
        ... except ConfigError as error:
        ...     print(str(error).partition(":")[0])
        no_such_sweep
    """
    path = Path(name)
    if (path / "sweep.json").exists():
        results, name = path.resolve().parent, path.resolve().name
    folder = locate(results, name)
    folder.adopt_own()
    notes: list[str] = []
    histories = read_journal(folder.path, notes)
    about = folder.file.name, folder.path.name, folder.file.task, folder.file.description
    return assemble(*about, histories, notes, Fleets(str(folder.path)).read, folder.file.labels)


def _tree_of(text: str) -> dict[str, Any]:
    """Return a configuration's mapping from YAML, or from the JSON of an export, which is read much faster."""
    tree = parse_json(text) if text.startswith("{") else parse_yaml(text)
    if not isinstance(tree, dict | None):
        raise UnfitError(f"it holds a {type(tree).__name__} instead of a mapping")
    return tree or {}


def assemble(
    name: str,
    title: str,
    task: str,
    description: str,
    histories: Sequence[History],
    notes: list[str],
    fleet_of: Callable[[ExperimentConfig], bytes | None] = lambda config: None,
    labels: Mapping[str, str] = MappingProxyType({}),
) -> SweepRecord:
    """Return the sweep of these histories; runs that cannot be read or have no rounds become notes.

    Args:
        name, title, task, description: see `SweepRecord`.
        histories: the runs.
        notes: the notes, which grow.
        fleet_of: returns the file of a configuration's stored fleet, None if there is none.
        labels: see `RunRecord`.

    Raises:
        ConfigError: no run has a round.
    """
    runs = []
    for history in histories:
        try:
            tree = _tree_of(history.config)
            config = validate_stored(ExperimentConfig, tree, "config.yaml")
        except (HflrayError, ValueError) as error:
            reason = str(error).splitlines()[0]
            notes.append(f"{history.name}{LEFT_OUT}its configuration cannot be read ({reason})")
            continue
        try:
            tables = history.tables
            check_tables(tables.rounds, tables.devices, config.fleet.num_devices, config.fleet.num_edges)
        except UnfitError as error:
            notes.append(f"{history.name}{LEFT_OUT}its tables cannot be read ({error})")
            continue
        run = RunRecord(history, config, fleet=fleet_of(config) if is_stored(config) else None, labels=labels)
        failed = f"failed after {len(run.rounds)} rounds: {history.error.splitlines()[0]}" if history.error else ""
        if run.rounds.empty:
            notes.append(f"{run.name}{LEFT_OUT}{failed or 'it has no rounds yet'}")
            continue
        if failed:
            notes.append(f"{run.name}: {failed}")
        elif history.status != "FINISHED":
            kind, last = find_task(task), int(run.rounds["round"].max())
            most = f" of at most {kind.steps(config):,}" if kind.steps(config) else ""
            notes.append(f"{run.name}: not finished, {last:,}{most} {kind.shown.counted or 'rounds'}")
        runs.append(run)
    if not runs:
        reasons = f" ({'; '.join(notes)})" if notes else ""
        raise ConfigError(f"{title}: no run of it has a round yet{reasons}; let it run, or name another sweep")
    return SweepRecord(name, title, task, description, runs, notes)
