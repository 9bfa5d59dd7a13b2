"""What `hflray.tune.queue` runs: the list of its items, what is known of each, and how far it has come.

An item is one sweep, a part of an exhibit such as a figure. Its folder in the queue's folder holds ``state.json``,
``tree`` (the frozen code), ``results`` and ``log.txt``.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from hflray.config import Section, read_mapping, validate
from hflray.errors import ConfigError, nearest
from hflray.sweep import SweepFile, expand, load_sweep
from hflray.tasks import find_task

NAME = r"^[A-Za-z0-9][A-Za-z0-9_]*$"  # of a folder; no hyphen, which joins exhibit and part
STATE = "state.json"
RECENT = 10  # rounds from which a rate is taken

Stage = Literal["waiting", "running", "stopped", "ended", "finished", "failed"]


class Item(Section):
    """One sweep of the list."""

    exhibit: str = Field(pattern=NAME, description="folder of its exports, such as fig3_fashion_scheduling")
    part: str = Field(pattern=NAME, description="which part of the exhibit it is, such as h50")
    file: str = Field(pattern=NAME, description="a sweep file of tune_configs/, without .yaml")
    set: list[str] = Field([], description="what --set changes in the file")

    @property
    def name(self) -> str:
        """What the item is called."""
        return f"{self.exhibit}-{self.part}"

    @property
    def path(self) -> str:
        """Its sweep file, from the repository's root."""
        return f"tune_configs/{self.file}.yaml"


class QueueFile(Section):
    """The list of the queue."""

    experiments: list[str] = Field([], description="what --set changes in every sweep that trains a global model")
    items: list[Item]

    @model_validator(mode="after")
    def _names_differ(self) -> Self:
        names = [item.name for item in self.items]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"items: two are called {', '.join(twice)}; give every part of an exhibit its own name")
        return self


def load_items(path: Path) -> QueueFile:
    """Read the list. Raises ConfigError: one line per mistake."""
    return validate(QueueFile, read_mapping(path))


def find_item(items: Iterable[Item], name: str) -> Item:
    """The item called `name`, with ``-`` or ``/`` between exhibit and part. Raises ConfigError: there is none."""
    known = {item.name: item for item in items}
    wanted = name.replace("/", "-")
    if wanted not in known:
        raise ConfigError(f"{name}: no such item{nearest(wanted, known)}; there: {', '.join(known)}")
    return known[wanted]


def sweep_of(root: Path, item: Item, experiments: list[str]) -> tuple[SweepFile, list[str]]:
    """An item's sweep with the code at `root`, and the overrides that make it. Raises ConfigError."""
    task = find_task(load_sweep(root / item.path).task)
    overrides = [*(experiments if task.trains_model else []), *item.set]
    return load_sweep(root / item.path, overrides), overrides


def trials_of(file: SweepFile) -> dict[str, int]:
    """How far every trial of a sweep can come, by its name: rounds, or steps of learning; 0: nobody knows."""
    task = find_task(file.task)
    return {trial.name: task.steps(trial.config) for trial in expand(file)}


@dataclass
class State:
    """What is known of an item that has begun.

    Attributes:
        stage: waiting (has not begun), running, stopped, ended (its last export is still to be made), finished, failed.
        commit, python, packages: its frozen code and environment.
        overrides, trials: its sweep, see `sweep_of` and `trials_of`.
        cpus: how many trials run at a time.
        pid: process of its sweep, or of the last one.
        exported: when its export was last made, in seconds since 1970; 0: never.
        error: why it failed.
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
        """Write ``state.json`` in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / STATE, json.dumps(asdict(self), indent=1, ensure_ascii=False))

    @classmethod
    def load(cls, folder: Path) -> State:
        """Read ``state.json``; an item without one has not begun. Raises ConfigError: it is damaged."""
        path = folder / STATE
        if not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path}: cannot be read ({error}); drop the item to begin it anew") from error


def write(path: Path, text: str) -> None:
    """Write a small file in one step: it is there whole or not at all."""
    scratch = path.with_name(f".{path.name}.part")
    scratch.write_text(text, encoding="utf-8")
    os.replace(scratch, path)


@dataclass(frozen=True)
class Progress:
    """How far an item is.

    Attributes:
        done, total: rounds (or steps of learning) of all trials; those of a trial that ended early count as its total.
        rate_s: seconds that one of them took lately, with all trials that run at a time; None: nobody knows.
    """

    done: int
    total: int
    rate_s: float | None

    @property
    def left_s(self) -> float | None:
        """Seconds left at this rate, at most: trials with a target end when they reach it."""
        return None if self.rate_s is None else self.rate_s * (self.total - self.done)


def progress(trials: Mapping[str, int], results: Path, cpus: int = 1) -> Progress:
    """Read how far a sweep's trials are from its journal in the folder `results`."""
    done = total = 0
    newest, points, open_trials = 0.0, list[tuple[int, float]](), 0
    for name, rounds in trials.items():
        seen: dict[int, float] = {}
        ended = False
        for entry in _entries(results, name):
            if "start" in entry:
                ended = False
            elif "end" in entry:
                ended = True
            elif "round" in entry:
                seen.setdefault(int(entry["round"]), float(entry["time"]) / 1000)
        come = max(seen, default=0)
        done += come
        total += come if ended else max(come, rounds)
        open_trials += not ended
        if seen and max(seen.values()) > newest:
            newest, points = max(seen.values()), sorted(seen.items())[-RECENT:]
    # The median leaves out the gap that a stopped queue leaves between two rounds.
    steps = [(late - early) / (n - m) for (m, early), (n, late) in itertools.pairwise(points)]
    at_a_time = max(1, min(cpus, open_trials))
    return Progress(done, total, statistics.median(steps) / at_a_time if steps else None)


def _entries(results: Path, trial: str) -> Iterable[dict[str, Any]]:
    """Whole lines of a trial's journal, in the newest sweep that has one."""
    paths = sorted(results.glob(f"*/journal/{trial}.jsonl"))
    for line in paths[-1].read_text(encoding="utf-8", errors="replace").splitlines() if paths else []:
        try:
            yield json.loads(line)
        except ValueError:  # a line that is being written
            continue


def is_exported(folder: Path, trials: Iterable[str]) -> bool:
    """Whether the export in `folder` holds every one of these trials to its end."""
    try:
        runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))["runs"]
        ended = {run["name"] for run in runs if run["status"] == "FINISHED"}
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return set(trials) <= ended
