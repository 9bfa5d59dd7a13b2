"""The check of options that a part's constructor takes, which the configuration does not know."""

from __future__ import annotations

import math
from typing import NoReturn

from hflray.errors import blaming


def positive(setting: str, value: object, most: float = math.inf, why: str = "") -> float:
    """Return an option as a number above 0 and up to `most`.

    Args:
        setting: the setting as messages name it.
        value: what was given.
        most: the largest accepted number.
        why: what other numbers would mean, for the message.

    Raises:
        ConfigError: it is something else.
    """
    words = "a number above 0" + ("" if math.isinf(most) else f" and at most {most:g}")
    number = _finite(value)
    return number if 0 < number <= most else _refuse(setting, value, words + (why and f", because {why}"))


def between(setting: str, value: object, least: float, most: float = math.inf) -> float:
    """Return an option as a number from `least` to `most`, as `positive` does."""
    words = f"a number of at least {least:g}" if math.isinf(most) else f"a number from {least:g} to {most:g}"
    number = _finite(value)
    return number if least <= number <= most else _refuse(setting, value, words)


def whole(setting: str, value: object, least: int, most: int | None = None) -> int:
    """Return an option as a whole number from `least` to `most`, as `positive` does."""
    words = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"
    if isinstance(value, int) and not isinstance(value, bool) and least <= value and (most is None or value <= most):
        return value
    return _refuse(setting, value, words)


def one_of(setting: str, value: object, words: tuple[str, ...]) -> str:
    """Return an option that is one of some words, as `positive` does."""
    return value if isinstance(value, str) and value in words else _refuse(setting, value, ", ".join(words))


def _finite(value: object) -> float:
    """Return a finite number, or NaN, which no comparison accepts."""
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    return number if math.isfinite(number) else math.nan


def _refuse(setting: str, value: object, words: str) -> NoReturn:
    raise blaming(f"{setting}: got {value!r}", words)
