"""Exports of the queue's items in the repository, renewed while their sweeps run; the queue commits nothing."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hflray.tune.frozen import git
from hflray.tune.items import Item, QueueFile, State, is_exported, sweep_of, trials_of
from hflray.tune.queue.processes import Children

EXPORTS = Path("tests/data/results")
RESULTS_PAGE = Path("tune_configs/RESULTS.md")
NOBODY = "http://127.0.0.1:9"  # the discard port: the report takes the journal instead of MLflow


class Publisher:
    """Exports what the items of a queue have so far.

    Args:
        folder: of the queue.
        repository: the checkout whose exports it renews.
        children: starts the reports.
        stopping: whether the queue is being stopped, which ends a report.
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
        """Export an item's runs and write RESULTS.md anew. What fails is said, not raised."""
        place = self._folder / item.name
        tree, scratch = place / "tree", place / "export"
        before, state.exported = state.exported, time.time()
        state.save(place)
        shutil.rmtree(scratch, ignore_errors=True)
        sweep = max((path.parent.name for path in (place / "results").glob("*/sweep.json")), default="")
        report = [state.python, "-m", "hflray.report"]
        # From the journal: a second reader of the SQLite file would hold up the sweep that writes it.
        export = [*report, sweep, "--results", str(place / "results"), "--tracking-uri", NOBODY]
        export += ["--export", str(scratch / "runs"), "--out", str(scratch / "report")]
        if not sweep or not self.call(export, place, tree, place / "export.txt"):
            if self._stopping():
                state.exported = before  # so that it is made soon after the queue goes on
                state.save(place)
                return
            self._say(f"{item.name}: not exported, see {place / 'export.txt'}")
            return
        (made,) = (scratch / "runs").glob("*/runs.json")
        publish(made.parent, exports_of(self._repository, item))
        shutil.rmtree(scratch, ignore_errors=True)
        page, text = self._repository / RESULTS_PAGE, self._folder / RESULTS_PAGE.name
        command = [sys.executable, "-m", "hflray.report", "results", "--from", str(EXPORTS), "--out", str(text)]
        if self.call(command, self._repository, self._repository, place / "export.txt"):
            replace(text, page)
        else:
            self._say(f"{item.name}: {RESULTS_PAGE} is not renewed, see {place / 'export.txt'}")
        self._say(f"{item.name}: exported; {to_commit(self._repository)}")

    def call(self, command: Sequence[str], place: Path, tree: Path, log: Path) -> bool:
        """Run a report, see `Children.call`."""
        return self._children.call(command, place, tree, log, self._stopping)


def exports_of(repository: Path, item: Item) -> Path:
    """The folder of an item's export."""
    return repository / EXPORTS / item.exhibit / item.part


def has_file(repository: Path, commit: str, path: str) -> bool:
    """Whether a commit holds a file."""
    return bool(git(repository, "ls-tree", "--name-only", commit, "--", path))


def is_done(repository: Path, queue: QueueFile, item: Item) -> bool:
    """Whether the repository holds the item's whole export, whoever made it. False if its sweep file is not there."""
    folder = exports_of(repository, item)
    if not (folder / "runs.json").exists() or not (repository / item.path).exists():
        return False
    return is_exported(folder, trials_of(sweep_of(repository, item, queue.experiments)[0]))


def publish(source: Path, target: Path) -> None:
    """Put the export `source` in the place of the one in `target`, so that a reader finds a whole one at any time.

    Each file is replaced in one step. ``runs.json``, which names the others, comes after them, and files that it does
    not name any more go last.
    """
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(path for path in source.iterdir() if path.name != "runs.json")
    for path in [*files, source / "runs.json"]:
        replace(path, target / path.name)
    keep = {path.name for path in source.iterdir()}
    for path in target.glob("*.parquet"):
        if path.name not in keep:
            path.unlink()


def replace(source: Path, target: Path) -> None:
    scratch = target.with_name(f".{target.name}.part")
    shutil.copyfile(source, scratch)
    os.replace(scratch, target)


def to_commit(repository: Path) -> str:
    """One line that says which exports and pages are not committed."""
    words = ("status", "--porcelain", "--untracked-files=all", "--", str(EXPORTS), str(RESULTS_PAGE))
    files = [Path(line.split(maxsplit=1)[1].strip('"')) for line in git(repository, *words).splitlines()]
    if not files:
        return "all exports are committed"
    places = sorted({str(path.parent) for path in files if path != RESULTS_PAGE})
    places += [str(RESULTS_PAGE)] if RESULTS_PAGE in files else []
    return f"to be committed: {', '.join(places)}"
