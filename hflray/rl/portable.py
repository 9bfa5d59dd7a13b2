"""RLlib's state, a tree of dictionaries, lists, numbers and arrays, as JSON values and named arrays.

RLlib saves its state as pickles, which run code when they are loaded. `hflray.support.checkpoint` saves what `flatten`
returns as safetensors and JSON instead. Types and bits are preserved, so that a restored run continues bit for bit, and
a checkpoint from a stranger runs no code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from hflray.errors import ConfigError

TREE = "tree"


def flatten(state: Any) -> dict[str, Any]:
    """Return a state as one JSON value under the key ``tree`` and arrays under ``array/0``, ``array/1`` and so on.

    Raises:
        TypeError: the state has a value of another type; the message says where.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    return {TREE: _encode(state, arrays, "state"), **arrays}


def restore(flat: Mapping[str, Any]) -> Any:
    """Return the state that `flatten` has flattened. Raises ConfigError: an older hflray saved it, with pickles."""
    if TREE not in flat:
        raise ConfigError(
            "state: an older hflray wrote it with pickles, which may run code and are not loaded; go on with that "
            "version of hflray, or begin anew"
        )
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
