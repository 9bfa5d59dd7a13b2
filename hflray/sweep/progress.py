"""The output of a running sweep: one live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Self

from rich import progress
from rich.console import Console
from rich.table import Column
from rich.text import Text

from hflray.support.terminal.output import Waiting, say, timed
from hflray.support.terminal.tables import fold

TRIALS = "trials"  # the name of the line about all trials
WITH_BAR = 100  # width of a terminal with room for bars
BESIDE_NAME, LEAST_NAME = 36, 16  # characters beside a trial's name, and of a line of the name


class _Name(progress.ProgressColumn):
    """The name of a trial, on as many lines as it needs.

    Args:
        width: characters of a line.
    """

    def __init__(self, width: int) -> None:
        super().__init__(table_column=Column(no_wrap=True))
        self._width = width

    def render(self, task: progress.Task) -> Text:
        """Return the name."""
        lines = fold(task.description, self._width)
        return Text("\n".join(lines), style="bold" if task.description == TRIALS else "")


class SweepProgress:
    """Shows how many trials of a sweep are done, running and failed, each trial's round, and the remaining time.

    Args:
        console: the output; plain lines are printed if it is not a terminal.
        trials: the number of trials.
        quiet: whether to show failures only.
    """

    def __init__(self, console: Console, trials: int, quiet: bool = False) -> None:
        self._console, self._quiet, self._live = console, quiet, console.is_terminal and not quiet
        self._progress = progress.Progress(
            _Name(max(LEAST_NAME, console.width - BESIDE_NAME)),
            *([progress.BarColumn(bar_width=16)] if console.width >= WITH_BAR else []),
            progress.MofNCompleteColumn(),
            progress.TextColumn(
                "{task.fields[note]}", markup=False, table_column=Column()
            ),  # which may take several lines
            progress.TimeElapsedColumn(),
            console=console,
            disable=not self._live,
            transient=True,
        )
        self._trials = trials
        self._total = self._progress.add_task(TRIALS, total=trials, note="")
        self._tasks: dict[str, progress.TaskID] = {}
        self._done = self._failed = 0
        # For the remaining time: the total and the completed rounds of each started trial, the number of rounds that
        # this process has made, and the time of its first trial.
        self._rounds: dict[str, int] = {}
        self._completed: dict[str, int] = {}
        self._rounds_made = 0
        self._started_at: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Show `text` during a phase outside the trials, and for how long it lasts."""
        self._progress.update(self._total, note=Waiting(text))
        try:
            with nullcontext() if self._live or self._quiet else timed(self._console, text):
                yield
        finally:
            self._progress.update(self._total, note="")

    def started(self, key: str, name: str, rounds: int) -> None:
        """Show that a trial has started, or has resumed."""
        self._started_at = self._started_at or time.monotonic()
        new = key not in self._rounds
        self._rounds[key] = rounds
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(name, total=rounds, note="starting")
            self._progress.update(self._tasks[key], completed=self._completed.get(key, 0))
        if new:
            self._plain(f"{name}: started")
        self._summarise()

    def round(self, key: str, name: str, index: int, rounds: int, text: str, unit: str = "round") -> None:
        """Show that a trial has finished a round, or has progressed to `index` in another unit."""
        self._rounds_made += max(0, index - self._completed.get(key, 0))
        self._completed[key] = index
        if key in self._tasks:
            self._progress.update(self._tasks[key], completed=index, note=text)
        self._plain(f"{name}: {unit} {index}/{rounds}, {text}")
        self._summarise()

    def resumed(self, key: str, index: int) -> None:
        """Record that an earlier process made the trial's rounds up to `index`."""
        self._completed[key] = index

    def ended(self, key: str, name: str, error: str | None = None, stopped: str | None = None) -> None:
        """Show that a trial has ended or was stopped early. The line of a failure stays on the screen."""
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        self._rounds[key] = self._completed.get(key, 0)  # the trial has no further rounds
        self._done += 1
        self._failed += error is not None
        self._progress.update(self._total, advance=1)
        if error:
            say(self._console, f"{name}: failed: {error}", style="red")
        else:
            self._plain(f"{name}: done" + (f", stopped early: {stopped}" if stopped else ""))
        self._plain(self._summarise())

    def line(self, text: str) -> None:
        """Print a line that stays on the screen."""
        if not self._quiet:
            say(self._console, text)

    def remaining_s(self) -> float | None:
        """Return the remaining seconds if further rounds take as long as this process's rounds; None before the first.

        A trial that has not started counts with the mean number of rounds of the started trials.
        """
        if self._rounds_made <= 0 or self._started_at is None or not self._rounds:
            return None
        started = sum(self._rounds.values())
        unstarted = max(0, self._trials - len(self._rounds)) * started / len(self._rounds)
        remaining = sum(max(0, self._rounds[key] - self._completed.get(key, 0)) for key in self._rounds) + unstarted
        return (time.monotonic() - self._started_at) / self._rounds_made * remaining

    def _summarise(self) -> str:
        """Return the line about all trials, and show it on the display."""
        remaining_s = self.remaining_s()
        parts = [f"{self._done - self._failed} of {self._trials} done", f"{len(self._tasks)} running"]
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"about {duration(remaining_s)} left"] if remaining_s and self._done < self._trials else []
        self._progress.update(self._total, note=", ".join(parts[1:]))
        return ", ".join(parts)

    def _plain(self, text: str) -> None:
        if not self._live:
            self.line(text)


def duration(seconds: float) -> str:
    """Return seconds in a readable unit: 42 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
