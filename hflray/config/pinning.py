"""Paths in a configuration or a sweep file; references and policies among them are pinned to their files' content.

`hflray.support.references` and `hflray.support.policies` say what a pinned name is.

A path in a file is relative to that file's folder, and a path in an override (``--set``) to the present folder; this
holds for all settings in `PATHS`. The functions know from the mark `Named` which settings name something of the
registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from hflray import registry
from hflray.config.base import Named
from hflray.config.experiment import ExperimentConfig
from hflray.config.explanations import Model, validate
from hflray.config.reference import section_of
from hflray.errors import ConfigError
from hflray.support import inputs, policies, references
from hflray.support.text import holds_secret, one_line, shorten, shown_address

log = logging.getLogger(__name__)

Change = Callable[[str, str], Any]  # called with a setting's dotted key and its text
_FORMS = ("grid", "zip", "choice")  # the axes of a sweep whose values are listed
SQLITE = "sqlite:///"
# The settings whose texts are paths, each with how such a text begins and ends; their other texts are names.
PATHS = {
    "data.name": ("", ".npz"), "data.root": ("", ""), "learning.cache": ("", ""), "tracking.uri": (SQLITE, ""),
    "world.availability.options.path": ("", ""), "world.fading.options.path": ("", ""),
    "world.mobility.options.path": ("", ""),
    "world.edge_failure.trace": ("", ""), **dict.fromkeys(policies.SETTINGS, ("", policies.SUFFIX)),
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
    changed: dict[str, Any] = _changed(dict(tree), "", _pinning(folder))
    return changed


def pin_sweep(tree: Mapping[str, Any], folder: Path | None = None) -> dict[str, Any]:
    """Return the tree of a sweep file, as it is written, with pinned references; see `pin_settings`."""
    return _changed_sweep(tree, _pinning(folder, sweep=True))


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

    return _changed_sweep(tree, absolute)


def references_in(tree: Mapping[str, Any], sweep: bool = False) -> dict[str, list[str]]:
    """Return the references of a configuration, or of a sweep file, by the dotted key of the setting."""
    by_key: dict[str, list[str]] = {}
    for key, name in _named(tree, sweep, is_reference):
        by_key.setdefault(key, []).append(name)
    return by_key


def policies_in(tree: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the names of policies in the tree of a sweep file, each with the dotted key of its setting."""
    return _named(tree, True, lambda key, name: key in policies.SETTINGS)


def inputs_in(tree: Mapping[str, Any], sweep: bool = True) -> list[tuple[str, str]]:
    """Return the names of files of data in a configuration, or in a sweep file, each with the key of its setting."""
    return _named(tree, sweep, lambda key, name: key in inputs.SETTINGS)


def _named(tree: Mapping[str, Any], sweep: bool, is_meant: Callable[[str, str], bool]) -> list[tuple[str, str]]:
    """Return the dotted keys and texts of a configuration, or of a sweep file, that are meant."""
    names: list[tuple[str, str]] = []

    def collect(key: str, name: str) -> str:
        if is_meant(key, name):
            names.append((key, name))
        return name

    if sweep:
        _changed_sweep(tree, collect)
    else:
        _changed(dict(tree), "", collect)
    return names


def validate_stored(model: type[Model], tree: Any, source: object, goes_on: bool = False) -> Model:
    """Return a configuration, or a sweep file, that hflray is said to have written into a folder, checkpoint or policy.

    Every such tree goes through here, because it may be a stranger's: nothing that it names is looked up. An older
    hflray stored passwords in addresses, which are left out, and settings that are gone (`_without_gone`).

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
    change = _changed_sweep if sweep else partial(_changed, key="")
    tree = change(tree, change=_without_secrets)
    if sweep:
        parts = {name: tree[name] for name in ("experiment", "sweep") if isinstance(tree.get(name), dict)}
        return validate(model, tree | {name: _without_gone(part) for name, part in parts.items()})
    kernel = str((tree.get("training") or {}).get("kernel")) if goes_on else ""
    if kernel in NEAREST:
        log.warning("training.kernel: %r is gone; going on with %r, the nearest", kernel, NEAREST[kernel])
    return validate(model, _without_gone(tree))


# Kernels that are gone, and the nearest ones, with which a run that was begun with them goes on.
NEAREST = {"native": "fused", "compiled": "channels_last"}


def _without_gone(tree: dict[str, Any]) -> dict[str, Any]:
    """Return settings, or the axes of a sweep, of an older hflray without what is gone; see `NEAREST`.

    ``training.autotune`` is gone because nothing is measured any more.
    """
    tree = {key: value for key, value in tree.items() if key != "training.autotune"}
    if "training.kernel" in tree:
        tree["training.kernel"] = _nearest(tree["training.kernel"])
    training = tree.get("training")
    if isinstance(training, dict):
        settings = {key: value for key, value in training.items() if key != "autotune"}
        tree["training"] = settings | ({"kernel": _nearest(settings["kernel"])} if "kernel" in settings else {})
    return tree


def _nearest(value: Any) -> Any:
    """Return a kernel that is gone, alone or among the values of an axis, as the nearest one."""
    if isinstance(value, dict):
        return {key: _nearest(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_nearest(each) for each in value]
    return NEAREST.get(value, value) if isinstance(value, str) else value


def _without_secrets(key: str, name: str) -> str:
    return shown_address(name) if key == "tracking.uri" and holds_secret(name) else name


def refuse_unpinned(tree: Any, source: object, sweep: bool = False) -> None:
    """Refuse a tree that hflray is said to have written, but that names code or a file of data without its hash.

    hflray writes no such name. To read one would mean to look up a file that a stranger names.

    Raises:
        ConfigError: there is one; the message begins with `source`.
    """
    for key, names in references_in(tree, sweep).items() if isinstance(tree, dict) else ():
        for name in names:
            reference = references.parse(name)
            if reference is not None and not reference.sha256:
                raise ConfigError(
                    f"{source}: {key}: got {shorten(name)} without the hash of its text, which hflray always writes; "
                    "the file is not hflray's; begin anew from a sweep file"
                )
    for key, name in inputs_in(tree, sweep) if isinstance(tree, dict) else ():
        if not inputs.is_pinned(name):
            raise ConfigError(
                f"{source}: {key}: got {shorten(name)} without the hash of its file, which hflray always writes; the "
                "file is not hflray's; begin anew from a sweep file"
            )


def is_reference(key: str, name: str) -> bool:
    """Return whether a setting's text is a reference, and not a registered name."""
    kind = named_settings().get(key)
    return kind is not None and references.parse(name) is not None and not registry.is_registered(kind, name)


def _pinning(folder: Path | None, sweep: bool = False) -> Change:
    def pin(key: str, name: str) -> str:
        if folder is not None and _is_path(key, name):
            name = _beside(key, name, folder, sweep and key != "data.name")
        if key in policies.SETTINGS:
            return policies.pin(name)
        if key in inputs.SETTINGS:
            try:
                return inputs.pin(name, folder, inputs.SETTINGS[key])
            except ConfigError as error:
                raise ConfigError(f"{key}: got {shorten(inputs.plain(name))}; {error}") from error
        if not is_reference(key, name):
            return name
        try:
            return references.pin(name, folder)
        except ConfigError as error:
            raise ConfigError(f"{key}: got {shorten(name)}; {error}") from error

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


def _changed_sweep(tree: Mapping[str, Any], change: Change) -> dict[str, Any]:
    changed = dict(tree)
    if isinstance(tree.get("experiment"), dict):
        changed["experiment"] = _changed(tree["experiment"], "", change)
    if isinstance(tree.get("tracking"), dict):
        changed["tracking"] = _changed(tree["tracking"], "tracking", change)
    if isinstance(tree.get("sweep"), dict):
        changed["sweep"] = {key: _changed_axis(axis, one_line(key), change) for key, axis in tree["sweep"].items()}
    return changed


def _changed_axis(axis: Any, key: str, change: Change) -> Any:
    if not isinstance(axis, dict):
        return axis
    return {
        form: [_changed(value, key, change) for value in values]
        if form in _FORMS and isinstance(values, list)
        else values
        for form, values in axis.items()
    }


def _changed(value: Any, key: str, change: Change) -> Any:
    """Return the value of a dotted key with `change` applied to every name of the registry and every path in it."""
    if key in named_settings() or key in PATHS or key in inputs.SETTINGS:
        if isinstance(value, str):
            return change(key, value)
        return [_changed(each, key, change) for each in value] if isinstance(value, list | tuple) else value
    if not isinstance(value, dict):
        return value
    return {name: _changed(each, f"{key}.{name}" if key else str(name), change) for name, each in value.items()}
