"""Read a configuration from a YAML file and dotted overrides, write it as YAML, and compare it with a saved one."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from hflray.config.experiment import ExperimentConfig
from hflray.config.explanations import validate
from hflray.config.pinning import pin_settings
from hflray.errors import ConfigError
from hflray.support.reader import MOST_CHARACTERS
from hflray.support.reader import parse_yaml as read_yaml
from hflray.support.text import breaks_lines, one_line, shorten

# Settings that may differ from a loaded state's. They decide when to stop and where to run, and do not change results.
MAY_CHANGE = ("max_rounds", "target_accuracy", "target", "tracking", "checkpoint", "data.root", "training.backend",
              "training.num_actors", "training.devices_per_actor", "training.cuda_graph")  # fmt: skip


def _wrong(node: yaml.Node, reason: str) -> ConfigError:
    return ConfigError(f"line {node.start_mark.line + 1}: {reason}")


# ruamel.yaml 0.19.1 was tried in place of these two classes. It reads equal values from every shipped file and refuses
# duplicate keys. But it follows YAML 1.2: yes, no, on and off become texts ("no" in an option would then count as
# true), 017 becomes 17 (an error here), 1:30 becomes a text instead of 90, and -.5e3 a text instead of a number. It
# takes 1.7 times as long for a file and 3 times for an override, and every machine would need one more package.
class _StrictLoader(yaml.SafeLoader):
    """A safe YAML loader that refuses duplicate keys, where PyYAML keeps the last one, and reads 1e-3 as a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":  # "<<: *base", which the parent class resolves
                continue
            key = self.construct_object(key_node, deep=True)
            name = one_line(key if isinstance(key, str) else repr(key))
            if isinstance(key, str) and breaks_lines(key):
                raise _wrong(key_node, f"key '{name}' has a line break or a control character; remove it")
            if name in keys:
                raise _wrong(key_node, f"key '{name}' is given twice; keep one")
            keys.add(name)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if re.fullmatch(r"[-+]?0[0-7_]+", node.value) and value:  # YAML 1.1 reads 010 as 8
            raise _wrong(
                node, f"{node.value} begins with 0, so that YAML reads {value}; write it without, or in quotes"
            )
        return value

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value: float = super().construct_yaml_float(node)
        return value + 0.0  # NumPy's generators refuse a scale of -0.0


_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.construct_yaml_float)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)


class _StrictDumper(yaml.SafeDumper):
    """A YAML dumper whose output `_StrictLoader` reads back; it quotes a text such as "1e3"."""


for _class in (_StrictLoader, _StrictDumper):
    # In YAML 1.1 a number with an exponent needs a dot and a sign, so 1e-3 would be a text.
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
    )


def parse_yaml(text: str, source: str) -> Any:
    """Return the value of a YAML text, which errors call `source`. Raises ConfigError."""
    try:
        value = read_yaml(text, _StrictLoader)
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()  # refuses half a character
        return value
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"{one_line(source)}: {error}; correct it") from error


def read_mapping(path: str | Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; an empty file gives an empty mapping. Raises ConfigError."""
    name = one_line(path) if str(path).strip() else repr(str(path))
    try:
        with Path(path).open(encoding="utf-8") as file:  # the user's own, which may be a pipe
            text = file.read(MOST_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{name}: cannot read the configuration ({reason}); give the path of a YAML file") from error
    tree = parse_yaml(text, name)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{name}: the file holds a {type(tree).__name__}, but a mapping of settings is needed; "
            "write lines such as 'seed: 0'"
        )
    return tree


def split_override(text: str) -> tuple[str, Any]:
    """Split ``"scheduling.num_scheduled=30"`` into its dotted key and its YAML value. Raises ConfigError."""
    key, equals, value = text.partition("=")
    shown = one_line(text if len(text) <= 100 else f"{text[:100]}…")
    if not equals or not all(part.strip() for part in key.split(".")) or breaks_lines(key.strip()):
        raise ConfigError(
            f"override '{shown}': accepted: KEY=VALUE with a dotted key; write it as in scheduling.num_scheduled=30"
        )
    return key.strip(), parse_yaml(value, f"override '{shown}'")


def set_dotted(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set ``tree[a][b] = value`` in place for the dotted key ``a.b``, and make missing sections. Raises ConfigError."""
    *sections, last = key.split(".")
    for depth, name in enumerate(sections):
        child = tree.setdefault(name, {})
        if child is None:
            child = tree[name] = {}
        if not isinstance(child, dict):
            raise ConfigError(
                f"{key}: '{'.'.join(sections[: depth + 1])}' is a value, not a section; remove what follows it"
            )
        tree = child
    tree[last] = value


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys; empty mappings have no key."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


SWEEP_ONLY = frozenset({"task", "experiment", "sweep", "tune"})  # only a sweep file has these sections


def load_config(path: str | Path | None = None, overrides: Iterable[str] = ()) -> ExperimentConfig:
    """Load an experiment's configuration.

    Args:
        path: a YAML file with the configuration, or a sweep file, whose ``experiment:`` section is taken; None gives
            the defaults. Paths in it, also of references (``mine.py:Thing``), are relative to its folder.
        overrides: ``"dotted.key=value"`` strings, which are applied in order; the values are YAML. Paths in them are
            relative to the present folder.

    Returns:
        The validated, frozen configuration.

    Raises:
        ConfigError: the message has one line per mistake.

    Examples:
        >>> from hflray import load_config
        >>> load_config(None, ["fleet.num_devices=200", "data.name=digits"]).fleet.num_devices
        200
    """
    tree = read_mapping(path) if path is not None else {}
    if not SWEEP_ONLY.isdisjoint(tree):
        # A setting beside `experiment:` would be ignored, which changes results; it is an error.
        misplaced = [key for key in tree if key in ExperimentConfig.model_fields and key != "tracking"]
        if misplaced:
            raise ConfigError(
                "\n".join(
                    f"{one_line(path)}: {key}: got {shorten(tree[key])} beside the sections of a sweep file, where it "
                    f"has no effect; accepted: under 'experiment:'; move it there"
                    for key in misplaced
                )
            )
        tree = tree.get("experiment") or {}
        if not isinstance(tree, dict):
            raise ConfigError(
                f"{path}: experiment: got {shorten(tree)}; accepted: a mapping of settings; "
                "write lines such as 'seed: 0' below it"
            )
    tree = pin_settings(tree, None if path is None else Path(path).parent)
    for text in overrides:
        set_dotted(tree, *split_override(text))
    return validate(ExperimentConfig, pin_settings(tree))


def to_yaml(config: BaseModel) -> str:
    """Return the configuration as YAML from which `load_config` makes an equal configuration."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_StrictDumper, sort_keys=False, allow_unicode=True)


def changed_settings(
    config: ExperimentConfig, saved: ExperimentConfig, may_change: Collection[str]
) -> dict[str, list[Any]]:
    """Return the settings among `may_change` that differ, {key: [saved value, new value]}.

    Raises:
        ConfigError: another setting that affects results differs.
    """
    new, old = flatten(config.model_dump(mode="json")), flatten(saved.model_dump(mode="json"))
    changed = {}
    for key in {**new, **old}:  # a level that is off is in neither
        # Of two functions with one name, the second would go on under the name of the first.
        renamed = key != "target.metric" or config.target.name != saved.target.name
        free = renamed and any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)
        # A null is an option's value, and not its absence, of which the default takes the place.
        absent = object() if ".options." in key else None
        if new.get(key, absent) == old.get(key, absent) or free:
            continue
        if key not in may_change:
            raise ConfigError(
                f"{key}: the saved state was made with {old.get(key)!r}, this configuration has {new.get(key)!r}; "
                "resume with the same configuration, or start anew"
            )
        changed[key] = [old.get(key), new.get(key)]
    return changed
