"""The protocol `Sink` of a tracker, and the data that a tracker receives.

A tracker is one file with a class that inherits `Sink` and has `open`, `rounds` and `end`. It is registered under a
name (in `hflray.registry`, or through the entry point group ``hflray.sinks``) that ``tracking.sinks`` then accepts. It
is built with one argument, a `Place`, and called by a thread of its own (`hflray.tracking.sender`), so that a slow
tracker delays nothing else. An exception such as an OSError says that the tracker is away: it causes one warning, the
call is repeated later, and the rounds wait in the journal. An exception that only a bug raises (`BUGS`), such as a
TypeError or a KeyError, is said at once, and the tracker gets nothing more until `hflray sync`.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from hflray import registry
from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.contract import Contract, described, is_ours
from hflray.support.text import shown_address

SETTING = "tracking.sinks"

Status = Literal["FINISHED", "FAILED"]
# The types of errors by which a tracker's own code is wrong, and those among them by which an answer was wrong.
BUGS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError,
    RecursionError, StopIteration, TypeError, ValueError, ConfigError,
)  # fmt: skip
ANSWERS = (json.JSONDecodeError, UnicodeError, OSError)


@dataclass(frozen=True)
class Place:
    """The place where a sweep is tracked.

    Attributes:
        uri, experiment: ``tracking.uri`` and ``tracking.experiment``, the settings for MLflow.
        sweep: the name of the sweep's folder, which is the tag ``hflray.sweep`` of all its runs.
        folder: the sweep's results folder.
    """

    uri: str
    experiment: str
    sweep: str
    folder: Path


@dataclass(frozen=True)
class Run:
    """The description of a run at its start.

    Attributes:
        key: the run's name in the journal and in `hflray.tracking.Tracker`; unique within the sweep.
        name: the run's display name.
        params: the configuration, dotted key to value.
        tags: ``hflray.sweep``, ``hflray.trial`` (the key), ``hflray.task`` and others.
        artifacts: texts to store with the run, file name to content: ``config.yaml``, ``environment.json``.
        dataset: ``name``, ``digest``, ``source`` and ``profile`` of the run's data, or None.
    """

    key: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    dataset: Mapping[str, str] | None = None


class Round(NamedTuple):
    """One round: its number, the time of its end in ms since 1970, and its finite metrics by glossary name."""

    number: int
    time_ms: int
    values: dict[str, float]


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        status: ``FINISHED`` or ``FAILED``.
        error: why the run failed, or None.
        tags: the tags that are set at the end, such as ``hflray.error``.
        values: the last value of every metric, including metrics of the run's end.
    """

    status: Status
    error: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)


class Artifact(Protocol):
    """Files, or the final model (`hflray.tracking.FinalModel`), that are stored with a run when it has ended."""

    def write(self, folder: Path) -> Sequence[Path]:
        """Return the paths of the artifact's files. Files that do not exist yet are written into `folder`."""


@dataclass(frozen=True)
class Files:
    """Files whose paths `make` returns when they are sent. `make` may write them into the folder that it receives."""

    make: Callable[[Path], Sequence[Path]]

    def write(self, folder: Path) -> Sequence[Path]:
        """Return the paths of the files."""
        return self.make(folder)


class Sink(Protocol):
    """A tracker. Messages about it are composed of its class attributes.

    Attributes:
        title: the tracker's name.
        where: its address or folder.
        setting, repair: the setting that names it, and what the user should do if it cannot be opened.
        away, back, later: the predicates for failing calls and for calls that succeed again, and the time to send the
            missed rounds.
        batch: the largest number of metrics (rounds × names) in a call of `rounds`, except that a call has at least one
            round.

    Examples:
        >>> from hflray.tracking.sink import Ending, Round, Run, Sink
        >>> class Printed(Sink):
        ...     title, where = "printed", "the terminal"
        ...     def open(self, run):
        ...         return -1
        ...     def rounds(self, run, rounds):
        ...         print(*(f"{run.name}: round {made.number}, {made.values}" for made in rounds))
        ...     def end(self, run, ending):
        ...         print(f"{run.name}: {ending.status}")
        >>> sink, run = Printed(), Run(key="0", name="trial 0")
        >>> sink.rounds(run, [Round(1, 0, {"accuracy": 0.5})])
        trial 0: round 1, {'accuracy': 0.5}
        >>> sink.end(run, Ending("FINISHED"))
        trial 0: FINISHED
    """

    title: str
    where: str
    setting: str = SETTING
    repair: str = "start that server"
    away: str = "does not answer"
    back: str = "answers again"
    later: str = "when the server is back"
    batch: int = 1000

    def connect(self) -> None:
        """Connect to the tracker, or raise. This is the first call, and the first one after a failure."""
        return

    def may_wait(self) -> bool:
        """Return whether `connect` is sure to succeed, so that it may wait for the first round, which comes sooner."""
        return False

    @abstractmethod
    def open(self, run: Run) -> int:
        """Create the run, or find it by its key and sweep; return its last round, or -1 for none.

        It is called when the run begins or begins again, and after a failure, since what arrived is not known then.
        """

    def has_all(self, run: Run) -> bool:
        """Return, after `open`, whether the run had ended here before, with all its artifacts.

        A run that has ended gets its artifacts unless this holds and no round was missing.
        """
        return True

    @abstractmethod
    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Log rounds in ascending order. The run has none of them yet."""

    def artifact(self, run: Run, artifact: Artifact) -> None:
        """Store an artifact with the run. After three failures the artifact is dropped with a warning."""
        return

    @abstractmethod
    def end(self, run: Run, ending: Ending) -> None:
        """Close the run, whose rounds and artifacts have all arrived. A run that begins again is opened again."""

    def seen_at(self) -> str | None:
        """Return a line for the end of a sweep that says where its runs can be seen, or None."""
        return None


class FolderSink(Sink):
    """A tracker that writes files into a folder of its own in the sweep's folder.

    Args:
        place: where the sweep is tracked.

    Attributes:
        folder: the name of its folder.
    """

    folder: str
    repair = "make that folder writable"
    away = "cannot be written"
    back = "can be written again"
    later = "when it can be written again"

    def __init__(self, place: Place) -> None:
        self._folder = place.folder / self.folder
        self.where = str(self._folder)

    def connect(self) -> None:
        """Make the folder. Raises OSError: the folder cannot be made."""
        self._folder.mkdir(parents=True, exist_ok=True)


def is_bug(sink: Sink, error: BaseException) -> bool:
    """Return whether an error says that a tracker of the user's own is wrong, and not that it cannot be reached."""
    return not is_ours(sink) and isinstance(error, BUGS) and not isinstance(error, ANSWERS)


def opened(sink: Sink, run: Run) -> int:
    """Open a run; return its last round. Raises ConfigError: the tracker returned something else."""
    accepted = "the number of the last round that it has, or -1 for none"
    return int(Contract.of(SETTING, sink, accepted, "mend its method open").array(sink.open(run), (), "i", -1))


def build(name: str, place: Place) -> Sink:
    """Build a tracker by its name or reference.

    Raises:
        ConfigError: it is unknown, cannot be built, or is no `Sink`.
    """
    made = registry.resolve("sink", name)
    accepted = "a class that extends hflray.tracking.Sink, is built with a Place, and has a title and where, two texts"
    contract = Contract.of(SETTING, name, accepted)
    try:
        sink = made(place)
    except ConfigError:
        raise
    except Exception as error:  # a user's class may raise any type
        raise ConfigError(
            f"{SETTING}: {contract.part} cannot be built ({references.reason(error)}); accepted: {accepted}; correct it"
        ) from error
    if Sink not in type(sink).__mro__:
        raise contract.error(described(sink))
    for attribute in ("title", "where"):
        if not isinstance(value := getattr(sink, attribute, None), str):
            raise contract.error(f"{described(value)} as its {attribute}")
    built: Sink = sink
    return built


def reason(error: Exception) -> str:
    """Return the reason of an error in one line; long messages of connection errors are reduced to their cause."""
    text = str(error).strip() or type(error).__name__
    if match := re.search(r"\[Errno -?\d+\] ([\w ]+)", text):
        return match[1].strip().lower()
    if "timed out" in text:
        return "no answer in time"
    return shown_address(text.splitlines()[0])[:200]
