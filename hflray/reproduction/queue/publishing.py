"""Exports of the queue's items in the repository, renewed while their sweeps run. The queue commits nothing."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hflray.reproduction.queue.frozen import git
from hflray.reproduction.queue.items import Item, QueueFile, State, is_exported, sweep_of, trials_of
from hflray.reproduction.queue.processes import Children
from hflray.support.files import write
from hflray.sweep.results import by_start

EXPORTS = Path("tests/data/results")
RESULTS_PAGE = Path("tune_configs/RESULTS.md")
NO_SERVER = "http://127.0.0.1:9"  # nothing answers at the discard port, so the report reads the journal


class Publisher:
    """Export the results so far of a queue's items.

    Args:
        folder: the queue's folder.
        repository: the checkout whose exports are renewed.
        children: starts the reports.
        stopping: returns whether the queue is being stopped, which ends a report.
        say: prints a line.
    """

    def __init__(
        self,
        folder: Path,
        repository: Path,
        children: Children,
        stopping: Callable[[], bool],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._repository, self._children = folder, repository, children
        self._stopping, self._say = stopping, say

    def renew(self, item: Item, state: State) -> None:
        """Export an item's runs and write RESULTS.md again. A failure is printed, not raised."""
        from hflray.report.exports import abridged, exports, files_of, pack

        place = self._folder / item.name
        tree, scratch = place / "tree", place / "export"
        before, state.exported = state.exported, time.time()
        state.save(place)
        shutil.rmtree(scratch, ignore_errors=True)
        sweep = next((path.name for path in by_start(place / "results")), "")
        report = [state.python, "-m", "hflray.report"]
        # The report reads the journal: a second reader of the SQLite file would delay the sweep that writes it.
        export = [*report, sweep, "--results", str(place / "results"), "--tracking-uri", NO_SERVER]
        export += ["--export", str(scratch / "runs"), "--out", str(scratch / "report")]
        if not sweep or not self.call(export, place, tree, place / "export.txt"):
            if self._stopping():
                state.exported = before  # the export is then made soon after the queue continues
                state.save(place)
                return
            self._say(f"{item.name}: not exported, see {place / 'export.txt'}")
            return
        (source,) = exports(scratch / "runs")
        pack(export_of(self._repository, item), abridged(files_of(source)))  # it is committed, so that it stays small
        shutil.rmtree(scratch, ignore_errors=True)
        page, text = self._repository / RESULTS_PAGE, self._folder / RESULTS_PAGE.name
        command = [sys.executable, "-m", "hflray.report", "results", "--from", str(EXPORTS), "--out", str(text)]
        if self.call(command, self._repository, self._repository, place / "export.txt"):
            replace(text, page)
        else:
            self._say(f"{item.name}: {RESULTS_PAGE} is not renewed, see {place / 'export.txt'}")
        self._say(f"{item.name}: exported; {to_commit(self._repository)}")

    def call(self, command: Sequence[str], place: Path, tree: Path, log: Path) -> bool:
        """Run a report and return whether it succeeded, see `Children.call`."""
        return self._children.call(command, place, tree, log, self._stopping)


def export_of(repository: Path, item: Item) -> Path:
    """Return the place of an item's export, see `hflray.report.exports`."""
    return repository / EXPORTS / item.exhibit / item.part


def has_file(repository: Path, commit: str, path: str) -> bool:
    """Return whether a commit has a file."""
    return bool(git(repository, "ls-tree", "--name-only", commit, "--", path))


def is_done(repository: Path, queue: QueueFile, item: Item) -> bool:
    """Return whether the repository has the item's whole export and its sweep file, on whatever machine it was made."""
    if not (repository / item.path).exists():
        return False
    return is_exported(export_of(repository, item), trials_of(sweep_of(repository, item, queue.experiments)[0]))


def replace(source: Path, target: Path) -> None:
    """Write a file's content to another place, whole or not at all."""
    write(target, source.read_bytes())


def to_commit(repository: Path) -> str:
    """Return one line that names the exports and pages that are not committed."""
    arguments = ("status", "--porcelain", "--untracked-files=all", "--", str(EXPORTS), str(RESULTS_PAGE))
    files = sorted(line.split(maxsplit=1)[1].strip('"') for line in git(repository, *arguments).splitlines())
    return f"to be committed: {', '.join(files)}" if files else "all exports are committed"
