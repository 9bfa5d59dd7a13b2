"""A second tracker, written like one outside the repository."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import ClassVar

from hflray.tracking import Artifact, Ending, Place, Round, Run, Sink


class Diary(Sink):
    """Records its calls. A call fails if `fail_in` names it, and waits while `hold` is unset."""

    title = "the diary"
    made: ClassVar[list[Diary]] = []

    def __init__(self, place: Place) -> None:
        self.place, self.where = place, "my desk"
        self.calls: list[tuple[object, ...]] = []
        self.last_rounds: dict[str, int] = {}  # the last round of each run, by key
        self.fail_in: set[str] = set()
        self.hold: threading.Event | None = None
        Diary.made.append(self)

    def _call(self, name: str, *arguments: object) -> None:
        if self.hold is not None and name != "connect":
            self.hold.wait(60)
        if name in self.fail_in:
            self.calls.append((f"{name} failed", *arguments))
            raise ConnectionError("nobody there")
        self.calls.append((name, *arguments))

    def connect(self) -> None:
        self._call("connect")

    def open(self, run: Run) -> int:
        self._call("open", run)
        return self.last_rounds.setdefault(run.key, -1)

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        self._call("rounds", run.key, list(rounds))
        self.last_rounds[run.key] = rounds[-1].number

    def artifact(self, run: Run, artifact: Artifact) -> None:
        self._call("artifact", run.key, artifact)

    def end(self, run: Run, ending: Ending) -> None:
        self._call("end", run.key, ending)

    def seen_at(self) -> str:
        return "Read the diary on my desk"

    def of(self, name: str) -> list[tuple[object, ...]]:
        """Return the arguments of the calls of this name, oldest first."""
        return [call[1:] for call in self.calls if call[0] == name]

    def numbers(self, key: str) -> list[int]:
        """Return the numbers of a run's rounds that have arrived."""
        return [round.number for run, rounds in self.of("rounds") if run == key for round in rounds]  # type: ignore[attr-defined]


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until the condition is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.01)
