"""Atomic save and load of an experiment's state: arrays in safetensors, all other values in JSON, never pickle.

A checkpoint is a folder. It is written under another name and renamed when it is complete. A folder with the right name
is therefore always a whole checkpoint, even if a process was killed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as as_safetensors

from hflray.errors import ConfigError
from hflray.files import replacing_folder, write

ARRAYS, REST = "arrays.safetensors", "state.json"


def save(folder: str | Path, state: Mapping[str, Any]) -> Path:
    """Write `state` to `folder` and replace its former contents atomically; return the folder.

    Args:
        folder: the checkpoint's folder; its parents are made.
        state: JSON-ready values and, at the top level, NumPy arrays.
    """
    with replacing_folder(folder) as scratch:
        arrays = {name: value for name, value in state.items() if isinstance(value, np.ndarray)}
        values = {name: value for name, value in state.items() if name not in arrays}
        write(scratch / ARRAYS, as_safetensors(arrays), durable=True)
        write(scratch / REST, json.dumps(values, indent=1), durable=True)
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
