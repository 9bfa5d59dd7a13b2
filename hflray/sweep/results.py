"""A sweep's folder in the results: its file, whether it is finished, and the search for it by name.

``sweep.json`` is written before the first trial starts and again when the last has ended, each time atomically.
"""

from __future__ import annotations

import json
import os
import re
import time
from calendar import timegm
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from hflray.config import TrackingConfig, inputs_in, policies_in, references_in, refuse_unpinned, validate_stored
from hflray.errors import ConfigError, nearest
from hflray.support import pinned, references
from hflray.support.checksum import checked, stamped
from hflray.support.files import write
from hflray.support.reader import fit, read_json
from hflray.support.references import SHOWN, Source
from hflray.support.terminal.app import spoken
from hflray.support.text import one_line, shown_address
from hflray.sweep import SweepFile
from hflray.tracking.schema import SweepContent

VERSION = 1
FILE = "sweep.json"
LOCK = ".lock"
STAMP = re.compile(r"-(\d{8}-\d{6})(?:-(\d+))?")  # the end of a folder's name: the time, and a number if that was taken
LEFT_OUT = ("reserve_mb",)
IN_STORAGE = "hflray"  # the subfolder of a sweep's folder in a storage that holds hflray's files
REFERENCES = "references"  # the folder with copies of the user's own files, for people and for `put the text back`


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Lock a sweep's folder for this process until the block or the process ends. Raises ConfigError: it is locked."""
    path.mkdir(parents=True, exist_ok=True)
    # A disk without locks is an error: filelock's soft locks are plain files, which would outlive a killed process.
    lock = FileLock(path / LOCK, fallback_to_soft=False)
    try:
        guard = lock.acquire(blocking=False)
    except Timeout as error:
        owner = (path / LOCK).read_text(encoding="utf-8") or "?"
        raise ConfigError(f"{path}: process {owner} is running this sweep; stop it first") from error
    with guard:
        (path / LOCK).write_text(str(os.getpid()), encoding="utf-8")
        yield


@dataclass
class SweepFolder:
    """The folder of a sweep.

    Attributes:
        path: the folder. Its name is the sweep's name and the time at which the sweep began, in UTC.
        file: the resolved sweep file.
        uri: the MLflow store in which the sweep's runs are logged.
        experiment: the MLflow experiment of these runs.
        finished: whether every trial has ended.
        storage: where checkpoints and the true journals are, `s3://…` or a shared folder; None if that is `path`.
        sinks: the names of the trackers that get the runs.
        sources: the texts behind the sweep's references, which run only after `admit`.
        inputs: the files of data that its configurations name.
        started_ms: when the sweep began, ms since 1970; 0 if an older hflray made the folder.
        by_loop: whether a loop in Python makes the rounds (`hflray.sweep.loop.keep`), which may have changed anything.
    """

    path: Path
    file: SweepFile
    uri: str
    experiment: str
    finished: bool = False
    storage: str | None = None
    sinks: tuple[str, ...] = TrackingConfig().sinks
    sources: tuple[Source, ...] = ()
    inputs: tuple[pinned.Input, ...] = ()
    started_ms: int = 0
    by_loop: bool = False

    @property
    def resume_command(self) -> str:
        """The command that continues the sweep."""
        place = "" if self.path.parent == Path("hflray_results").resolve() else f" --results {self.path.parent}"
        return f"{spoken('tune', 'hflray.tune')} --resume {self.path.name}{place}"

    @property
    def place(self) -> str:
        """The folder of the trials' checkpoints: this one, or the sweep's folder in the storage."""
        return f"{self.storage.rstrip('/')}/{self.path.name}/{IN_STORAGE}" if self.storage else str(self.path)

    def content(self) -> bytes:
        """Return what ``sweep.json`` holds, with a checksum."""
        file = self.file.model_dump(mode="json", exclude_unset=True)
        content = {
            "version": VERSION, "file": file, "uri": self.uri, "experiment": self.experiment,
            "finished": self.finished, "storage": self.storage, "sinks": list(self.sinks),
        }  # fmt: skip
        if self.started_ms:
            content["started_ms"] = self.started_ms
        if self.by_loop:
            content["by_loop"] = True
        if self.sources:
            content["references"] = references.to_json(self.sources)
        if self.inputs:
            content["inputs"] = pinned.to_json(self.inputs)
        return json.dumps(stamped(content), indent=1, ensure_ascii=False).encode()

    def save(self) -> None:
        """Write ``sweep.json`` and copies of the texts behind the references. Raises OSError: one cannot be written."""
        for path, source in self.copies():
            write(path, source.text, durable=True)
        for named in self.inputs:
            if named.content is not None:
                write(self.path / REFERENCES / f"{named.sha256[:SHOWN]}-{named.name}", named.content, durable=True)
        write(self.path / FILE, self.content(), durable=True)

    def adopt_own(self) -> list[Source]:
        """Let those texts run in this process that are this user's own files; return the others."""
        return references.adopt_own(self.sources, outside=self.path.parent)

    def copies(self) -> list[tuple[Path, Source]]:
        """Return where the copy of each text lies in the folder."""
        return [(self.path / REFERENCES / name, source) for name, source in references.as_files(self.sources)]

    def admit(self, trust: bool = False) -> None:
        """Let the sweep's references run in this process, which a stranger's folder must not achieve.

        Args:
            trust: whether the user says that they trust the folder.

        Raises:
            ConfigError: a text is not that of the user's own file where it was read, the file of a policy has another
                content now, or the copy that a user can read is not the text that would run.
        """
        tree = self.file.model_dump(mode="json", exclude_unset=True)
        for named in self.inputs:
            pinned.refuse_change(named)
        for setting, policy in policies_in(tree):
            pinned.locate(policy, setting)  # raises an error if the file is another one now
        names = {name for named in references_in(tree, sweep=True).values() for name in named}
        names |= {name for name in self.sinks if references.parse(name)}
        if not names:
            return
        for source in self.sources:
            references.refuse_change(source)
        foreign = self.adopt_own()
        if not foreign:
            return
        if not trust:
            things = ", ".join(sorted(f"{source.name}, which was read at {source.path}" for source in foreign))
            raise ConfigError(
                f"{self.path}: the sweep runs code of its own ({things}), and no file of yours there has this text, so "
                f"that it may be a stranger's; read {self.path / REFERENCES}, and if you trust it, go on with --resume "
                f"{self.path.name} --trust (docs/recovery.md)"
            )
        for path, source in self.copies():
            if not path.exists() or path.read_bytes() != source.text.encode():
                raise ConfigError(
                    f"{path}: is not the text with sha256 {source.sha256[:SHOWN]}… that sweep.json keeps and that "
                    "would run; put the file back, or begin anew with --fresh"
                )
        references.adopt(self.sources)

    @classmethod
    def load(cls, path: Path) -> SweepFolder:
        """Read ``sweep.json``. Raises ConfigError: the file is damaged or has another version."""
        try:
            content: SweepContent = fit(SweepContent, checked(read_json(path / FILE, inside=path)))
            if content.version != VERSION:
                raise ConfigError(
                    f"{path}: written by another hflray (version {content.version}, this one reads {VERSION}); use "
                    "that hflray"
                )
            for name in LEFT_OUT:  # an older hflray had these settings of ``tune``, which changed no result
                if isinstance(settings := content.file.get("tune"), dict):
                    settings.pop(name, None)
            sinks = tuple(TrackingConfig().sinks if content.sinks is None else content.sinks)  # older folders lack it
            refuse_unpinned({"tracking": {"sinks": list(sinks)}}, path / FILE)
            return cls(
                path, validate_stored(SweepFile, content.file, path / FILE), shown_address(content.uri),
                content.experiment, content.finished, content.storage, sinks,
                references.from_json(content.references), pinned.from_json(content.inputs), content.started_ms,
                content.by_loop,
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path / FILE}: cannot be read ({error}); begin anew with --fresh") from error


def new_folder(results: Path, file: SweepFile, uri: str, experiment: str) -> SweepFolder:
    """Return a folder that does not exist yet, for a sweep that begins now."""
    now_s = time.time()
    stem = f"{file.name}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now_s))}"
    path, number = results / stem, 1
    while path.exists():
        number += 1
        path = results / f"{stem}-{number}"
    sources, inputs = named_by(file.model_dump(mode="json", exclude_unset=True))
    folder = SweepFolder(path.resolve(), file, uri, experiment, started_ms=int(1000 * now_s))
    return replace(folder, sources=sources, inputs=inputs)


def named_by(tree: dict[str, Any]) -> tuple[tuple[references.Source, ...], tuple[pinned.Input, ...]]:
    """Return the texts and the files that a sweep file's tree names, as far as this process holds them."""
    names = [name for named in references_in(tree, sweep=True).values() for name in named]
    return references.sources_of(names), pinned.inputs_of(name for _, name in inputs_in(tree))


def changed_texts(before: SweepFolder, after: SweepFolder) -> str:
    """Return which texts of two sweeps with the same names differ, with both hashes; empty if none does."""
    then = {source.name: source.sha256[:SHOWN] for source in before.sources}
    pairs = [(source.name, then.get(source.name), source.sha256[:SHOWN]) for source in after.sources]
    return ", ".join(f"{name} (sha256 {old}… then, {new}… now)" for name, old, new in pairs if old not in (None, new))


def unfinished(results: Path, name: str) -> Path | None:
    """Return the path of the latest unfinished sweep called `name`, or None."""
    return next((folder.path for folder in folders_of(results, name) if not folder.finished), None)


def folders_of(results: Path, name: str) -> Iterator[SweepFolder]:
    """Yield the sweeps called `name`, the latest first, without those whose folder cannot be read."""
    for path in by_start(results):
        with suppress(ConfigError):
            if path.name.startswith(f"{name}-") and (folder := SweepFolder.load(path)).file.name == name:
                yield folder


def by_start(results: Path) -> list[Path]:
    """Return the folders of the sweeps in `results`, the latest first."""
    return sorted((file.parent for file in results.glob(f"*/{FILE}")), key=_start, reverse=True)


def _start(path: Path) -> tuple[float, int, str]:
    """Return when a folder's sweep began (ms since 1970), the number in its name, and the name.

    Of a folder of an older hflray only the time in its name is known, which is that of an unknown place.
    """
    stamp, started_ms = STAMP.search(path.name), 0.0
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        started_ms = float(read_json(path / FILE, inside=path)["started_ms"])
    if stamp and not started_ms:
        with suppress(ValueError, OverflowError):
            started_ms = 1000.0 * timegm(time.strptime(stamp[1], "%Y%m%d-%H%M%S"))
    return started_ms if np.isfinite(started_ms) else 0.0, int(stamp[2] or 1) if stamp else 1, path.name


def is_called(path: Path, name: str) -> bool:
    """Return whether a folder's name is a sweep's name and a time."""
    stamp = STAMP.search(path.name, len(name))
    return path.name.startswith(name) and stamp is not None and stamp.span() == (len(name), len(path.name))


def locate(results: Path, name: str) -> SweepFolder:
    """Return the sweep whose folder or name is `name`, the latest of several, finished or not.

    Raises:
        ConfigError: there is no such sweep.
    """
    for path in sorted(by_start(results), key=lambda path: path.name != name):  # else the latest that is called so
        if path.name == name or is_called(path, name):
            return SweepFolder.load(path.resolve())
    raise _unknown(results, name, f"{one_line(name)}: no such sweep")


def _unknown(results: Path, name: str, problem: str) -> ConfigError:
    names = sorted(path.name for path in by_start(results))
    return ConfigError(f"{problem} in {results}{nearest(name, names)}; available: {', '.join(names) or 'none'}")


def find(results: Path, name: str) -> SweepFolder:
    """Return the sweep for ``--resume NAME``, where `name` is a folder's name or that of an unfinished sweep.

    Raises:
        ConfigError: there is no such sweep, or it is finished.
    """
    exact = results / name
    path = exact if os.path.exists(exact / FILE) else unfinished(results, name)
    if path is None:
        for folder_path in by_start(results):
            if is_called(folder_path, name):
                SweepFolder.load(folder_path)  # a folder that cannot be read raises its own error
        raise _unknown(results, name, f"--resume {one_line(name)}: no unfinished sweep of that name")
    folder = SweepFolder.load(path.resolve())
    if folder.finished:
        raise ConfigError(f"--resume {name}: that sweep is finished; run its file again to begin a new one")
    return folder
