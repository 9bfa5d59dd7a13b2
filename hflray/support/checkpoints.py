"""The checkpoints of a trial, ``<place>/checkpoints/<trial>/<round>``: one file each, with one SHA-256.

A checkpoint is what a task has saved into a folder, packed into a ZIP file without compression behind a line with the
SHA-256 of the rest. It is written whole or not at all. Nothing in it is code.
"""

from __future__ import annotations

import io
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hflray.errors import DamagedError
from hflray.support.checksum import digest
from hflray.support.files import write
from hflray.support.reader import unzip
from hflray.support.store import Store

FOLDER = "checkpoints"
NUM_NEWEST = 2  # checkpoints of a trial that stay
_NAME = re.compile(r"\d{8,}")


class Checkpoints:
    """The checkpoints of one trial.

    Args:
        place: the sweep's folder, or its folder in a storage (`hflray.sweep.results.SweepFolder.place`).
        trial: the trial's name.
        every: the rounds whose checkpoint is a multiple of it are kept longer, the last two of them, since another
            trial of a population may adopt them; 0: none.
    """

    def __init__(self, place: str, trial: str, every: int = 0) -> None:
        self.trial = trial
        self._store, self._every, self._folder = Store(place), every, f"{FOLDER}/{trial}"

    def rounds(self) -> list[int]:
        """Return the rounds after which a checkpoint was saved, the newest first. Raises OSError: see `Store.names`."""
        return sorted((int(name) for name in self._store.names(self._folder) if _NAME.fullmatch(name)), reverse=True)

    def save(self, round: int, fill: Callable[[Path], None]) -> None:
        """Save what `fill` writes into a folder as the checkpoint of `round`, and remove those that are too old.

        Raises:
            OSError: it cannot be written. The earlier ones are then still there.
        """
        packed = io.BytesIO()
        with tempfile.TemporaryDirectory() as name, zipfile.ZipFile(packed, "w") as archive:
            fill(Path(name))
            for path in sorted(Path(name).rglob("*")):
                archive.write(path, path.relative_to(name))
        content = packed.getvalue()
        self._store.write(self._name(round), digest(content).encode() + b"\n" + content)
        before = [saved for saved in self.rounds() if saved <= round]  # later ones are of rounds that are made again
        shared = [saved for saved in before if self._every and saved % self._every == 0]
        for old in {*before[NUM_NEWEST:]} - {*shared[:NUM_NEWEST]}:
            self._store.remove(self._name(old))

    @contextmanager
    def open(self, round: int) -> Iterator[Path]:
        """Yield a folder with the content of the checkpoint of `round`, which is then removed.

        Raises:
            DamagedError: the checkpoint is damaged.
            OSError: it cannot be read, or there is none.
        """
        sha256, _, content = self._store.read(self._name(round)).partition(b"\n")
        where = f"checkpoint {self.trial}, round {round}"
        if digest(content).encode() != sha256:
            raise DamagedError(f"{where}: its checksum differs")
        try:
            files = unzip(content, len(content))  # nothing in it is compressed
        except ValueError as error:
            raise DamagedError(f"{where}: it cannot be unpacked ({error})") from error
        with tempfile.TemporaryDirectory() as folder:
            for name, each in files.items():
                write(Path(folder, name), each)
            yield Path(folder)

    def _name(self, round: int) -> str:
        return f"{self._folder}/{round:08d}"
