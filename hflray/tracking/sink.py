"""What a tracker has to offer: the protocol `Sink`, and what it is given.

A tracker is one file: a class that inherits `Sink` and has `open`, `rounds` and `end`, registered under a name (in
`hflray.registry`, or through the entry point group ``hflray.sinks``) that ``tracking.sinks`` then accepts. It is built
with one argument, a `Place`, and called by one thread of its own (`hflray.tracking.sender`), so that it may take its
time. Whatever it raises costs one warning: the call is made again later, and the rounds wait in the journal.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

Status = Literal["FINISHED", "FAILED"]


@dataclass(frozen=True)
class Place:
    """Where a sweep is tracked.

    Attributes:
        uri, experiment: ``tracking.uri`` and ``tracking.experiment``; both are MLflow's.
        sweep: name of the sweep's folder, the tag ``hflray.sweep`` of all its runs.
        folder: of this sweep's results.
    """

    uri: str
    experiment: str
    sweep: str
    folder: Path


@dataclass(frozen=True)
class Run:
    """What a run is, known when it begins.

    Attributes:
        key: what the run is called in the journal and by `hflray.tracking.Tracker`; unique within the sweep.
        name: for people.
        params: the configuration, dotted key to value.
        tags: ``hflray.sweep``, ``hflray.trial`` (the key), ``hflray.task`` and others.
        artifacts: texts to keep with the run, file name to content: ``config.yaml``, ``environment.json``.
        dataset: ``name``, ``digest``, ``source`` and ``profile`` of its data, or None.
    """

    key: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, str] | None = None


class Round(NamedTuple):
    """One round: its number, the clock in ms since 1970 when it was done, and its finite metrics by glossary name."""

    number: int
    time_ms: int
    values: dict[str, float]


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: ``FINISHED``, or ``FAILED``.
        error: why it failed.
        tags: tags that are known at the end only; ``hflray.error`` among them.
        values: the last value of every metric, those known at the end included.
    """

    status: Status
    error: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


class Artifact(Protocol):
    """Something to keep with a run once it is done: files, or the final model (`hflray.tracking.model.FinalModel`)."""

    def write(self, folder: Path) -> Sequence[Path]:
        """Return the paths of its files, of which those that have to be made first are made in `folder`."""


@dataclass(frozen=True)
class Files:
    """Files that `make` returns when they are sent; it may write them into the folder that it is given."""

    make: Callable[[Path], Sequence[Path]]

    def write(self, folder: Path) -> Sequence[Path]:
        """Return the paths of the files."""
        return self.make(folder)


class Sink(Protocol):
    """A tracker. Its class attributes are how messages speak of it.

    Attributes:
        title: its name.
        where: what people find it under: an address, a folder.
        setting, repair: the setting that names it, and what to do if it cannot be opened.
        away, back, later: what it does when calls fail, what when they succeed again, and when to send the rest.
        batch: metrics (rounds × names) that `rounds` is given at most in one call, but always at least one round.
    """

    title: str
    where: str
    setting: str = "tracking.sinks"
    repair: str = "start that server"
    away: str = "does not answer"
    back: str = "answers again"
    later: str = "when the server is back"
    batch: int = 1000

    def connect(self) -> None:
        """Reach the tracker, or raise. It is called first of all, and again after a failure before anything else."""
        return

    @abstractmethod
    def open(self, run: Run) -> int:
        """Make the run, or find it again after a restart (by its key and sweep); return its last round, -1: none."""

    @abstractmethod
    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Log rounds: each later than those before, none that the run already has."""

    def artifact(self, run: Run, artifact: Artifact) -> None:
        """Keep an artifact with the run. It is given up, with a warning, when it has failed three times."""
        return

    @abstractmethod
    def end(self, run: Run, ending: Ending) -> None:
        """Close the run; all its rounds and artifacts have arrived. Should it go on, rounds and another end follow."""

    def seen_at(self) -> str | None:
        """One line for the end of a sweep that says where its runs can be seen."""
        return None


def reason(error: Exception) -> str:
    """What went wrong, in a line; of what a connection raises, which is long, the end."""
    text = str(error).strip() or type(error).__name__
    if known := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return known[1].strip().lower()
    if "timed out" in text:
        return "no answer in time"
    return text.splitlines()[0][:200]
