"""The labels of a sweep file: texts that tables and figures show in place of values, ``labels: {own.py:Mine: Ours}``.

A label is display text and never identity: no trial's configuration, name or hash contains one.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from hflray.config import ExperimentConfig, flatten
from hflray.errors import ConfigError, nearest
from hflray.support import pinned
from hflray.support.references import spoken, unplaced
from hflray.support.text import shorten


def texts_in(tree: Mapping[str, Any]) -> set[str]:
    """Return every text that the tree of a sweep file with labels gives to a setting, and the others' defaults."""
    if not tree.get("labels"):
        return set()
    sections = [section for name in ("experiment", "sweep") if isinstance(section := tree.get(name), dict)]
    written = {key for section in sections for key in (*section, *flatten(section))}
    defaults = flatten(ExperimentConfig().model_dump(mode="json"))
    places: list[Any] = [*sections, *(value for key, value in defaults.items() if key not in written)]
    texts: set[str] = set()
    while places:
        place = places.pop()
        if isinstance(place, dict | list):
            places += place.values() if isinstance(place, dict) else place
        elif isinstance(place, str):
            texts.add(place)
    return texts


def settled(labels: Mapping[str, str], texts: Set[str]) -> dict[str, str]:
    """Return labels by the values as reports look for them: pinned, and without the folders of files.

    Args:
        labels: the labels by the values as their author wrote them.
        texts: the values of all settings that are texts, pinned.

    Raises:
        ConfigError: no trial has one of the values, or it names several files.
    """
    values: dict[str, set[str]] = {}
    for text in texts:
        for name in {text, _written(text)}:
            values.setdefault(name, set()).add(unplaced(text))
    result = {}
    for key, label in labels.items():
        name, end = _written(key), f"/{key.removeprefix('./')}"
        hits = values.get(key) or values.get(name) or {v for n in values if n.endswith(end) for v in values[n]}
        if len(hits) != 1:
            reason = f", which names {', '.join(sorted(hits))}" if hits else nearest(name, values)
            raise ConfigError(
                f"labels: got {shorten(key)}{reason}; accepted: a value that a setting of a trial has, such as a "
                "registered name, a reference or the file of a policy; correct it, or remove the line"
            )
        result[hits.pop()] = label
    return result


def _written(text: str) -> str:
    """Return a value as its author wrote it, but for the folders of a reference."""
    return pinned.plain(spoken(text))
