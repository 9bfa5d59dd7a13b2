"""The items of `hflray.reproduction.queue`: their list, the state of each, and its progress.

An item is one sweep, a part of an exhibit such as a figure. Its folder in the queue's folder holds ``state.json``,
``tree`` (the frozen code), ``results`` and ``log.txt``.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hflray.config import Section, read_mapping, validate
from hflray.errors import ConfigError, nearest
from hflray.support.checksum import checked, from_line, stamped
from hflray.support.files import write
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.sweep.tasks import find_task

NAME = r"^[A-Za-z0-9][A-Za-z0-9_]*$"  # names of folders have no hyphen, because a hyphen joins exhibit and part
STATE = "state.json"
RECENT = 10  # the number of last rounds from which a rate is computed

Stage = Literal["waiting", "running", "stopped", "ended", "finished", "failed"]


class Item(Section):
    """An entry of the list, which is one sweep."""

    exhibit: str = Field(pattern=NAME, description="folder of the item's exports, such as fig3_fashion_scheduling")
    part: str = Field(pattern=NAME, description="name of this part of the exhibit, such as h50")
    file: str = Field(pattern=NAME, description="a sweep file of tune_configs/, or of the paper, without .yaml")
    paper: str | None = Field(None, pattern=NAME, description="a paper of hflray reproduce; null: none")
    set: list[str] = Field([], description="values of --set for the file")

    @property
    def name(self) -> str:
        """The name of the item."""
        return f"{self.exhibit}-{self.part}"

    @property
    def path(self) -> str:
        """The path of the sweep file below the repository's root."""
        folder = "tune_configs" if self.paper is None else f"hflray/reproduction/{self.paper}"
        return f"{folder}/{self.file}.yaml"


class QueueFile(Section):
    """The list of the queue's items."""

    experiments: list[str] = Field([], description="values of --set for every sweep that trains a global model")
    items: list[Item]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [item.name for item in self.items]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ValueError(f"items: two are called {', '.join(repeated)}; give every part of an exhibit its own name")
        return self


def load_items(path: Path) -> QueueFile:
    """Read the list. Raises ConfigError: the message has one line per mistake."""
    return validate(QueueFile, read_mapping(path))


def find_item(items: Iterable[Item], name: str) -> Item:
    """Return the item `name`, with ``-`` or ``/`` between exhibit and part. Raises ConfigError: there is none."""
    by_name = {item.name: item for item in items}
    key = name.replace("/", "-")
    if key not in by_name:
        raise ConfigError(f"{name}: no such item{nearest(key, by_name)}; available: {', '.join(by_name)}")
    return by_name[key]


def sweep_of(root: Path, item: Item, experiments: list[str]) -> tuple[SweepFile, list[str]]:
    """Return an item's sweep with the files at `root`, and its overrides. Raises ConfigError: a file has a mistake."""
    task = find_task(load_sweep(root / item.path).task)
    overrides = [*(experiments if task.trains_model else []), *item.set]
    return load_sweep(root / item.path, overrides), overrides


def trials_of(file: SweepFile) -> dict[str, int]:
    """Return the last round (or step of learning) that each trial of a sweep can reach, by name; 0 if it is unknown."""
    task = find_task(file.task)
    return {trial.name: task.steps(trial.config) for trial in expand(file)}


@dataclass
class State:
    """The saved state of an item.

    Attributes:
        stage: waiting (it has not begun), running, stopped, ended (its last export is not made yet), finished, failed.
        commit: the hash of the frozen code's commit.
        python: the path of the frozen environment's interpreter.
        packages: the packages of that environment, see `hflray.reproduction.queue.frozen.packages_of`.
        overrides: the overrides of the sweep, see `sweep_of`.
        trials: the last round of each trial, see `trials_of`.
        cpus: the number of trials that run at a time.
        pid: the id of the sweep's process, or of its last one.
        exported: the time of the last export in seconds since 1970; 0 if there was none.
        error: the reason of a failure.
    """

    stage: Stage = "waiting"
    commit: str = ""
    python: str = ""
    packages: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    trials: dict[str, int] = field(default_factory=dict)
    cpus: int = 1
    pid: int = 0
    exported: float = 0.0
    error: str = ""

    def save(self, folder: Path) -> None:
        """Write ``state.json`` atomically."""
        write(folder / STATE, json.dumps(stamped(asdict(self)), indent=1, ensure_ascii=False), durable=True)

    @classmethod
    def load(cls, folder: Path) -> State:
        """Read ``state.json``. An item without the file has not begun. Raises ConfigError: the file is damaged."""
        path = folder / STATE
        if not path.exists():
            return cls()
        try:
            return cls(**checked(json.loads(path.read_text(encoding="utf-8"))))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); drop the item to begin it anew") from error


@dataclass(frozen=True)
class Progress:
    """The progress of an item.

    Attributes:
        done: finished rounds (or steps of learning) of all trials.
        total: rounds of all trials; a trial that ended early counts with the rounds that it made.
        rate_s: the recent time per round in s, with all trials that run at a time; None if it is unknown.
    """

    done: int
    total: int
    rate_s: float | None

    @property
    def remaining_s(self) -> float | None:
        """The longest remaining time in s at this rate. Trials with a target may end earlier."""
        return None if self.rate_s is None else self.rate_s * (self.total - self.done)


def progress(trials: Mapping[str, int], results: Path, cpus: int = 1) -> Progress:
    """Return the progress of a sweep's trials from its journals in the folder `results`."""
    done = total = 0
    latest_s, points, open_trials = 0.0, list[tuple[int, float]](), 0
    for name, rounds in trials.items():
        times_s: dict[int, float] = {}
        ended = False
        for entry in _entries(results, name):
            if "start" in entry:
                ended = False
            elif "end" in entry:
                ended = True
            elif "round" in entry:
                times_s.setdefault(int(entry["round"]), float(entry["time"]) / 1000)
        reached = max(times_s, default=0)
        done += reached
        total += reached if ended else max(reached, rounds)
        open_trials += not ended
        if times_s and max(times_s.values()) > latest_s:
            latest_s, points = max(times_s.values()), sorted(times_s.items())[-RECENT:]
    # The median ignores the long gap between two rounds during which the queue was stopped.
    steps = [(late - early) / (n - m) for (m, early), (n, late) in itertools.pairwise(points)]
    concurrent = max(1, min(cpus, open_trials))
    return Progress(done, total, statistics.median(steps) / concurrent if steps else None)


def _entries(results: Path, trial: str) -> Iterable[dict[str, Any]]:
    """Yield the entries of a trial's journal in the newest sweep that has one."""
    paths = sorted(results.glob(f"*/journal/{trial}.jsonl"))
    for line in paths[-1].read_bytes().split(b"\n") if paths else []:
        try:
            yield from_line(line)[0]
        except ValueError:  # the line is damaged or still being written
            continue


def is_exported(place: Path, trials: Iterable[str]) -> bool:
    """Return whether the export at `place` has every one of `trials` with its end."""
    from hflray.report.exports import content_of, files_of

    try:
        runs = content_of(files_of(place))["runs"]
        ended = {run["name"] for run in runs if run["status"] == "FINISHED"}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return set(trials) <= ended
