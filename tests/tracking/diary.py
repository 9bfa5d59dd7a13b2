"""A second tracker, written like one outside the repository."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from hflray.tracking import Artifact, Ending, Place, Round, Run, Sink


@dataclass
class Page:
    """What the diary has of a run."""

    rounds: list[Round] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    ending: Ending | None = None


class Diary(Sink):
    """Writes pages, which stay when a diary is opened again, and records its calls.

    A call fails before it does anything if `fail_in` names it, and after it has done all if `lost_in` does; it waits
    while `hold` is unset.
    """

    title = "the diary"
    made: ClassVar[list[Diary]] = []
    pages: ClassVar[dict[str, Page]] = {}

    def __init__(self, place: Place) -> None:
        self.place, self.where = place, "my desk"
        self.pages = Diary.pages  # those of its test, also where its thread outlives the test
        self.calls: list[tuple[object, ...]] = []
        self.fail_in: set[str] = set()
        self.lost_in: set[str] = set()
        self.error: Exception = ConnectionError("nobody there")
        self.hold: threading.Event | None = None
        self.had: set[str] = set()  # the runs that had ended when they were opened
        Diary.made.append(self)

    def _call(self, name: str, *arguments: object, does: Callable[[], object] = lambda: None) -> None:
        if self.hold is not None and name != "connect":
            self.hold.wait(60)
        if name in self.fail_in:
            self.calls.append((f"{name} failed", *arguments))
            raise self.error
        does()
        self.calls.append((name, *arguments))
        if name in self.lost_in:
            raise self.error

    def connect(self) -> None:
        self._call("connect")

    def open(self, run: Run) -> int:
        self._call("open", run)
        page = self.pages.setdefault(run.key, Page())
        if page.ending is not None:
            self.had.add(run.key)
        page.ending = None
        return max((round.number for round in page.rounds), default=-1)

    def has_all(self, run: Run) -> bool:
        return run.key in self.had

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        self._call("rounds", run.key, list(rounds), does=lambda: self.pages[run.key].rounds.extend(rounds))

    def artifact(self, run: Run, artifact: Artifact) -> None:
        self._call("artifact", run.key, does=lambda: self.pages[run.key].artifacts.append(artifact))

    def end(self, run: Run, ending: Ending) -> None:
        self._call("end", run.key, does=lambda: setattr(self.pages[run.key], "ending", ending))

    def seen_at(self) -> str:
        return "Read the diary on my desk"

    def of(self, name: str) -> list[tuple[object, ...]]:
        """Return the arguments of the calls of this name, oldest first."""
        return [call[1:] for call in self.calls if call[0] == name]

    def numbers(self, key: str = "t1") -> list[int]:
        """Return the numbers of a run's rounds that have arrived."""
        return [round.number for round in self.pages[key].rounds] if key in self.pages else []

    def ending(self, key: str = "t1") -> Ending | None:
        """Return the end of a run."""
        return self.pages[key].ending if key in self.pages else None


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
