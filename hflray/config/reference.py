"""A list of all settings with their types, defaults, units and meanings, from which the documentation is made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hflray.config.explanations import accepted, strip_optional
from hflray.errors import ConfigError

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
    "first": "devices",
    "fleet.samples": "samples", "fleets": "fleets", "gamma": "1", "gpus_per_trial": "GPUs", "grace_rounds": "rounds",
    "grad_clip": "1", "hidden": "1", "learning_rate": "1", "learning_rate_steps": "steps", "learning_starts": "steps",
    "local_iterations": "1", "loguniform": "of the setting", "majority_fraction": "1", "max_concurrent": "trials",
    "max_failures": "1", "max_rounds": "rounds", "minutes": "min", "num_actors": "actors", "num_clusters": "clusters",
    "num_devices": "devices", "num_edges": "edges", "num_scheduled": "devices", "path_loss_slope_db": "dB per decade",
    "randint": "of the setting", "redraw": "1", "reduction": "1", "refinements": "1", "replaced": "1", "restarts": "1",
    "samples": "1", "samples_per_device": "samples", "seed": "1", "stop": "of the metric", "target_accuracy": "1",
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
        key = prefix + name
        if isinstance(field.default, BaseModel):
            written = field.default.model_dump(mode="json")
            if not isinstance(written, dict):
                yield Setting(key, "a value, or a section", yaml_of(written), "", field.description or "")
        if section_of(field.annotation) is None:
            words = accepted(field)
            yield Setting(key, words, yaml_of(field.default), unit_of(key, words), field.description or "")


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
        raise ConfigError(f"{key}: has no unit; end its name in one, or add it to UNITS in hflray/config/reference.py")
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
