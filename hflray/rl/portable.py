"""RLlib's state, a tree of dictionaries, lists, numbers and arrays, as JSON values and named arrays.

RLlib saves its state as pickles, which run code when they are loaded. `hflray.support.checkpoint` saves what `flatten`
returns as safetensors and JSON instead. Types and bits are preserved, so that a restored run continues bit for bit, and
a checkpoint from a stranger runs no code. `save_state` and `restore_state` are for both algorithms of hflray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from ray.rllib.core import COMPONENT_ENV_RUNNER

from hflray.errors import ConfigError
from hflray.support import checkpoint

TREE = "tree"
STATE = "hflray_state"  # the folder of the state in that of a checkpoint


def save_state(algorithm: Any, folder: Path, tree: Any, **beside: Any) -> str:
    """Write `tree`, the runner's generators, and arrays and JSON values `beside` them; return the folder's name."""
    state = beside | {"generators": algorithm.env_runner.generators(), "ray": ray.__version__} | flatten(tree)
    checkpoint.save(folder / STATE, state)
    return str(folder)


def restore_state(algorithm: Any, folder: Path) -> tuple[dict[str, Any], Any]:
    """Restore the algorithm and its runner from what `save_state` wrote; return the state and its tree.

    Raises:
        DamagedError: `folder` holds no whole checkpoint.
        ConfigError: it is one of another version.
    """
    state = checkpoint.load(folder / STATE)
    if (version := state.get("ray")) != ray.__version__:
        raise ConfigError(
            f"checkpoint {folder}: made with Ray {version}, this is Ray {ray.__version__}, and RLlib's state works "
            f"only with the version that made it; install ray=={version} to go on, or begin anew"
        )
    if TREE not in state:
        raise ConfigError(
            f"checkpoint {folder}: an older hflray wrote it with pickles, which may run code and are not loaded; go on "
            "with that version of hflray, or begin anew"
        )
    tree = restore(state)
    of_rllib = tree.get("rllib", tree)
    algorithm.set_state(of_rllib)
    # RLlib has just set the runner's count of steps, on which ε depends, to that of metrics that it restored later.
    algorithm.env_runner.set_state(of_rllib[COMPONENT_ENV_RUNNER])
    algorithm.env_runner.set_generators(state["generators"])
    return state, tree


def flatten(state: Any) -> dict[str, Any]:
    """Return a state as one JSON value under the key ``tree`` and arrays under ``array/0``, ``array/1`` and so on.

    Raises:
        TypeError: the state has a value of another type; the message says where.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    return {TREE: _encode(state, arrays, "state"), **arrays}


def restore(flat: Mapping[str, Any]) -> Any:
    """Return the state that `flatten` has flattened."""
    return _decode(flat[TREE], flat)


def _encode(value: Any, arrays: dict[str, np.ndarray[Any, Any]], where: str) -> Any:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        kind = "tensor" if isinstance(value, torch.Tensor) else "array" if isinstance(value, np.ndarray) else "scalar"
        array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise TypeError(f"{where}: cannot save an array of {array.dtype}")
        name = f"array/{len(arrays)}"
        arrays[name] = np.asarray(array, order="C")
        return {kind: name}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict):
        return {"dict": [[_encode(k, arrays, where), _encode(v, arrays, f"{where}/{k}")] for k, v in value.items()]}
    if type(value) in (list, tuple, deque):
        items = [_encode(item, arrays, f"{where}/{index}") for index, item in enumerate(value)]
        content: dict[str, Any] = {type(value).__name__: items}
        return content | {"maxlen": value.maxlen} if isinstance(value, deque) else content
    raise TypeError(f"{where}: cannot save a {type(value).__name__}")


def _decode(tree: Any, flat: Mapping[str, Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    kind, content = next(iter(tree.items()))
    if kind == "tensor":
        return torch.from_numpy(flat[content].copy())
    if kind == "array":
        return flat[content]
    if kind == "scalar":
        return flat[content][()]
    if kind == "dict":
        return {_decode(key, flat): _decode(item, flat) for key, item in content}
    items = [_decode(item, flat) for item in content]
    if kind == "deque":
        return deque(items, tree["maxlen"])
    return tuple(items) if kind == "tuple" else items
