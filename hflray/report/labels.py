"""The labels of methods, data sets and settings in reports, and the colours of their lines and bars.

Names, units and formats of metrics are rows of `hflray.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hflray.support.references import short

if TYPE_CHECKING:
    from hflray.report.runs import Run

# The palette of Okabe and Ito, whose colours colour-blind readers can distinguish.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, "#000000", "#8A8A00")

H, DATA, LAMBDA = "scheduling.num_scheduled", "data.name", "cost.delay_weight"
OPTIONS = "scheduling.options."
DEPLOYMENT = "fleet.deployment_seed"  # an integer draws the edges once from this seed; None draws them with each fleet


@dataclass(frozen=True)
class Label:
    """The label of a setting's value, and its colour in every chart; an empty colour follows the series' number."""

    label: str
    colour: str = ""


NAMES = {
    "ikc": Label("IKC", BLUE), "vkc": Label("VKC", ORANGE), "fedavg": Label("FedAvg", VERMILION),
    "round_robin": Label("round robin"), "best_channel": Label("best channel"), "ucb": Label("UCB"),
    "energy_aware": Label("energy-aware"), "power_of_choice": Label("power-of-choice"), "oort": Label("Oort"),
    "hfel": Label("HFEL"), "local_search": Label("local search"), "best_gain": Label("best gain"),
    "load_balanced": Label("load balanced"), "even_gain": Label("even gain"),
    "d3qn": Label("D3QN"), "paper": Label("the paper's features"), "db": Label("dB features"),
    "paper_db": Label("the paper's features, gains in dB"),
    "fashion_mnist": Label("Fashion-MNIST"), "cifar10": Label("CIFAR-10"),
    "iid": Label("IID"), "dirichlet": Label("Dirichlet"), "majority": Label("majority class"),
    "shards": Label("whole classes"), "edge_dirichlet": Label("Dirichlet over edges and devices"),
    "edge_iid": Label("edge-IID"), "edge_noniid": Label("edge-NIID"), "home": Label("home edge"),
}  # fmt: skip
POLICIES = {
    None: "shipped (any deployment)", "any_deployment": "shipped (any deployment)",
    "paper_literal": "literal (deployment 0)", "paper_best": "best reading (deployment 0)",
    "paper_db": "the paper's network with dB features",
}  # fmt: skip
SETTINGS = {
    H: "H = {}",
    LAMBDA: "λ = {:g}",
    "fleet.num_devices": "N = {}",
    "fleet.num_edges": "M = {}",
    "fleet.slow_share": "{:.0%} slow devices",
    "data.majority_fraction": "majority {:.0%}",
    "learning.buffer_capacity": "buffer of {:,}",
    "data.dirichlet_alpha": "α = {:g}",
    "training.local_iteration": "one {} a local iteration",
}
ORDER = ("ikc", "vkc", "fedavg")  # the order of the schedulers in the paper
_COLOUR_OF = {name.label: name.colour for name in NAMES.values() if name.colour}


def rank(run: Run) -> int:
    """Return the position of a run's scheduler in the paper's order; others come last."""
    return ORDER.index(name) if (name := run.config.scheduling.name) in ORDER else len(ORDER)


def pretty(value: Any) -> str:
    """Return the label of a setting's value; a reference is its class or function, any other value is its own."""
    name = NAMES.get(str(value))
    return name.label if name else short(value)


def option(name: str, value: Any) -> str:
    """Return the label of an option, such as ``max_wait none``."""
    return f"{name} {'none' if value is None else value}"


def setting(key: str, value: Any) -> str:
    """Return the label of a setting's value; a number alone would not say what it is, so that its name precedes it."""
    if key in SETTINGS:
        return SETTINGS[key].format(value)
    if value is None or isinstance(value, int | float):
        return option(key.rpartition(".")[2].replace("_", " "), f"{value:.15g}" if isinstance(value, float) else value)
    return pretty(value)


def hfel(exchanges: int) -> str:
    """Return the paper's name of HFEL with this number of exchanges, such as ``HFEL-300``."""
    return f"{pretty('hfel')}-{exchanges}"


def colour(label: str, number: int) -> str:
    """Return the colour of a series: its scheduler's if the label is only the scheduler, else that of `number`."""
    return _COLOUR_OF.get(label) or COLOURS[number % len(COLOURS)]


def policy(run: Run) -> str:
    """Return the label of the policy of a run whose assigner is d3qn."""
    name = run.config.assignment.policy
    return POLICIES.get(name, f"policy {Path(name).stem}" if name else "")


def mark_modified(label: str, runs: Sequence[Run]) -> str:
    """Return a group's label, followed by the number of its runs whose checkout had uncommitted changes, if any."""
    count = sum(run.modified for run in runs)
    if not count:
        return label
    return f"{label} ({'' if count == len(runs) else f'{count} of {len(runs)} runs: '}modified checkout)"


def describe(run: Run, keys: Sequence[str]) -> str:
    """Return the values of settings as text; settings without effect on this run are left out."""
    parts: list[str] = []
    for key in keys:
        if key.startswith(OPTIONS):
            parts += [option(key.removeprefix(OPTIONS), run.settings[key])] if key in run.settings else []
            continue
        value = run.settings.get(key)
        partition, assigner = run.config.data.partition, run.config.assignment.name
        if (key == "data.dirichlet_alpha" and partition != "dirichlet") or (
            key == "data.majority_fraction" and partition != "majority"
        ):
            continue
        if key in ("assignment.exchanges", "assignment.transfers"):
            if assigner == "hfel" and key == "assignment.exchanges":
                follows_name = parts[-1:] == [pretty("hfel")]
                parts[-1:] = [hfel(run.config.assignment.exchanges)] if follows_name else [*parts[-1:], f"k = {value}"]
            continue
        if key == "assignment.polish_ms":  # milliseconds, or a word where D3QN's local search has no limit
            if value:
                parts.append(f"polished to an {value}" if isinstance(value, str) else f"+ {value:g} ms")
            continue
        if key == "clock.edge.asynchronous":
            parts += [value] if value else []
            continue
        if key == "assignment.start":  # HFEL's default, geographic, is not named
            parts += [f"{pretty(value)} start"] if value else []
            continue
        if key == "assignment.policy":  # the label of the name already contains it, where both are asked for
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
        parts.append(setting(key, value))
    return ", ".join(parts)
