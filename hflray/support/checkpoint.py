"""Atomic save and load of an experiment's state, and the checkpoints of a trial.

A state is a folder: arrays in safetensors, all other values in JSON, never pickle. It is written under another name and
renamed when it is complete, so that a folder with the right name is always whole, even if a process was killed. Its
JSON file holds the SHA-256 of both files' contents, so that a state that was damaged later is refused. States of older
versions have none and are accepted.

A checkpoint of a trial, ``<place>/checkpoints/<trial>/<round>``, is what a task has saved into such a folder, packed
into a ZIP file without compression behind a line with the SHA-256 of the rest. It is written whole or not at all.
Nothing in it is code.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as as_safetensors

from hflray.errors import DamagedError
from hflray.support.checksum import checked, digest, stamped
from hflray.support.files import replacing_folder, write
from hflray.support.reader import memory_share, read_bytes, read_json, unzip
from hflray.support.store import Store

ARRAYS, REST = "arrays.safetensors", "state.json"
OF_ARRAYS = "arrays_sha256"  # the key of the checksum of the file of arrays


def save(folder: str | Path, state: Mapping[str, Any]) -> Path:
    """Write `state` to `folder` and replace its former contents atomically; return the folder.

    Args:
        folder: the checkpoint's folder; its parents are made.
        state: JSON-ready values and, at the top level, NumPy arrays.
    """
    with replacing_folder(folder) as scratch:
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        values = {name: value for name, value in state.items() if name not in arrays}
        content = as_safetensors(arrays)
        write(scratch / ARRAYS, content, durable=True)
        values = stamped(values | {OF_ARRAYS: digest(content)})
        write(scratch / REST, json.dumps(values, indent=1), durable=True)
    return Path(folder)


def load(folder: str | Path) -> dict[str, Any]:
    """Read a state written by `save`.

    Raises:
        DamagedError: the folder holds no whole checkpoint.
    """
    source = Path(folder)
    try:
        values = checked(read_json(source / REST))
        content = read_bytes(source / ARRAYS, memory_share(0.5))
        if values.pop(OF_ARRAYS, None) not in (None, digest(content)):
            raise ValueError(f"the checksum of {ARRAYS} differs")
        arrays = from_safetensors(content)
    except (OSError, ValueError, SafetensorError) as error:
        raise DamagedError(
            f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
        ) from error
    return {**values, **arrays}


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
            for name, data in files.items():
                write(Path(folder, name), data)
            yield Path(folder)

    def _name(self, round: int) -> str:
        return f"{self._folder}/{round:08d}"
