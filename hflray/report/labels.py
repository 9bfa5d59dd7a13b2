"""The labels of methods, data sets and settings in reports, and the colours of their lines and bars.

Names, units and formats of metrics are rows of `hflray.metrics`.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hflray.config import named_settings
from hflray.support import pinned
from hflray.support.references import SHOWN, parse, short, spoken, unplaced

if TYPE_CHECKING:
    from hflray.report.runs import RunRecord

# The palette of Okabe and Ito, whose colours colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#000000", "#8A8A00")

H, DATA, LAMBDA = "scheduling.num_scheduled", "data.name", "cost.delay_weight"
OPTIONS = "scheduling.options."
DEPLOYMENT = "fleet.deployment_seed"  # an integer draws the edges once from this seed; None draws them with each fleet


TABLES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
NAMES, POLICIES, SETTINGS = TABLES["names"], TABLES["policies"], TABLES["settings"]
COLOUR_OF = {"IKC": BLUE, "VKC": ORANGE, "FedAvg": VERMILION}  # in every chart; others follow the series' number
HASH = re.compile(rf"@sha256:([0-9a-f]{{{SHOWN}}})[0-9a-f]*")
ORDER = ("ikc", "vkc", "fedavg")  # the order of the schedulers in the paper


def rank(run: RunRecord) -> int:
    """Return the position of a run's scheduler in the paper's order; others come last."""
    return ORDER.index(name) if (name := run.config.scheduling.name) in ORDER else len(ORDER)


def pretty(value: Any, labels: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the label of a setting's value; a reference is its class or function, any other value is its own.

    Args:
        value: the value.
        labels: the user's own labels, which come first (`RunRecord.labels`).
    """
    return own_label(value, labels) or NAMES.get(str(value)) or short(value)


def own_label(value: Any, labels: Mapping[str, str]) -> str:
    """Return the user's own label of a setting's value; empty if there is none."""
    return labels.get(unplaced(value), "") if labels and isinstance(value, str) else ""


def option(name: str, value: Any) -> str:
    """Return the label of an option, such as ``max_wait none``."""
    return f"{name} {'none' if value is None else value}"


def setting(key: str, value: Any) -> str:
    """Return the label of a setting's value; a number alone would not say what it is, so that its name precedes it."""
    if key in SETTINGS:
        return SETTINGS[key].format(value)
    if value is None or isinstance(value, int | float):
        return option(key.rpartition(".")[2].replace("_", " "), f"{value:.15g}" if isinstance(value, float) else value)
    if key in named_settings() or str(value) in NAMES:
        return pretty(value)
    return pinned.plain(str(value))  # a text such as "wide:relu" is no reference here


def hfel(exchanges: int) -> str:
    """Return the paper's name of HFEL with this number of exchanges, such as ``HFEL-300``."""
    return f"{pretty('hfel')}-{exchanges}"


def colour(label: str, number: int) -> str:
    """Return the colour of a series: its scheduler's if the label is only the scheduler, else that of `number`."""
    return COLOUR_OF.get(label) or COLOURS[number % len(COLOURS)]


def policy(run: RunRecord) -> str:
    """Return the label of the policy of a run whose assigner is d3qn."""
    name = run.config.assignment.policy
    return own_label(name, run.labels) or POLICIES.get(name or "any_deployment") or f"policy {Path(str(name)).stem}"


def mark_modified(label: str, runs: Sequence[RunRecord]) -> str:
    """Return a group's label, followed by the number of its runs whose checkout had uncommitted changes, if any."""
    count = sum(run.modified for run in runs)
    if not count:
        return label
    return f"{label} ({'' if count == len(runs) else f'{count} of {len(runs)} runs: '}modified checkout)"


def value_of(run: RunRecord, key: str) -> Any:
    """Return the value of a setting; for the deployment's seed, return whether it is set.

    An option that is not given is an ellipsis, so that it differs from one that is null.
    """
    value = run.settings.get(key, ... if ".options." in key else None)
    return value is not None if key == DEPLOYMENT else value


def effect(run: RunRecord, keys: Sequence[str]) -> dict[str, Any]:
    """Return the values of the settings that have an effect on a run; runs with the same values are alike."""
    partition, assigner = run.config.data.partition, run.config.assignment.name
    needs = {
        "data.dirichlet_alpha": partition in ("dirichlet", "resampled"),
        "data.majority_fraction": partition in ("majority", "resampled"),
        "assignment.exchanges": assigner == "hfel", "assignment.transfers": assigner == "hfel",
        "assignment.policy": assigner == "d3qn",
    }  # fmt: skip
    values = {key: value_of(run, key) for key in keys if needs.get(key, True)}
    if "assignment.policy" in values:
        values["assignment.policy"] = values["assignment.policy"] or "any_deployment"
    return {key: value for key, value in values.items() if not (key.startswith(OPTIONS) and value is ...)}


def in_full(key: str, value: Any, hashed: bool) -> str:
    """Return a setting's value without abbreviation; `hashed`: with the hash of the file of a reference or policy."""
    name = key.rpartition(".")[2].replace("_", " ")
    if value is ...:
        return f"{name} not given"
    if isinstance(value, str) and (key in named_settings() or key in pinned.SETTINGS):
        text = HASH.sub(r" (sha256 \1…)" if hashed else "", value)
        return f"{name} {text}" if key in pinned.SETTINGS else text
    return f"{name} {json.dumps(value, ensure_ascii=False, default=repr)}"


def label_each(runs: Sequence[RunRecord], keys: Sequence[str]) -> list[str]:
    """Return a label of each run by the values of these settings; it is the same only where all values are.

    Labels are short (`describe`). Where the short labels of different values are equal, these values are in full.
    """
    alike = [tuple((key, repr(value)) for key, value in effect(run, keys).items()) for run in runs]
    firsts = dict(zip(reversed(alike), reversed(runs), strict=True))
    labels = {values: describe(run, keys) for values, run in firsts.items()}
    for hashed in (False, True):
        for label, count in Counter(labels.values()).items():
            members = [values for values in labels if labels[values] == label] if count > 1 else []
            settled = set(members[0]).intersection(*members) if members else set()
            for values in members:
                whole = {key for other in members for key, value in other if (key, value) not in settled}
                labels[values] = describe(firsts[values], keys, whole, hashed)
    return [labels[values] for values in alike]


def group_by(runs: Sequence[RunRecord], keys: Sequence[str]) -> dict[str, list[RunRecord]]:
    """Group runs by the values of these settings, under the labels of `label_each`."""
    groups: dict[str, list[RunRecord]] = {}
    for run, label in zip(runs, label_each(runs, keys), strict=True):
        groups.setdefault(label, []).append(run)
    return groups


def label_apart(names: Sequence[str], taken: Sequence[str] = ()) -> dict[str, str]:
    """Return a label of each name of a part, which no other name and no label in `taken` has."""
    names = list(dict.fromkeys(names))
    labels = {name: pretty(name) for name in names}
    for write in (spoken, str):
        used = Counter(labels.values()) + Counter(taken)
        labels = {name: write(name) if parse(name) and used[label] > 1 else label for name, label in labels.items()}
    return labels


def describe(run: RunRecord, keys: Sequence[str], whole: Set[str] = frozenset(), hashed: bool = False) -> str:
    """Return the values of settings as text; settings without effect on this run are left out.

    Args:
        run: the run.
        keys: dotted keys.
        whole: the keys whose values are not abbreviated, see `in_full`.
        hashed: see `in_full`.
    """
    parts: list[str] = []
    values = effect(run, keys)
    for key, value in values.items():
        if key in whole:
            parts.append(in_full(key, value, hashed))
        elif key.startswith(OPTIONS):
            text = pinned.plain(str(value)) if value is not None else None
            parts.append(own_label(value, run.labels) or option(key.removeprefix(OPTIONS), text))
        elif key == "assignment.exchanges":
            follows_name = parts[-1:] == [pretty("hfel")] and not own_label("hfel", run.labels)
            parts[-1:] = [hfel(run.config.assignment.exchanges)] if follows_name else [*parts[-1:], f"k = {value}"]
        elif key == "assignment.polish_ms":  # milliseconds, or a word where D3QN's local search has no limit
            if value:
                parts.append(f"polished to an {value}" if isinstance(value, str) else f"+ {value:g} ms")
        elif key == "clock.edge.asynchronous":
            parts += [value] if value else []
        elif key == "assignment.start":  # HFEL's default, geographic, is not named
            parts += [f"{pretty(value, run.labels)} start"] if value else []
        elif key == "assignment.policy":  # the label of the name already contains it, where both are asked for
            parts += [] if "assignment.name" in keys else [policy(run)]
        elif key == "assignment.name" and value == "d3qn":
            parts.append(f"{pretty(value, run.labels)}, {policy(run)}")
        elif key == "learning.epsilon" and value is not None:
            parts.append(f"ε from {value[0]:g} to {value[1]:g}")
        elif key == DEPLOYMENT:
            parts.append("edges kept" if value else "edges redrawn with each fleet")
        elif key == "allocation.coupling":
            parts += ["joint deadline"] if value == "joint" else []
        elif key == "assignment.transfers" or (
            key == "data.partition" and value == "majority" and "data.majority_fraction" in keys
        ):
            continue
        else:
            parts.append(own_label(value, run.labels) or setting(key, None if value is ... else value))
    return ", ".join(parts)
