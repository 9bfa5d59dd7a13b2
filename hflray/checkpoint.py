"""Atomic save and load of an experiment's state: arrays in safetensors, the rest in JSON, never pickle.

A checkpoint is a folder. It is written under another name and renamed when it is complete, so that a folder of the
right name is always a whole checkpoint, whatever was killed when.
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
    """A new folder to write to, that takes `folder`'s place in one step at the end; after an error nothing changes.

    Args:
        folder: its parents are made.
    """
    target = Path(folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield scratch
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        if target.exists():
            target.replace(old)  # a folder can only be renamed over an empty one
        scratch.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def save(folder: str | Path, state: Mapping[str, Any]) -> Path:
    """Write `state` to `folder`, replacing what is there in one step.

    Args:
        folder: where; its parents are made.
        state: JSON-ready values and, at the top level, NumPy arrays.
    """
    with replacing(folder) as scratch:
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        save_file(arrays, scratch / ARRAYS)
        rest = {name: value for name, value in state.items() if name not in arrays}
        (scratch / REST).write_text(json.dumps(rest, indent=1), encoding="utf-8")
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
        rest = json.loads((source / REST).read_text(encoding="utf-8"))
        arrays = load_file(source / ARRAYS)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(
            f"checkpoint {source}: not a whole checkpoint ({error}); remove it, or give another"
        ) from error
    return {**rest, **arrays}
