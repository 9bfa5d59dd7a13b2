"""Atomic save and load of an experiment's state: arrays in safetensors, all other values in JSON, never pickle.

A checkpoint is a folder. It is written under another name and renamed when it is complete. A folder with the right name
is therefore always a whole checkpoint, even if a process was killed. Its JSON file holds the SHA-256 of both files'
contents, so that a checkpoint that was damaged later is refused. Checkpoints of older versions have none and are
accepted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as from_safetensors
from safetensors.numpy import save as as_safetensors

from hflray.errors import DamagedError
from hflray.support.checksum import checked, digest, stamped
from hflray.support.files import replacing_folder, write
from hflray.support.reader import memory_share, read_bytes, read_json

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
