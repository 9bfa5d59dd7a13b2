"""A second tracker, as somebody else would write it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from hflray.tracking import Artifact, Ending, Place, Round, Run, Sink


class Diary(Sink):
    """It keeps what it is told, and fails or waits when asked to."""

    title = "the diary"
    made: ClassVar[list[Diary]] = []

    def __init__(self, place: Place) -> None:
        self.place, self.where = place, "my desk"
        self.calls: list[tuple[object, ...]] = []
        self.known: dict[str, int] = {}  # last round by key
        self.fail_in: set[str] = set()
        self.hold: threading.Event | None = None
        Diary.made.append(self)

    def _call(self, name: str, *about: object) -> None:
        if self.hold is not None and name != "connect":
            self.hold.wait(60)
        if name in self.fail_in:
            self.calls.append((f"{name} failed", *about))
            raise ConnectionError("nobody there")
        self.calls.append((name, *about))

    def connect(self) -> None:
        self._call("connect")

    def open(self, run: Run) -> int:
        self._call("open", run)
        return self.known.setdefault(run.key, -1)

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        self._call("rounds", run.key, list(rounds))
        self.known[run.key] = rounds[-1].number

    def artifact(self, run: Run, artifact: Artifact) -> None:
        self._call("artifact", run.key, artifact)

    def end(self, run: Run, ending: Ending) -> None:
        self._call("end", run.key, ending)

    def seen_at(self) -> str:
        return "Read the diary on my desk"

    def of(self, name: str) -> list[tuple[object, ...]]:
        """What was told under this name, oldest first."""
        return [call[1:] for call in self.calls if call[0] == name]

    def numbers(self, key: str) -> list[int]:
        """The rounds that arrived of a run."""
        return [round.number for of, rounds in self.of("rounds") if of == key for round in rounds]  # type: ignore[attr-defined]


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
