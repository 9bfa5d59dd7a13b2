"""A sweep's folder in the results: what it was asked for, whether it is finished, and how it is found again.

``sweep.json`` is written before the first trial starts and again when the last has ended, each time in one step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from hflray.config import TrackingConfig, validate
from hflray.errors import ConfigError, nearest
from hflray.sweep import SweepFile

VERSION = 1
FILE = "sweep.json"
LOCK = ".lock"


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Have a sweep's folder to oneself, until the process ends. Raises ConfigError: another process has it."""
    path.mkdir(parents=True, exist_ok=True)
    # A disk without locks is an error: filelock's soft locks, which are mere files, would outlive a killed process.
    lock = FileLock(path / LOCK, fallback_to_soft=False)
    try:
        held = lock.acquire(blocking=False)
    except Timeout as error:
        owner = (path / LOCK).read_text(encoding="utf-8") or "?"
        raise ConfigError(f"{path}: process {owner} is running this sweep; stop it first") from error
    with held:
        (path / LOCK).write_text(str(os.getpid()), encoding="utf-8")
        yield


@dataclass
class SweepFolder:
    """A sweep's folder.

    Attributes:
        path: the folder; its name is the sweep's name and the time it began.
        file: the resolved sweep file.
        uri, experiment: where its runs are logged.
        finished: whether every trial has ended.
        storage: where Tune keeps trials and checkpoints, `s3://…` or a shared folder; None: in `path`.
        sinks: names of the trackers that its runs are sent to.
    """

    path: Path
    file: SweepFile
    uri: str
    experiment: str
    finished: bool = False
    storage: str | None = None
    sinks: tuple[str, ...] = TrackingConfig().sinks

    def save(self) -> None:
        """Write ``sweep.json``."""
        self.path.mkdir(parents=True, exist_ok=True)
        content = {
            "version": VERSION,
            "file": self.file.model_dump(mode="json", exclude_unset=True),
            "uri": self.uri,
            "experiment": self.experiment,
            "finished": self.finished,
            "storage": self.storage,
            "sinks": list(self.sinks),
        }
        scratch = self.path / f".{FILE}"
        scratch.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
        os.replace(scratch, self.path / FILE)

    @classmethod
    def load(cls, path: Path) -> SweepFolder:
        """Read ``sweep.json``. Raises ConfigError: it is damaged or of another version."""
        try:
            content = json.loads((path / FILE).read_text(encoding="utf-8"))
            version = content["version"]
            if version != VERSION:
                raise ConfigError(
                    f"{path}: made by another hflray (version {version}, this one reads {VERSION}); use that one"
                )
            file = validate(SweepFile, content["file"])
            storage = content.get("storage")  # since 0.1.0 had it
            sinks = tuple(content.get("sinks", TrackingConfig().sinks))  # likewise
            return cls(path, file, content["uri"], content["experiment"], content["finished"], storage, sinks)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path / FILE}: cannot be read ({error}); begin anew with --fresh") from error


def new_folder(results: Path, file: SweepFile, uri: str, experiment: str) -> SweepFolder:
    """A folder that does not exist yet, for a sweep that begins now."""
    stem = f"{file.name}-{time.strftime('%Y%m%d-%H%M%S')}"
    path, number = results / stem, 1
    while path.exists():
        number += 1
        path = results / f"{stem}-{number}"
    return SweepFolder(path.resolve(), file, uri, experiment)


def unfinished(results: Path, name: str) -> Path | None:
    """The latest unfinished sweep called `name`, if there is one."""
    for path in sorted(results.glob(f"{name}-*/{FILE}"), reverse=True):
        try:
            folder = SweepFolder.load(path.parent)
        except ConfigError:
            continue
        if folder.file.name == name and not folder.finished:
            return path.parent
    return None


def locate(results: Path, name: str) -> SweepFolder:
    """The sweep of this folder name, or else the latest of this name, finished or not. Raises ConfigError."""
    folders = sorted(path.parent for path in results.glob(f"*/{FILE}"))
    for path in reversed(folders):
        if path.name == name or path.name.rpartition("-")[0].rpartition("-")[0] == name:
            return SweepFolder.load(path.resolve())
    known = ", ".join(path.name for path in folders) or "none"
    raise ConfigError(f"{name}: no such sweep in {results}{nearest(name, [p.name for p in folders])}; there: {known}")


def find(results: Path, name: str) -> SweepFolder:
    """The sweep that ``--resume NAME`` means: a folder's name, or the latest unfinished sweep of that name.

    Raises:
        ConfigError: there is none, or it is finished.
    """
    exact = results / name
    path = exact if (exact / FILE).exists() else unfinished(results, name)
    if path is None:
        for other in sorted(results.glob(f"{name}-*/{FILE}"), reverse=True):
            if other.parent.name.rpartition("-")[0].rpartition("-")[0] == name:
                SweepFolder.load(other.parent)  # one that cannot be read says why
        known = sorted(p.parent.name for p in results.glob(f"*/{FILE}"))
        listing = ", ".join(known) if known else "none"
        raise ConfigError(
            f"--resume {name}: no unfinished sweep of that name in {results}{nearest(name, known)}; there: {listing}"
        )
    folder = SweepFolder.load(path.resolve())
    if folder.finished:
        raise ConfigError(f"--resume {name}: that sweep is finished; run its file again to begin a new one")
    return folder
