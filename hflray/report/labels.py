"""What a reader calls the methods, data sets and settings of a run, and the colours of their lines and bars.

Names, units and formats of metrics are rows of `hflray.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hflray.report.runs import Run

# Okabe and Ito's, which the colour-blind tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#000000", "#8A8A00")

H, DATA, LAMBDA = "scheduling.num_scheduled", "data.name", "cost.delay_weight"
DEPLOYMENT = "fleet.deployment_seed"  # an integer: edges drawn from it once and kept; None: drawn with each fleet


@dataclass(frozen=True)
class Named:
    """What a reader calls a setting's value, and the colour that it has on every page (empty: by its number)."""

    label: str
    colour: str = ""


NAMES = {
    "ikc": Named("IKC", BLUE), "vkc": Named("VKC", ORANGE), "fedavg": Named("FedAvg", VERMILION),
    "hfel": Named("HFEL"), "local_search": Named("local search"), "best_gain": Named("best gain"),
    "d3qn": Named("D3QN"), "paper": Named("the paper's features"), "db": Named("dB features"),
    "fashion_mnist": Named("Fashion-MNIST"), "cifar10": Named("CIFAR-10"),
    "iid": Named("IID"), "dirichlet": Named("Dirichlet"), "majority": Named("majority class"),
}  # fmt: skip
POLICIES = {
    None: "shipped (any deployment)", "any_deployment": "shipped (any deployment)",
    "paper_literal": "literal (deployment 0)", "paper_db": "the paper's network with dB features",
}  # fmt: skip
SETTINGS = {
    H: "H = {}",
    LAMBDA: "λ = {:g}",
    "fleet.num_devices": "N = {}",
    "fleet.num_edges": "M = {}",
    "data.majority_fraction": "majority {:.0%}",
    "data.dirichlet_alpha": "α = {:g}",
}
ORDER = ("ikc", "vkc", "fedavg")  # the paper's
_COLOUR_OF = {named.label: named.colour for named in NAMES.values() if named.colour}


def rank(run: Run) -> int:
    """Where a run's scheduler stands in the paper's order."""
    return ORDER.index(name) if (name := run.config.scheduling.name) in ORDER else len(ORDER)


def pretty(value: Any) -> str:
    """A setting's value as a reader calls it."""
    named = NAMES.get(str(value))
    return named.label if named else str(value)


def hfel(exchanges: int) -> str:
    """HFEL with so many exchanges, as the paper calls it: ``HFEL-300``."""
    return f"{pretty('hfel')}-{exchanges}"


def colour(label: str, number: int) -> str:
    """The colour of a series: its scheduler's, if that is all that its label says, else by its number."""
    return _COLOUR_OF.get(label) or COLOURS[number % len(COLOURS)]


def policy(run: Run) -> str:
    """What the policy of a run that assigns with d3qn is."""
    known = run.config.assignment.policy
    return POLICIES.get(known, f"policy {Path(known).stem}" if known else "")


def marked(label: str, runs: Sequence[Run]) -> str:
    """A group's label; behind it, how many of its runs are from a checkout with changes that are in no commit."""
    count = sum(run.modified for run in runs)
    if not count:
        return label
    return f"{label} ({'' if count == len(runs) else f'{count} of {len(runs)} runs: '}modified checkout)"


def describe(run: Run, keys: Sequence[str]) -> str:
    """The values of some keys in words; what has no effect on this run is left out."""
    parts: list[str] = []
    for key in keys:
        value = run.settings.get(key)
        partition, assigner = run.config.data.partition, run.config.assignment.name
        if (key == "data.dirichlet_alpha" and partition != "dirichlet") or (
            key == "data.majority_fraction" and partition != "majority"
        ):
            continue
        if key in ("assignment.exchanges", "assignment.transfers"):
            if assigner == "hfel" and key == "assignment.exchanges":
                named = parts[-1:] == [pretty("hfel")]
                parts[-1:] = [hfel(run.config.assignment.exchanges)] if named else [*parts[-1:], f"k = {value}"]
            continue
        if key == "assignment.polish_ms":  # of D3QN: milliseconds, or a word where it has no limit
            if value:
                parts.append(f"polished to an {value}" if isinstance(value, str) else f"+ {value:g} ms")
            continue
        if key == "assignment.policy":  # of D3QN, beside its name
            if assigner == "d3qn" and "assignment.name" not in keys:
                parts.append(policy(run))
            continue
        if key == "assignment.name" and assigner == "d3qn":
            parts.append(f"{pretty(value)}, {policy(run)}")
            continue
        if key == "learning.epsilon" and value is not None:
            parts.append(f"ε from {value[0]:g} to {value[1]:g}")
            continue
        if key == DEPLOYMENT:
            parts.append("edges redrawn with each fleet" if value is None else "edges kept")
            continue
        if key == "allocation.coupling":
            parts += ["joint deadline"] if value == "joint" else []
            continue
        if key == "data.partition" and value == "majority" and "data.majority_fraction" in keys:
            continue
        parts.append(SETTINGS[key].format(value) if key in SETTINGS else pretty(value))
    return ", ".join(parts)
