"""What a person sees while a sweep runs: one live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class SweepProgress:
    """Progress of the trials of a sweep: how many are done, running and failed, each one's round, the time left.

    Args:
        console: where to; not a terminal: plain lines.
        trials: number of trials.
        quiet: show nothing.
    """

    def __init__(self, console: Console, trials: int, quiet: bool = False) -> None:
        self._console, self._quiet, self._live = console, quiet, console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not self._live,
            transient=True,
        )
        self._trials = trials
        self._total = self._progress.add_task("[bold]trials", total=trials, note="")
        self._tasks: dict[str, TaskID] = {}
        self._done = self._failed = 0
        # For the time left: rounds of each trial seen, how many are behind it, and those done by this process.
        self._rounds: dict[str, int] = {}
        self._behind: dict[str, int] = {}
        self._made = 0
        self._begun: float | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Say what is going on before the trials start."""
        if not self._live:
            self.line(f"{text} …")
        self._progress.update(self._total, note=text)
        try:
            yield
        finally:
            self._progress.update(self._total, note="")

    def started(self, key: str, name: str, rounds: int) -> None:
        """A trial began, or goes on."""
        self._begun = self._begun or time.monotonic()
        new = key not in self._rounds
        self._rounds[key] = rounds
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(name, total=rounds, note="starting")
            self._progress.update(self._tasks[key], completed=self._behind.get(key, 0))
        if new:
            self._plain(f"{name}: started")
        self._summarise()

    def round(self, key: str, name: str, index: int, rounds: int, text: str, unit: str = "round") -> None:
        """A trial finished a round, or has come so far in another unit."""
        self._made += max(0, index - self._behind.get(key, 0))
        self._behind[key] = index
        if key in self._tasks:
            self._progress.update(self._tasks[key], completed=index, note=text)
        self._plain(f"{name}: {unit} {index}/{rounds}, {text}")
        self._summarise()

    def resumed(self, key: str, index: int) -> None:
        """An earlier process made the trial's rounds up to this one."""
        self._behind[key] = index

    def ended(self, key: str, name: str, error: str | None = None, stopped: str | None = None) -> None:
        """A trial ended, or was stopped early; a failure stays on the screen."""
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        self._rounds[key] = self._behind.get(key, 0)  # nothing is left of it
        self._done += 1
        self._failed += error is not None
        self._progress.update(self._total, advance=1)
        if error:
            self._console.print(f"{name}: failed: {error}", style="red", markup=False, highlight=False)
        else:
            self._plain(f"{name}: done" + (f", stopped early: {stopped}" if stopped else ""))
        self._plain(self._summarise())

    def line(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def remaining_s(self) -> float | None:
        """Seconds left, if the rounds to come take as long as those of this process did; None before the first."""
        if self._made <= 0 or self._begun is None or not self._rounds:
            return None
        seen = sum(self._rounds.values())
        unseen = max(0, self._trials - len(self._rounds)) * seen / len(self._rounds)
        to_come = sum(max(0, self._rounds[key] - self._behind.get(key, 0)) for key in self._rounds) + unseen
        return (time.monotonic() - self._begun) / self._made * to_come

    def _summarise(self) -> str:
        """The line about all trials; on the display as well."""
        left = self.remaining_s()
        parts = [f"{self._done - self._failed} of {self._trials} done", f"{len(self._tasks)} running"]
        parts += [f"{self._failed} failed"] if self._failed else []
        parts += [f"about {duration(left)} left"] if left and self._done < self._trials else []
        self._progress.update(self._total, note=", ".join(parts[1:]))
        return ", ".join(parts)

    def _plain(self, text: str) -> None:
        if not self._live:
            self.line(text)


def duration(seconds: float) -> str:
    """Seconds as a person says it: 42 s, 3 min, 2.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
