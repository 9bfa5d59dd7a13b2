"""The array types in the signatures of several packages, and the form of an array in a state's JSON.

Each docstring with an array gives its shape and unit.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array in a form that JSON can hold, with every bit: type, shape and bytes in Base64."""
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": text}


def unpacked(saved: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array of `packed`, which may be written to."""
    flat = np.frombuffer(base64.b64decode(saved["base64"]), dtype=np.dtype(saved["dtype"]))
    return flat.reshape(saved["shape"]).copy()
