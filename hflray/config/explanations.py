"""Explain what is wrong with a configuration, in one line for each mistake.

A line names the setting, its value, what is accepted and the fix. pydantic detects the mistakes, but its own report
names Python's types and pydantic's rules, which do not help the author of a YAML file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hflray.errors import ConfigError, nearest
from hflray.support.text import one_line, shorten

_TYPES: dict[Any, str] = {
    int: "an integer", float: "a number", str: "a text", bool: "true or false", list: "a list",
    dict: "a mapping of settings",
}  # fmt: skip

Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], tree: Mapping[str, Any], prefix: str = "") -> Model:
    """Return the tree as a validated `model`. Raises ConfigError with one line for each mistake.

    Every setting in the message is prefixed by `prefix`.
    """
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(explain(error, model, prefix)) from error


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "") -> str:
    """Return pydantic's report as one line per mistake: the setting, its value, what is accepted and the fix."""
    lines = []
    items = error.errors(include_url=False)
    sides = Counter(
        (item["loc"][:-1], repr(item["input"])) for item in items if item["loc"] and item["loc"][-1] in (0, 1)
    )
    for item in items:
        location = item["loc"]
        if (
            location and sides[location[:-1], repr(item["input"])] == 2
        ):  # one number was read as a range with equal ends
            if location[-1] == 1:
                continue
            location = location[:-1]
        setting = one_line(prefix + ".".join(str(part) or "''" for part in location))
        message, value = one_line(item["msg"].removeprefix("Value error, ")), item["input"]
        section, field = _locate(model, location)
        if location and location[-1] == "[key]":
            lines.append(
                f"{setting.removesuffix('.[key]')}: got the key {shorten(value)}; accepted: a text, such as the dotted "
                "name of a setting; correct or remove it"
            )
        elif item["type"] in ("extra_forbidden", "invalid_key"):
            lines.append(f"{setting}: unknown key (got {shorten(value)}){_suggest(model, section, location)}")
        elif item["type"] == "missing":
            lines.append(f"{setting}: got {shorten(value)} without it; add it")
        elif item["type"] in ("model_type", "dict_type"):
            lines.append(
                f"{setting}: got {shorten(value)}; accepted: a section (a mapping of settings); "
                f"write its settings as {setting}.KEY"
            )
        elif item["type"] == "value_error" and (not location or isinstance(value, dict | BaseModel)):
            # The rule combines several settings, which its message names.
            lines.append(f"{setting}: {message}" if location else message)
        elif item["type"] == "value_error":
            lines.append(f"{setting}: got {shorten(value)}; {message}")
        elif field is None:
            lines.append(f"{setting}: got {shorten(value)}; {message[0].lower()}{message[1:]}; correct it")
        else:
            lines.append(
                f"{setting}: got {shorten(value)}; accepted: {accepted(field)}"
                + (f" ({field.description})" if field.description else "")
                + _fix(field, value)
            )
    return "\n".join(lines)


def _locate(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the section that `location` leads into, and the setting in it, or None for an unknown setting."""
    parts = iter(location)
    for part in parts:
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None
        inner = strip_optional(field.annotation)[0]
        if get_origin(inner) in (dict, list):  # its keys are the user's, as in `sweep`, and its values may be sections
            inner = get_args(inner)[-1]
            if next(parts, None) is None:
                return model, field
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return model, field
        model = inner
    return model, None


def _suggest(model: type[BaseModel], section: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return a hint for an unknown key: a similar key of the section, or a setting of that name in another section."""
    key = str(location[-1])
    keys = list(section.model_fields)
    same_name = [dotted for dotted in _dotted(model) if dotted.split(".")[-1] == key]
    hint = f"; did you mean '{same_name[0]}'?" if same_name else nearest(key, keys)
    return f"{hint}; accepted: {', '.join(keys)}; correct or remove it"


def _dotted(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted name of every setting of a model and its sections."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def strip_optional(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without ``Annotated`` and ``| None``, and whether it allowed None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    arguments = get_args(annotation)
    if NoneType in arguments and len(arguments) == 2:
        return strip_optional(next(a for a in arguments if a is not NoneType))[0], True
    return annotation, NoneType in arguments


def accepted(field: FieldInfo) -> str:
    """Return what a setting accepts, in words: its type and its bounds."""
    annotation, optional = strip_optional(field.annotation)
    text = _words(annotation, field.metadata)
    return text + (", or null" if optional else "")


def _words(annotation: Any, rules: Sequence[Any] = ()) -> str:
    """Return what a type accepts, in words; `rules` are the bounds beside it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], arguments[1].metadata if isinstance(arguments[1], FieldInfo) else ())
    if origin is Literal:
        text = " or ".join(repr(choice) for choice in arguments)
    elif origin in (Union, UnionType):
        text = " or ".join(_words(one) for one in arguments if one is not NoneType)
    elif origin is tuple:
        if arguments[-1] is not Ellipsis:
            text = f"{_TYPES.get(arguments[0], 'a value')}, or a range [low, high]"
        else:
            text = "a list [a, b]" if arguments[0] is str else "a list of numbers"
    else:
        text = _TYPES.get(origin or annotation, str(annotation))
    bounds = [
        f"{word} {_number(getattr(rule, name))}"
        for rule in rules
        for name, word in (("gt", "above"), ("ge", "at least"), ("lt", "below"), ("le", "at most"))
        if getattr(rule, name, None) is not None
    ]
    text += (" " + " and ".join(bounds)) if bounds else ""
    return text + (", not empty" if any(getattr(rule, "min_length", None) for rule in rules) else "")


def _number(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _fix(field: FieldInfo, value: object) -> str:
    """Return how to mend a value: the nearest choice if there is one, and the setting's default."""
    annotation, _ = strip_optional(field.annotation)
    choices = [str(choice) for choice in get_args(annotation)] if get_origin(annotation) is Literal else []
    hint = nearest(str(value), choices)
    if isinstance(value, bool) and (choices or (isinstance(annotation, type) and issubclass(annotation, str))):
        hint = "; YAML reads yes, no, on and off as true or false, so write such a text in quotes"
    default = field.default
    if default is PydanticUndefined or isinstance(default, BaseModel):
        return f"{hint}; correct it"
    if isinstance(default, tuple):
        default = list(default)
    return f"{hint}; correct it, or remove it for the default {'null' if default is None else default}"
