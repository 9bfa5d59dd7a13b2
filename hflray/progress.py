"""What a person sees while a sweep runs: one live display on a terminal, plain lines anywhere else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class SweepProgress:
    """Progress of the trials of a sweep.

    Args:
        console: where to; not a terminal: plain lines.
        trials: number of trials.
        quiet: show nothing.
    """

    def __init__(self, console: Console, trials: int, quiet: bool = False) -> None:
        self._console, self._quiet, self._live = console, quiet, console.is_terminal and not quiet
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not self._live,
            transient=True,
        )
        self._total = self._progress.add_task("[bold]trials", total=trials, note="")
        self._tasks: dict[str, TaskID] = {}
        self._failed = 0

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
        """A trial began (or began again)."""
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(name, total=rounds, note="starting")
        self._plain(f"{name}: started")

    def round(self, key: str, name: str, index: int, rounds: int, text: str) -> None:
        """A trial finished a round."""
        self._progress.update(self._tasks[key], completed=index, note=text)
        self._plain(f"{name}: round {index}/{rounds}, {text}")

    def ended(self, key: str, name: str, error: str | None = None) -> None:
        """A trial ended; a failure stays on the screen."""
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))
        self._failed += error is not None
        self._progress.update(self._total, advance=1, note=f"[red]{self._failed} failed" if self._failed else "")
        if error:
            self._console.print(f"{name}: failed: {error}", style="red", markup=False, highlight=False)
        else:
            self._plain(f"{name}: done")

    def line(self, text: str) -> None:
        """A line that stays."""
        if not self._quiet:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _plain(self, text: str) -> None:
        if not self._live:
            self.line(text)
