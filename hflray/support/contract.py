"""What a user's part returns is checked where it enters, and a mistake there is one line.

The line names the setting, the part, what it returned and what is accepted. Every kind of part (`hflray.registry`) is
checked by this one contract; hflray's own parts keep it by their tests.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.text import shorten

ABOVE_0 = float(np.nextafter(0.0, 1.0))  # the lowest number above 0
# The letters of NumPy's types that each letter of a contract accepts: indices, real numbers, and answers yes or no.
_TYPES = {"i": "iu", "f": "iuf", "b": "b"}


class Contract(NamedTuple):
    """What a part must return.

    Attributes:
        setting: the setting that names the part.
        part: how messages call it, see `hflray.support.references.named`.
        accepted: what is accepted, in words.
        fix: how to mend it.
    """

    setting: str
    part: str
    accepted: str
    fix: str = "correct it"

    @classmethod
    def of(cls, setting: str, part: object, accepted: str, fix: str = "correct it") -> Contract:
        """Return the contract of a part, which is a name or reference, or the part itself."""
        name = references.spoken(part) if isinstance(part, str) else references.named(part)
        return cls(setting, name, accepted, fix)

    def error(self, returned: str) -> ConfigError:
        """Return the error that says what the part returned."""
        return ConfigError(f"{self.setting}: {self.part} returned {returned}; accepted: {self.accepted}; {self.fix}")

    def array(
        self,
        value: object,
        shape: tuple[int | None, ...],
        type_: str = "f",
        low: float = -math.inf,
        high: float = math.inf,
        where: str = "",
        finite: bool = True,
    ) -> NDArray[Any]:
        """Return a value as an array.

        Args:
            value: what the part returned.
            shape: the shape that it must have; None stands for any length.
            type_: ``i`` for indices, ``f`` for finite real numbers, ``b`` for booleans.
            low, high: the lowest and the highest number that is accepted.
            where: what it was returned for, which ends the description, such as `` for device 3``.
            finite: whether numbers must be finite.

        Raises:
            ConfigError: it is another thing.
        """
        array = None if isinstance(value, Mapping | Set | str | bytes) or value is None else _array(value)
        if array is None:
            raise self.error(described(value) + where)
        if not array.size and array.ndim == len(shape) and type_ != "b":  # an empty list has no type
            array = array.astype(np.int64 if type_ == "i" else np.float64)
        fits = array.ndim == len(shape) and all(
            want in (None, got) for want, got in zip(shape, array.shape, strict=True)
        )
        if not fits or array.dtype.kind not in _TYPES[type_]:
            raise self.error(described(array) + where)
        if array.size and type_ != "b" and finite:
            lowest, highest = array.min(), array.max()  # NaN if any is NaN
            if not (low <= lowest and highest <= high and math.isfinite(lowest) and math.isfinite(highest)):
                index = np.argwhere(~((array >= low) & (array <= high) & np.isfinite(array)))[0]
                place = f" at [{', '.join(map(str, index))}]" if len(index) else ""
                raise self.error(f"{array[tuple(index)]}{place}{where}")
        return array

    def number(self, value: object) -> float:
        """Return a value as a finite number. Raises ConfigError: it is another thing."""
        return float(self.array(value, ()))

    def pair(self, value: object) -> tuple[Any, Any]:
        """Return a value as a pair. Raises ConfigError: it is another thing."""
        if not isinstance(value, tuple | list) or len(value) != 2:
            raise self.error(described(value))
        return value[0], value[1]

    def state(self, value: object) -> dict[str, Any]:
        """Return a state as JSON gives it back. Raises ConfigError: it is no dict, or JSON cannot hold it."""
        contract = self._replace(accepted="a dict of texts, numbers and lists, which JSON can hold",
                                 fix="mend its method state_dict")  # fmt: skip
        try:
            saved = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise contract.error(f"a state that JSON cannot hold ({error})") from error
        if not isinstance(saved, dict):
            raise contract.error(f"the {type(value).__name__} as its state")
        return saved

    def arrays(self, value: object) -> dict[str, NDArray[Any]]:
        """Return a value as arrays by name. Raises ConfigError: it is another thing."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise self.error(described(value))
        made = {name: _array(item) for name, item in value.items()}
        for name, array in made.items():
            if array is None or array.dtype.kind not in "biufUS":
                raise self.error(f"{described(value[name])} as {name!r}")
        return {name: array for name, array in made.items() if array is not None}


def all_finite(value: object) -> bool:
    """Return whether all floating-point arrays in a value, such as a tuple of arrays, are finite."""
    if isinstance(value, Mapping):
        return all_finite(tuple(value.values()))
    if isinstance(value, tuple | list):
        return all(all_finite(item) for item in value)
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())


def is_ours(part: object) -> bool:
    """Return whether a part's class, or a function, is hflray's own, whose tests hold its contract."""
    made = part if callable(part) and hasattr(part, "__qualname__") else type(part)
    return str(made.__module__).partition(".")[0] == "hflray"


def described(value: object) -> str:
    """Return what a value is, in a few words."""
    if value is None:
        return "None"
    array = _array(value) if hasattr(value, "dtype") or isinstance(value, list | tuple) else None
    if array is not None and array.dtype.kind != "O":
        return f"an array of {array.dtype} of shape {array.shape}" if array.ndim else f"the {array.dtype} {array}"
    if isinstance(value, bool | int | float | str):
        return f"the {type(value).__name__} {shorten(value)}"
    length = f" of {len(value)}" if isinstance(value, list | tuple | Mapping | Set) else ""
    return f"a {type(value).__name__}{length}"


def _array(value: object) -> NDArray[Any] | None:
    """Return a value as an array; None if it is none, as rows of unequal lengths or a tensor with a gradient."""
    convert: Callable[[object], NDArray[Any]] = np.asarray
    try:
        return convert(value)
    except (TypeError, ValueError, RuntimeError):
        return None
