"""The array types in the signatures of several packages, and the forms of arrays, tables and states in JSON.

Each docstring with an array gives its shape and unit.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.support.reader import inflate, parse_json

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

MOST_BYTES = 2**28  # of an inflated table; a damaged or hostile text must not fill the memory


def squared_norm(vector: NDArray[np.floating[Any]]) -> float:
    """Return the square of the L2 norm of a vector, (P,), in double precision.

    A product of BLAS divides its sum among threads, so that the driver and an actor would get other last bits.
    """
    return float(np.square(vector, dtype=np.float64).sum())


def freeze(*parts: object) -> None:
    """Make the arrays among the values of tuples and of objects read-only."""
    for part in parts:
        for value in part if isinstance(part, tuple) else vars(part).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False


def largest_of(values: FloatArray, group: IntArray, count: int) -> FloatArray:
    """Return the largest value (n,) of each of so many groups, or 0; `group` is that of each, (n,)."""
    largest = np.zeros(count)
    np.maximum.at(largest, group, values)
    return largest


def packed(array: NDArray[Any]) -> dict[str, Any]:
    """Return an array in a form that JSON can hold, with every bit: type, shape and bytes in Base64."""
    text = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")
    return {"dtype": array.dtype.str, "shape": list(array.shape), "base64": text}


def unpacked(saved: Mapping[str, Any]) -> NDArray[Any]:
    """Return the array of `packed`, which may be written to. Raises ValueError: it is damaged."""
    try:
        flat = np.frombuffer(base64.b64decode(saved["base64"]), dtype=np.dtype(saved["dtype"]))
        return flat.reshape(saved["shape"]).copy()
    except (TypeError, KeyError, ArithmeticError) as error:
        raise ValueError(f"an array cannot be read ({error})") from error


def deflated(columns: Mapping[str, list[Any]]) -> str:
    """Return the columns of a table as compressed text in Base64, which a line of JSON can hold."""
    content = json.dumps(columns, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(zlib.compress(content)).decode("ascii")


def inflated(text: str) -> dict[str, list[Any]]:
    """Return the columns of `deflated`. Raises ValueError: the text is damaged, or its table is too large."""
    try:
        columns: dict[str, list[Any]] = parse_json(inflate(text, MOST_BYTES))
        if not all(isinstance(column, list) for column in columns.values()) or len({*map(len, columns.values())}) > 1:
            raise ValueError("it holds no columns of one length")
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"a compressed table cannot be read ({error})") from error
    return columns


class Stateful:
    """An object whose state is made of some of its attributes: arrays, and values that JSON can hold."""

    state_names: tuple[str, ...] = ()
    """The names of these attributes."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the object depends on later, ready for JSON."""
        values = {name: getattr(self, name) for name in self.state_names}
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else copy(value) for name, value in values.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`."""
        for name in self.state_names:
            value, present = state[name], getattr(self, name)
            setattr(self, name, np.array(value, present.dtype) if isinstance(present, np.ndarray) else value)
