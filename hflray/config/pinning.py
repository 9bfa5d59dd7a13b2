"""Paths in a configuration or a sweep file; references and policies among them are pinned to their files' content.

`hflray.support.references` and `hflray.support.pinned` say what a pinned name is.

A path in a file is relative to that file's folder, and a path in an override (``--set``) to the present folder; this
holds for all settings in `PATHS`. The functions know from the mark `Named` which settings name something of the
registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hflray import registry
from hflray.config.base import Named
from hflray.config.experiment import ExperimentConfig
from hflray.config.explanations import Model, section_of, validate
from hflray.errors import ConfigError
from hflray.support import pinned, references
from hflray.support.text import holds_secret, one_line, shorten, shown_address

log = logging.getLogger(__name__)

Change = Callable[[str, str], str]  # called with the dotted key and the text of each setting that is a text
_FORMS = ("grid", "zip", "choice")  # the axes of a sweep whose values are listed
SQLITE = "sqlite:///"
# The settings whose texts are paths, each with how such a text begins and ends; their other texts are names.
PATHS = {
    "data.name": ("", ".npz"), "data.root": ("", ""), "learning.cache": ("", ""), "tracking.uri": (SQLITE, ""),
    "world.availability.options.path": ("", ""), "world.fading.options.path": ("", ""),
    "world.mobility.options.path": ("", ""),
    "world.edge_failure.trace": ("", ""), "assignment.policy": ("", pinned.POLICY),
    "scheduling.options.policy": ("", pinned.POLICY),
}  # fmt: skip


@cache
def named_settings() -> dict[str, registry.Kind]:
    """Return the kind of each setting that names something of the registry, by dotted key."""
    return {key: mark.kind for key, mark in _marks(ExperimentConfig)}


def _marks(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Named]]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            yield from _marks(section, f"{prefix}{name}.")
        for mark in field.metadata:
            if isinstance(mark, Named):
                yield prefix + name, mark


def pin_settings(tree: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the tree of a configuration, as it is written, with pinned references.

    Args:
        tree: the settings, not validated yet.
        folder: the folder that paths are relative to; None: the present one.

    Raises:
        ConfigError: a reference has no text; the message names the setting.
    """
    return _changed(tree, _pinning(folder))


def pin_sweep(tree: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the tree of a sweep file, as it is written, with pinned references; see `pin_settings`."""
    return _changed(tree, _pinning(folder, sweep=True), sweep=True)


def absolute_paths(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a sweep file with absolute paths; those that are relative belong to the present folder.

    The file of a data set that is not there may lie in the folder of data sets, so that its path stays as it is.

    Raises:
        ConfigError: a text is no path; the message names the setting.
    """

    def absolute(key: str, name: str) -> str:
        if not _is_path(key, name):
            return name
        start = PATHS[key][0]
        try:
            path = Path(name.removeprefix(start)).expanduser().resolve()
            return f"{start}{path}" if key != "data.name" or path.exists() else name
        except (OSError, RuntimeError, ValueError) as error:
            if key == "data.name":  # the check of the data says so
                return name
            raise ConfigError(
                f"{key}: got '{one_line(name)}', which is no path ({error}); accepted: the path of a file or folder; "
                "correct it, or remove it"
            ) from error

    return _changed(tree, absolute, sweep=True)


def references_in(tree: Mapping[str, Any], sweep: bool = False) -> dict[str, list[str]]:
    """Return the references of a configuration, or of a sweep file, by the dotted key of the setting."""
    by_key: dict[str, list[str]] = {}
    for key, name in _texts_in(tree, sweep):
        if is_reference(key, name):
            by_key.setdefault(key, []).append(name)
    return by_key


def policies_in(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names of policies in the tree of a sweep file, each with the dotted key of its setting."""
    return [(key, name) for key, name in _texts_in(tree, True) if pinned.kept_as(key, name) == "copied"]


def inputs_in(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names of files of data in the tree of a sweep file, each with the dotted key of its setting."""
    return [(key, name) for key, name in _texts_in(tree, True) if pinned.kept_as(key, name) in ("kept", "placed")]


def _texts_in(tree: Mapping[str, Any], sweep: bool) -> list[tuple[str, str]]:
    """Return the texts of a configuration, or of a sweep file, each with the dotted key of its setting."""
    texts: list[tuple[str, str]] = []

    def collect(key: str, text: str) -> str:
        texts.append((key, text))
        return text

    _changed(tree, collect, sweep)
    return texts


def validate_stored(model: type[Model], tree: Any, source: object, goes_on: bool = False) -> Model:
    """Return a configuration, or a sweep file, that hflray is said to have written into a folder, checkpoint or policy.

    Every such tree goes through here, because it may be a stranger's: nothing that it names is looked up. An older
    hflray stored passwords in addresses, which are left out, and settings that are gone: ``training.autotune``, because
    nothing is measured any more, and kernels (`NEAREST`).

    Args:
        model: `ExperimentConfig`, one of its sections, or the model of a sweep file.
        tree: the settings, as they were read.
        source: the file or folder, for messages.
        goes_on: whether a run goes on with these settings, so that a kernel that is gone is worth a warning.

    Raises:
        ConfigError: a reference has no hash, or a value is not accepted.
    """
    sweep = "experiment" in model.model_fields
    if not isinstance(tree, dict):
        raise ConfigError(f"{source}: holds no settings; give what hflray has written, or begin anew from a sweep file")
    refuse_unpinned(tree, source, sweep)

    def renew(key: str, text: str) -> str:
        if key == "training.kernel" and text in NEAREST:
            if goes_on:
                log.warning("training.kernel: %r is gone; going on with %r, the nearest", text, NEAREST[text])
            return NEAREST[text]
        return shown_address(text) if key == "tracking.uri" and holds_secret(text) else text

    return validate(model, _changed(_without_gone(tree), renew, sweep))


# Kernels that are gone, and the nearest ones, with which a run that was begun with them goes on.
NEAREST = {"native": "fused", "compiled": "channels_last"}


def _without_gone(value: Any, key: str = "") -> Any:
    """Return settings, or the axes of a sweep, without ``training.autotune``."""
    if not isinstance(value, dict):
        return value
    inner = {name: f"{key}.{name}" for name in value}
    return {
        name: _without_gone(value[name], dotted)
        for name, dotted in inner.items()
        if not dotted.endswith(".training.autotune")
    }


def refuse_unpinned(tree: Any, source: object, sweep: bool = False) -> None:
    """Refuse a tree that hflray is said to have written, but that names code or a file of data without its hash.

    hflray writes no such name. To read one would mean to look up a file that a stranger names.

    Raises:
        ConfigError: there is one; the message begins with `source`.
    """
    for key, name in _texts_in(tree, sweep) if isinstance(tree, dict) else ():
        is_input = pinned.kept_as(key, name) in ("kept", "placed")
        if (is_input or is_reference(key, name)) and not pinned.is_pinned(name):
            raise ConfigError(
                f"{source}: {key}: got {shorten(name)} without the hash of its {'file' if is_input else 'text'}, which "
                "hflray always writes; the file is not hflray's; begin anew from a sweep file"
            )


def is_reference(key: str, name: str) -> bool:
    """Return whether a setting's text is a reference, and not a registered name."""
    kind = named_settings().get(key)
    return kind is not None and references.parse(name) is not None and not registry.is_registered(kind, name)


def _pinning(folder: Path | None, sweep: bool = False) -> Change:
    def pin(key: str, name: str) -> str:
        if folder is not None and _is_path(key, name):
            name = _beside(key, name, folder, sweep and key != "data.name")
        how = pinned.kept_as(key, name)
        if how == "copied":
            return pinned.pin_policy(name)
        try:
            if how is not None:
                return pinned.pin(name, folder, how == "kept")
            return references.pin(name, folder) if is_reference(key, name) else name
        except ConfigError as error:
            raise ConfigError(f"{key}: got {shorten(name if how is None else pinned.plain(name))}; {error}") from error

    return pin


def _is_path(key: str, name: str) -> bool:
    start, end = PATHS.get(key, ("\0", ""))
    return name.startswith(start) and name.endswith(end)


def _beside(key: str, name: str, folder: Path, always: bool) -> str:
    """Return the path of what a file in `folder` calls `name`, which is relative to that folder.

    If nothing is there, only a name in a sweep file is taken for a path there (`always`), and not that of a data set,
    which may lie in the folder of data sets. A configuration that hflray wrote may have come from elsewhere.

    Raises:
        ConfigError: it is not there, and the present folder has one of this name, which is not what the file says.
    """
    start = PATHS[key][0]
    try:
        path = Path(name.removeprefix(start)).expanduser()
        beside, present = (folder / path).exists(), path.exists()
    except (OSError, RuntimeError, ValueError):  # no file has such a name, which the checks of the settings say
        return name
    if present and not beside:
        raise ConfigError(
            f"{key}: got '{one_line(name)}', which is not in the folder of the sweep file ({folder.resolve()}) but in "
            f"the present folder ({Path().resolve()}); a path in a sweep file is relative to the file; correct it, or "
            f"give it with --set {key}=…"
        )
    return f"{start}{folder / path}" if beside or always else name


def _changed(tree: Mapping[str, Any], change: Change, sweep: bool = False) -> dict[str, Any]:
    """Return a configuration, or a sweep file, with `change` applied to every text of a setting in it."""
    if not sweep:
        changed: dict[str, Any] = _changed_value(dict(tree), "", change)
        return changed
    places = {"experiment": "", "tracking": "tracking"}
    changed = dict(tree) | {
        name: _changed_value(tree[name], key, change)
        for name, key in places.items()
        if isinstance(tree.get(name), dict)
    }
    if isinstance(tree.get("sweep"), dict):
        changed["sweep"] = {key: _changed_axis(axis, one_line(key), change) for key, axis in tree["sweep"].items()}
    return changed


def _changed_axis(axis: Any, key: str, change: Change) -> Any:
    if not isinstance(axis, dict):
        return axis
    return {
        form: _changed_value(values, key, change) if form in _FORMS and isinstance(values, list) else values
        for form, values in axis.items()
    }


def _changed_value(value: Any, key: str, change: Change) -> Any:
    if isinstance(value, str):
        return change(key, value)
    if isinstance(value, list | tuple):
        return [_changed_value(inner, key, change) for inner in value]
    if not isinstance(value, dict):
        return value
    inside = {name: f"{key}.{name}" if key else str(name) for name in value}
    if key in named_settings():  # an entry of a list, written as {name: …, options: {…}}
        inside["name"] = key
    return {name: _changed_value(inner, inside[name], change) for name, inner in value.items()}
