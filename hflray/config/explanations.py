"""What is wrong with a configuration, one line for each mistake: the setting, its value, what is accepted, the fix.

pydantic finds the mistakes; its report names Python's types and its own rules, which are of no use to who wrote YAML.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hflray.errors import ConfigError, nearest

_TYPES: dict[Any, str] = {int: "an integer", float: "a number", str: "a text", bool: "true or false"}

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], tree: Mapping[str, Any], prefix: str = "") -> Model:
    """Validate a tree against a model; every mistake becomes one line of a ConfigError."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, model, prefix)) from error


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Turn pydantic's report into one line per mistake: the setting, the value, what is accepted, the fix."""
    lines = []
    for item in error.errors(include_url=False):
        location = item["loc"]
        where = prefix + ".".join(str(part) for part in location)
        message, value = item["msg"].removeprefix("Value error, "), item["input"]
        section, field = _at(model, location)
        if item["type"] in ("extra_forbidden", "invalid_key"):
            lines.append(f"{where}: unknown key (got {_short(value)}){_suggest(model, section, location)}")
        elif item["type"] in ("model_type", "dict_type"):
            lines.append(
                f"{where}: got {_short(value)}; accepted: a section (a mapping of settings); "
                f"write its settings as {where}.KEY"
            )
        elif item["type"] == "value_error" and (not location or isinstance(value, dict | BaseModel)):
            # A rule over several settings: its text names them.
            lines.append(f"{where}: {message}" if location else message)
        elif item["type"] == "value_error":
            lines.append(f"{where}: got {_short(value)}; {message}")
        elif field is None:
            lines.append(f"{where}: got {_short(value)}; {message[0].lower()}{message[1:]}")
        else:
            lines.append(
                f"{where}: got {_short(value)}; accepted: {_accepted(field)}"
                + (f" ({field.description})" if field.description else "")
                + _fix(field, value)
            )
    return "\n".join(lines)


def _short(value: object) -> str:
    """A value as one line of bearable length."""
    text = "null" if value is None else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _at(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The section that `location` leads into, and the setting there if it is a known one."""
    parts = iter(location)
    for part in parts:
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None
        inner = _plain(field.annotation)[0]
        if get_origin(inner) is dict:  # keys of the user's own, such as the axes of a sweep; sections may lie below
            inner = get_args(inner)[1]
            next(parts, None)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return model, field
        model = inner
    return model, None


def _suggest(model: type[BaseModel], section: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """What an unknown key may have meant: a neighbour, or a setting of that name elsewhere in the tree."""
    key = str(location[-1])
    known = list(section.model_fields)
    elsewhere = [dotted for dotted in _dotted(model) if dotted.split(".")[-1] == key]
    hint = f"; did you mean '{elsewhere[0]}'?" if elsewhere else nearest(key, known)
    return f"{hint}; accepted: {', '.join(known)}; correct or remove it"


def _dotted(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def _plain(annotation: Any) -> tuple[Any, bool]:
    """An annotation without ``Annotated`` and ``| None``, and whether there was a ``| None``."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    arguments = get_args(annotation)
    if NoneType in arguments and len(arguments) == 2:
        return _plain(next(a for a in arguments if a is not NoneType))[0], True
    return annotation, False


def _accepted(field: FieldInfo) -> str:
    """What a setting accepts, in words: its type and its bounds."""
    annotation, optional = _plain(field.annotation)
    if get_origin(annotation) is Literal:
        text = " or ".join(repr(choice) for choice in get_args(annotation))
    elif get_origin(annotation) is tuple:
        kind = get_args(annotation)[0]
        one = _TYPES.get(kind, "a value")
        text = "a list [a, b]" if kind is str else f"{one}, or a range [low, high]"
    else:
        text = _TYPES.get(annotation, str(annotation))
    bounds = [
        f"{word} {getattr(rule, name):g}"
        for rule in field.metadata
        for name, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
        if getattr(rule, name, None) is not None
    ]
    text += (" " + " and ".join(bounds)) if bounds else ""
    text += ", not empty" if any(getattr(rule, "min_length", None) for rule in field.metadata) else ""
    return text + (", or null" if optional else "")


def _fix(field: FieldInfo, value: object) -> str:
    annotation, _ = _plain(field.annotation)
    choices = [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []
    hint = nearest(str(value), choices)
    default = field.default
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return f"{hint}; correct it"
    if isinstance(default, tuple):
        default = list(default)
    return f"{hint}; correct it, or remove it for the default {'null' if default is None else default}"
