"""`hflray.rl.portable`: a nested state survives as JSON and arrays, type by type and bit by bit."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, deque

import numpy as np
import pytest
import torch

from hflray.rl.portable import flatten, restore
from hflray.support import checkpoint

STATE = {
    "weights": OrderedDict(layer=torch.arange(6.0).reshape(2, 3).T, bias=torch.tensor(0.1, dtype=torch.float64)),
    "optimizer": {0: {"step": np.float32(3.5), "lr": 1e-4}, "groups": [{"betas": (0.9, 0.999), "fused": None}]},
    "window": deque([1.5, math.inf, 2], maxlen=5),
    "counts": np.array([[1, 2], [3, 4]], dtype=np.int16)[:, ::-1],
    "scalar": np.array(7, dtype=np.uint8),
    "flags": [True, False, np.bool_(True)],
    "empty": {"list": [], "tuple": (), "dict": {}, "array": np.zeros((0, 3), np.float32)},
    "text": "ß",
    ("a", 1): 2**70,
}


def same(a: object, b: object) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)  # type: ignore[attr-defined]
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())  # type: ignore[attr-defined]
    if isinstance(a, list | tuple | deque):
        return len(a) == len(b) and all(map(same, a, b))  # type: ignore[arg-type]
    return a == b


def test_a_state_is_restored_from_a_checkpoint(tmp_path) -> None:
    checkpoint.save(tmp_path / "state", flatten(STATE))
    restored = restore(checkpoint.load(tmp_path / "state"))
    assert same(STATE, restored)
    assert restored["window"].maxlen == 5
    assert not same(STATE, restored | {"text": "s"})


def test_the_tree_is_json() -> None:
    assert json.loads(json.dumps(flatten(STATE)["tree"]))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([object()]), np.array(["text"]), b"bytes", int])
def test_a_value_of_another_type_is_refused_with_its_place(value: object) -> None:
    with pytest.raises(TypeError, match=r"state/a/1: cannot save"):
        flatten({"a": [0, value]})
