"""Atomic save and load of an experiment's state: arrays in safetensors, all other values in JSON, never pickle.

A checkpoint is a folder. It is written under another name and renamed when it is complete. A folder with the right name
is therefore always a whole checkpoint, even if a process was killed.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hflray.errors import ConfigError

ARRAYS, REST = "arrays.safetensors", "state.json"


@contextmanager
def replacing(folder: str | Path) -> Iterator[Path]:
    """Yield a new folder that replaces `folder` atomically at the end; after an error nothing changes.

    Args:
        folder: the folder to replace; its parents are made.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        if target.exists():
            target.replace(old)  # a folder can be renamed only over an empty one
        scratch.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def save(folder: str | Path, state: Mapping[str, Any]) -> Path:
    """Write `state` to `folder` and replace its former contents atomically; return the folder.

    Args:
        folder: the checkpoint's folder; its parents are made.
        state: JSON-ready values and, at the top level, NumPy arrays.
    """
    with replacing(folder) as scratch:
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        save_file(arrays, scratch / ARRAYS)
        values = {name: value for name, value in state.items() if name not in arrays}
        (scratch / REST).write_text(json.dumps(values, indent=1), encoding="utf-8")
        for name in (ARRAYS, REST):
            with (scratch / name).open("rb") as file:
                os.fsync(file.fileno())
    return Path(folder)


def load(folder: str | Path) -> dict[str, Any]:
    """Read a state written by `save`.

    Raises:
        ConfigError: the folder holds no whole checkpoint.
    """
    source = Path(folder)
    try:
        values = json.loads((source / REST).read_text(encoding="utf-8"))
        arrays = load_file(source / ARRAYS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
        ) from error
    return {**values, **arrays}
