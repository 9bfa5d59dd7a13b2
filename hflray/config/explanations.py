"""What a setting accepts, in words: in a list of all settings, and in one line for each mistake in a configuration.

A line names the setting, its value, what is accepted and the fix. pydantic detects the mistakes, but its own report
names Python's types and pydantic's rules, which do not help the author of a YAML file. The documentation is made from
the list of `settings`, with their types, defaults, units and meanings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hflray.config.base import Named
from hflray.errors import ConfigError, nearest
from hflray.support.text import one_line, shorten

# The unit of a setting whose name ends in one of these; the longest ending that fits counts.
SUFFIXES = {
    "_dbm_per_hz": "dBm/Hz", "_dbm": "dBm", "_db": "dB", "_mhz": "MHz", "_ghz": "GHz", "_ms": "ms", "_s": "s",
    "_km": "km", "_m": "m", "_kb": "KB of 1024 bytes",
    "_mb": "MB of 1024² bytes", "_j": "J", "_w": "W",
}  # fmt: skip
# The units of the other numeric settings, by the last part of the dotted key, or by more of it where that is needed.
UNITS = {
    "batch_size": "samples", "base_share": "1", "buffer_capacity": "transitions", "capacitance": "J·s²/cycles³",
    "ce": "1", "deadline": "1", "cpus_per_trial": "CPUs", "cycles_per_sample": "cycles/sample", "delay_weight": "J/s",
    "deployment_seed": "1", "devices_per_actor": "devices", "dirichlet_alpha": "1", "edge_iterations": "1",
    "env_steps": "steps", "environments": "1", "epsilon": "1", "epsilon_steps": "steps", "evaluate_every": "steps",
    "evaluation_fleets": "fleets", "every": "rounds", "exchanges": "tries", "final_learning_rate": "1",
    "first": "devices", "region.count": "regions", "region.iterations": "1",
    "fleet.samples": "samples", "fleets": "fleets", "gamma": "1", "gpus_per_trial": "GPUs", "grace_rounds": "rounds",
    "grad_clip": "1", "hidden": "1", "learning_rate": "1", "learning_rate_steps": "steps", "learning_starts": "steps",
    "local_iterations": "1", "loguniform": "of the setting", "majority_fraction": "1", "max_concurrent": "trials",
    "max_failures": "1", "max_rounds": "rounds", "minutes": "min", "num_actors": "actors", "num_clusters": "clusters",
    "num_devices": "devices", "num_edges": "edges", "num_scheduled": "devices", "path_loss_slope_db": "dB per decade",
    "randint": "of the setting", "redraw": "1", "reduction": "1", "refinements": "1", "replaced": "1", "restarts": "1",
    "samples": "1", "samples_per_device": "samples", "seed": "1", "seeds": "1", "stop": "of the metric",
    "target_accuracy": "1",
    "target_update_steps": "steps", "td": "1", "threads": "threads", "train_batch": "transitions",
    "training_intensity": "1", "transfers": "tries", "uniform": "of the setting", "update_every": "steps",
    "validation": "samples", "value": "of the metric",
    "width": "1", "agent.env_steps": "rounds", "agent.evaluate_every": "rounds", "agent.train_batch": "rounds",
    "clip": "1", "entropy": "1", "epochs": "1", "gae_lambda": "1", "minibatch": "rounds",
    "factor": "1", "initial": "1", "momentum": "1", "rate_per_s": "1/s", "sigma": "1", "weight_decay": "1",
    "updates": "updates", "mixing": "1", "exponent": "1", "hinge": "1", "buffer": "updates", "max_iterations": "1",
    "key_bits": "bits", "noise_multiplier": "1", "delta": "1", "shares": "shares", "share": "1", "strength": "1",
    "slow_share": "1", "slow_factor": "1",
}  # fmt: skip
_TYPES: dict[Any, str] = {
    int: "an integer", float: "a number", str: "a text", bool: "true or false", list: "a list",
    dict: "a mapping of settings",
}  # fmt: skip

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Setting:
    """A setting of a configuration.

    Attributes:
        key: the dotted key.
        accepted: the type and the bounds in words, as in the message for a wrong value.
        default: the default as YAML's author writes it; empty if the setting must be given.
        unit: the unit of the value; empty if it is not a number.
        meaning: what the setting says.
    """

    key: str
    accepted: str
    default: str
    unit: str
    meaning: str


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[Setting]:
    """Yield the settings of a model without those of its sections, in order; `prefix` precedes each key.

    A section that may be written as one value, such as ``clock.cloud: synchronous``, is a setting, too.
    """
    for name, field in model.model_fields.items():
        key, meaning = prefix + name, field.description or ""
        if isinstance(field.default, BaseModel):
            written = field.default.model_dump(mode="json")
            if not isinstance(written, dict):
                yield Setting(key, "a value, or a section", yaml_of(written), "", meaning)
        if section_of(field.annotation) is None:
            words = accepted(field)
            yield Setting(key, words, yaml_of(field.default), unit_of(key, words), meaning)


def sections(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the dotted key and the model of each section below `model`, each before its own sections."""
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            yield prefix + name, section
            yield from sections(section, f"{prefix}{name}.")


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the model that an annotation names, also as ``Model | None``; None if it names none."""
    inner, _ = strip_optional(annotation)
    return inner if isinstance(inner, type) and issubclass(inner, BaseModel) else None


def unit_of(key: str, words: str) -> str:
    """Return the unit of a setting, given its dotted key and what it accepts in words; empty if it is not a number.

    Raises:
        ConfigError: the setting is a number and neither its name nor `UNITS` gives its unit.
    """
    parts = key.split(".")
    for ending in (".".join(parts[-2:]), parts[-1]):
        if ending in UNITS:
            return UNITS[ending]
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if parts[-1].endswith(suffix):
            return SUFFIXES[suffix]
    if any(word in words for word in ("number", "integer")):
        raise ConfigError(f"{key}: has no unit; end its name in one, or add it to UNITS in {__name__}")
    return ""


def yaml_of(default: Any) -> str:
    """Return a default as it is written in YAML on one line; a value that must be given is empty."""
    if default is PydanticUndefined:
        return ""
    if default is None or isinstance(default, bool):
        return {None: "null", True: "true", False: "false"}[default]
    if isinstance(default, tuple | list):
        return f"[{', '.join(yaml_of(value) for value in default)}]"
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if default != "" else '""'


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
    lines: dict[str, str] = {}  # by setting, since both ends of a range and each part of a union may be wrong
    for item in error.errors(include_url=False):
        where, got, kind = item["loc"], shorten(item["input"]), item["type"]
        section, field, depth = _locate(model, where)
        is_ours = kind == "value_error"
        message = str(item["ctx"]["error"]) if is_ours else f"{item['msg'][0].lower()}{item['msg'][1:]}; correct it"
        if where and where[-1] == "[key]":
            where = where[:-2]
            problem = f"got the key {got}; accepted: a text, such as the dotted name of a setting; correct or remove it"
        elif kind in ("extra_forbidden", "invalid_key"):
            problem = f"unknown key (got {got}){_suggest(model, section, str(where[-1]))}"
        elif kind == "missing":
            problem = f"got {got} without it; add it"
        elif kind in ("model_type", "dict_type"):
            key = ".".join(map(str, where))
            problem = f"got {got}; accepted: a section (a mapping of settings); write its settings as {prefix}{key}.KEY"
        elif is_ours and (not where or isinstance(item["input"], dict | BaseModel)):
            problem = message  # the rule combines several settings, which it names
        elif is_ours or field is None:
            problem = f"got {got}; {message}"
        else:
            where = where[:depth]
            meaning = f" ({field.description})" if field.description else ""
            problem = f"got {got}; accepted: {accepted(field)}{meaning}{_fix(field, item['input'])}"
        setting = prefix + ".".join(str(part) or "''" for part in where)
        lines.setdefault(setting, one_line(f"{setting}: {problem}" if setting else problem))
    return "\n".join(lines.values())


def _locate(model: type[BaseModel], location: tuple[int | str, ...]) -> tuple[type[BaseModel], FieldInfo | None, int]:
    """Return the section that `location` leads into, the setting in it or None, and the length of the way there."""
    parts = iter(enumerate(location, 1))
    for depth, part in parts:
        field = model.model_fields.get(str(part))
        if field is None:
            return model, None, depth
        inner = strip_optional(field.annotation)[0]
        if get_origin(inner) in (dict, list):  # its keys are the user's, as in `sweep`, and its values may be sections
            inner = get_args(inner)[-1]
            depth = next(parts, (0, None))[0]
            if not depth:
                return model, field, len(location)
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return model, field, depth
        model = inner
    return model, None, len(location)


def _suggest(model: type[BaseModel], section: type[BaseModel], key: str) -> str:
    """Return a hint for an unknown key: a similar key of the section, or a setting of that name in another section."""
    keys = list(section.model_fields)
    nested = {f"{place}.{name}": name for place, inner in sections(model) for name in inner.model_fields}
    same_name = [dotted for dotted, name in nested.items() if name == key]
    hint = f"; did you mean '{same_name[0]}'?" if same_name else nearest(key, keys)
    return f"{hint}; accepted: {', '.join(keys)}; correct or remove it"


def strip_optional(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without ``Annotated`` and ``| None``, and whether it allowed None."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    arguments = get_args(annotation)
    if NoneType in arguments and len(arguments) == 2:
        return strip_optional(next(a for a in arguments if a is not NoneType))[0], True
    return annotation, NoneType in arguments


def accepted(field: FieldInfo) -> str:
    """Return what a setting accepts, in words: its type and its bounds, or the names of the registry."""
    annotation, optional = strip_optional(field.annotation)
    named = [mark.accepted for mark in field.metadata if isinstance(mark, Named)]
    text = _words(annotation, field.metadata)
    if named:
        text = f"a list of {named[0]}" if get_origin(annotation) in (tuple, list) else named[0]
    return text + (", or null" if optional else "")


def _words(annotation: Any, rules: Sequence[Any] = ()) -> str:
    """Return what a type accepts, in words; `rules` are the bounds beside it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _words(arguments[0], [rule for mark in arguments[1:] for rule in getattr(mark, "metadata", ())])
    if origin is Literal:
        text = " or ".join(repr(choice) for choice in arguments)
    elif origin in (Union, UnionType):
        text = " or ".join(_words(argument) for argument in arguments if argument is not NoneType)
    elif origin is tuple and arguments[-1] is Ellipsis:
        text = f"a list [a, b], each {_words(arguments[0])}"
    elif origin is tuple:
        text = f"{_words(arguments[0])}, or a range [low, high]"
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
