"""The names of schedulers, assigners, data sets, partitions, networks, losses, metrics, local rules, aggregators,
compressors, parts of the world and of the physics, observers, trackers (sinks), fleets and figures, and their
implementations.

The built-in table, `hflray/registry.toml`, holds texts, so that resolving a name imports only its own module. Other
packages add names through entry points of the groups in `GROUPS`. Built-in names cannot be replaced. Wherever a name is
accepted, a reference to a class or function of the user's own is accepted as well, such as ``mine.py:Thing``
(`hflray.support.references`). A name in the table that ends in a colon is a prefix: ``torchvision:`` resolves
``torchvision:resnet18`` to its factory, which then gets ``resnet18`` as its first argument.
"""

from __future__ import annotations

import importlib
import inspect
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

from hflray.errors import ConfigError, nearest
from hflray.support import references
from hflray.support.text import shorten

Kind = Literal[
    "scheduler", "assigner", "dataset", "partition", "model", "loss", "metric", "local_rule", "aggregator",
    "compressor", "availability", "fading", "mobility", "access", "compute", "download", "observer", "sink", "fleet",
    "figure",
]  # fmt: skip

_read: Any = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
BUILTIN: dict[Kind, dict[str, str]] = _read

# The groups of entry points, such as ``hflray.schedulers`` and ``hflray.availabilities``.
GROUPS: dict[Kind, str] = {
    kind: f"hflray.{kind.removesuffix('y') + 'ies' if kind.endswith('y') else kind + 's'}" for kind in BUILTIN
} | {"loss": "hflray.losses", "access": "hflray.accesses"}

# What a class needs for each kind, and what an object that a function has made needs.
METHODS: dict[Kind, tuple[str, ...]] = {
    "scheduler": ("schedule",),
    "assigner": ("assign",),
    "partition": ("__call__",),
    "availability": ("available", "advance", "state_dict", "load_state_dict"),
    "fading": ("factor",),
    "mobility": ("advance", "at", "places", "state_dict", "load_state_dict"),
    "observer": ("before", "after", "stops", "state_dict", "load_state_dict"),
    "access": ("upload",),
    "compute": ("run",),
    "download": ("receive",),
    "sink": ("open", "rounds", "end"),
}
# The arguments with which a class or function of a kind is called, by position; all others are options, by name.
ARGUMENTS: dict[Kind, tuple[str, ...]] = {
    "dataset": ("root",),
    "model": ("input_shape", "num_outputs"),
    "metric": ("outputs", "targets"),
    "sink": ("place",),
    "fleet": ("config", "rng"),
    "figure": ("sweep",),
}

_ADDED: dict[tuple[Kind, str], Any] = {}  # what `register` has added in this process
_revision = 0  # how often it has


@cache
def _table(kind: Kind) -> dict[str, str]:
    table = {point.name: point.value for point in entry_points(group=GROUPS[kind])}
    return table | BUILTIN[kind]


def _place(kind: Kind, name: str) -> str:
    """Return where a name leads, as ``module:thing``, or an empty text; only an unknown name needs the entry points."""
    return BUILTIN[kind].get(name) or _table(kind).get(name, "")


def register(kind: Kind, name: str, implementation: Any) -> None:
    """Add a name in this process, as a notebook does for a class in one of its cells.

    The trials of a sweep run in other processes, which do not have the name; a package adds it there through an entry
    point of the group in `GROUPS`. Registering a name again replaces what this function added before.

    Args:
        kind: what the implementation is.
        name: the name that a configuration gives, such as ``scheduling.name: carousel``.
        implementation: the class or function, with the same contract as the built-in ones.

    Raises:
        ConfigError: the name is built in, or an installed package registers it.
    """
    if name in _table(kind):
        raise ConfigError(f"{kind} '{name}': this name is taken; accepted: a new name; choose another")
    global _revision
    _ADDED[kind, name] = implementation
    _revision += 1


def revision() -> int:
    """Return a number that rises with each `register`, as a part of the key of what is kept by names."""
    return _revision


def names(kind: Kind) -> list[str]:
    """Return the registered names of a kind, sorted; a prefix is followed by ``NAME``."""
    registered_names = {*_table(kind), *(name for added, name in _ADDED if added == kind)}
    return sorted(f"{name}NAME" if name.endswith(":") else name for name in registered_names)


def is_registered(kind: Kind, name: str) -> bool:
    """Return whether a name is built in, added, or begins with a registered prefix; a reference is not."""
    listed = bool(_place(kind, name)) and not name.endswith(":")
    return listed or (kind, name) in _ADDED or bool(_prefix(kind, name))


def checked_name(kind: Kind, name: str, words: Sequence[str] = ()) -> str:
    """Return `name` if it is known, and a reference with the hash of its text.

    Args:
        kind: the kind.
        name: the name or reference.
        words: further words that the setting accepts, which a message lists too.

    Raises:
        ValueError: the name is unknown, and the message lists the known names; or there is no text of this reference.
    """
    if is_registered(kind, name):
        return name
    reference = references.parse(name)
    if reference is not None:
        try:
            return name if reference.sha256 else references.pin(name)
        except ConfigError as error:
            raise ValueError(str(error)) from error
    listed = [*words, *names(kind)]
    hint = f"; write it as {name}:NAME" if name.endswith(".py") else nearest(name, listed)
    if kind == "dataset" and not name.endswith(".py") and any(mark in name for mark in "./"):
        hint = (
            "; only an .npz is named by its path, and a function of your own reads any other file, as mine.py:load does"
        )
    raise ValueError(
        f"unknown {kind} {shorten(name)}{hint}; known: {', '.join(listed) or 'none'}; use one of these, or your own "
        f"as in mine.py:Name, or install a package that adds it (entry point group '{GROUPS[kind]}')"
    )


def check(kind: Kind, name: str, setting: str | None = None, words: Sequence[str] = ()) -> str:
    """Return the name as `checked_name` does. Raises ConfigError, whose message begins with the setting or the kind."""
    try:
        return checked_name(kind, name, words)
    except ValueError as error:
        raise ConfigError(f"{setting or kind}: {error}") from error


def resolve(kind: Kind, name: str) -> Any:
    """Import and return the class or function registered as `name`, or that of a reference.

    Raises:
        ConfigError: the name is unknown, its module cannot be imported, or a reference leads to nothing of this kind.
    """
    if (kind, check(kind, name)) in _ADDED:
        return _ADDED[kind, name]
    prefix = _prefix(kind, name)
    if prefix:
        return partial(_registered(kind, prefix), name.removeprefix(prefix))
    if _place(kind, name):
        return _registered(kind, name)
    thing = references.load(name)
    if not callable(thing):
        raise ConfigError(
            f"{references.spoken(name)} is a {type(thing).__name__}; accepted as {kind}: a class or a function; "
            "correct the name"
        )
    if isinstance(thing, type):
        _check_methods(kind, name, thing)
    _check_arguments(kind, name, thing)
    return thing


def _prefix(kind: Kind, name: str) -> str:
    """Return the registered prefix of a name, such as ``torchvision:``, or an empty text."""
    prefix = f"{name.partition(':')[0]}:"
    return prefix if len(name) > len(prefix) and _place(kind, prefix) else ""


def _registered(kind: Kind, name: str) -> Any:
    module, _, attribute = _place(kind, name).partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{kind} '{name}' is registered as {module}:{attribute}, which cannot be loaded ({error}); "
            "install or repair the package that provides it"
        ) from error


def _check_methods(kind: Kind, name: str, thing: type) -> None:
    """Raise ConfigError if a referenced class lacks a method that its kind needs."""
    abstract = tuple(sorted(getattr(thing, "__abstractmethods__", ())))
    for method in (*METHODS.get(kind, ()), *abstract):
        if method in abstract or not any(method in vars(base) for base in thing.__mro__):
            raise ConfigError(
                f"{references.spoken(name)} has no method '{method}', which every {kind} needs; add it, or name "
                "another class"
            )


def _check_arguments(kind: Kind, name: str, thing: Any) -> None:
    """Raise ConfigError if a referenced class or function does not take what its kind is called with."""
    arguments = ARGUMENTS.get(kind, ())
    try:
        inspect.signature(thing).bind_partial(*arguments)
    except TypeError as error:
        raise ConfigError(
            f"{references.spoken(name)} cannot be called with ({', '.join(arguments)}), as every {kind} is ({error}); "
            "give it these parameters"
        ) from error
    except ValueError:  # it is written in C and has no signature
        return


def build(kind: Kind, name: str, arguments: Mapping[str, Any] | None = None, /, **options: Any) -> Any:
    """Build the class registered as `name`, or that of a reference.

    Args:
        kind, name: what is built.
        arguments: what every implementation of the kind is called with; none of these is an option.
        **options: what a user has set.

    Raises:
        ConfigError: the name is unknown, or an option is unknown or missing; the message lists the accepted options.
    """
    arguments = arguments or {}
    factory = resolve(kind, name)
    check_options(kind, name, factory, options, tuple(arguments))
    made = factory(**arguments, **options)
    if not is_registered(kind, name):
        _check_methods(kind, name, type(made))
    return made


def check_options(
    kind: Kind, name: str, factory: Any, options: Mapping[str, Any], arguments: tuple[str, ...] = ()
) -> None:
    """Compare options with a factory's signature.

    The call's TypeError is not caught instead, because that would also hide bugs inside the constructor.

    Raises:
        ConfigError: an option is unknown or missing, and the message lists the accepted options; or the factory does
            not take one of the `arguments`, whose names these are.
    """
    called = f"{kind} '{references.spoken(name)}'"
    try:
        parameters = inspect.signature(factory).parameters.values()
    except ValueError:  # it is written in C and has no signature
        return
    taken = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    accepted = [option for option in taken if option not in arguments]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    for argument in arguments:
        if argument not in taken and not takes_all:
            raise ConfigError(
                f"{called} does not take '{argument}'; every {kind} is called with {', '.join(arguments)}; give it "
                "this parameter"
            )
    for option, value in options.items():
        if option in arguments or not (takes_all or option in accepted):
            raise ConfigError(
                f"{called}: unknown option '{option}' (got {value!r}){nearest(option, accepted)}; "
                + (f"accepted: {', '.join(accepted)}" if accepted else "accepted: none; remove it")
            )
    for p in parameters:
        if p.default is p.empty and p.name in accepted and p.name not in options:
            raise ConfigError(f"{called}: option '{p.name}' is missing; give it a value")
