"""The names of schedulers, assigners, data sets, partitions, parts of the world and trackers (sinks), and their
implementations.

The built-in table holds strings, so that resolving a name imports only its own module. Other packages add names through
entry points of the groups in `GROUPS`. Built-in names cannot be replaced.
"""

from __future__ import annotations

import importlib
import inspect
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

from hflray.errors import ConfigError, nearest

Kind = Literal["scheduler", "assigner", "dataset", "partition", "availability", "fading", "sink"]

GROUPS: dict[Kind, str] = {
    "scheduler": "hflray.schedulers",
    "assigner": "hflray.assigners",
    "dataset": "hflray.datasets",
    "partition": "hflray.partitions",
    "availability": "hflray.availabilities",
    "fading": "hflray.fadings",
    "sink": "hflray.sinks",
}

BUILTIN: dict[Kind, dict[str, str]] = {
    "scheduler": {
        "ikc": "hflray.scheduling.ikc:IKC",
        "vkc": "hflray.scheduling.vkc:VKC",
        "fedavg": "hflray.scheduling.fedavg:FedAvg",
        "round_robin": "hflray.scheduling.round_robin:RoundRobin",
        "best_channel": "hflray.scheduling.best_channel:BestChannel",
        "fastest": "hflray.scheduling.fastest:Fastest",
        "coverage": "hflray.scheduling.coverage:Coverage",
        "importance": "hflray.scheduling.importance:Importance",
        "power_of_choice": "hflray.scheduling.power_of_choice:PowerOfChoice",
        "oort": "hflray.scheduling.oort:Oort",
        "ucb": "hflray.scheduling.ucb:UCB",
        "energy_aware": "hflray.scheduling.energy_aware:EnergyAware",
        "joint_cost": "hflray.scheduling.joint_cost:JointCost",
    },
    "assigner": {
        "geographic": "hflray.assignment.geographic:Geographic",
        "random": "hflray.assignment.simple:Random",
        "best_gain": "hflray.assignment.simple:BestGain",
        "load_balanced": "hflray.assignment.load_balanced:LoadBalanced",
        "hfel": "hflray.assignment.hfel:HFEL",
        "local_search": "hflray.assignment.local_search:LocalSearch",
        "d3qn": "hflray.assignment.d3qn:D3QN",
    },
    "dataset": {
        "digits": "hflray.data.datasets:load_digits",
        "fashion_mnist": "hflray.data.datasets:load_fashion_mnist",
        "cifar10": "hflray.data.datasets:load_cifar10",
        "synthetic": "hflray.data.datasets:make_synthetic",
        "breast_cancer": "hflray.data.tables:load_breast_cancer",
        "diabetes": "hflray.data.tables:load_diabetes",
        "friedman1": "hflray.data.tables:make_friedman1",
        "pydoc_topics": "hflray.data.pydoc:load_pydoc_topics",
    },
    "partition": {
        "majority": "hflray.data.partition:MajorityPartition",
        "dirichlet": "hflray.data.partition:DirichletPartition",
        "iid": "hflray.data.partition:IIDPartition",
    },
    "availability": {
        "always": "hflray.world.availability:Always",
        "bernoulli": "hflray.world.availability:Bernoulli",
        "markov": "hflray.world.availability:Markov",
        "diurnal": "hflray.world.availability:Diurnal",
    },
    "fading": {
        "none": "hflray.world.fading:NoFading",
        "rayleigh": "hflray.world.fading:Rayleigh",
        "rician": "hflray.world.fading:Rician",
    },
    "sink": {
        "mlflow": "hflray.tracking.mlflow:MLflowSink",
        "csv": "hflray.tracking.csv:CSVSink",
    },
}


_ADDED: dict[tuple[Kind, str], Any] = {}  # what `register` has added in this process


@cache
def _table(kind: Kind) -> dict[str, str]:
    table = {point.name: point.value for point in entry_points(group=GROUPS[kind])}
    return table | BUILTIN[kind]


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
    _ADDED[kind, name] = implementation


def names(kind: Kind) -> list[str]:
    """Return the known names of a kind, sorted."""
    return sorted({*_table(kind), *(name for added, name in _ADDED if added == kind)})


def check(kind: Kind, name: str, setting: str | None = None) -> str:
    """Return `name` if it is known; otherwise raise a ConfigError that lists the known names."""
    if name not in names(kind):
        raise ConfigError(
            f"{setting or kind}: unknown {kind} '{name}'{nearest(name, names(kind))}; known: {', '.join(names(kind))}; "
            f"use one of these, or install a package that adds it (entry point group '{GROUPS[kind]}')"
        )
    return name


def resolve(kind: Kind, name: str) -> Any:
    """Import and return the class or function registered as `name`.

    Raises:
        ConfigError: the name is unknown, or its module cannot be imported.
    """
    if (kind, check(kind, name)) in _ADDED:
        return _ADDED[kind, name]
    module, _, attribute = _table(kind)[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{kind} '{name}' is registered as {module}:{attribute}, which cannot be loaded ({error}); "
            "install or repair the package that provides it"
        ) from error


def build(kind: Kind, name: str, **options: Any) -> Any:
    """Build the class registered as `name` with `options`.

    Raises:
        ConfigError: the name is unknown, or an option is unknown or missing; the message lists the accepted options.
    """
    factory = resolve(kind, name)
    # Check the signature first, because catching the call's TypeError would also hide bugs inside the constructor.
    parameters = inspect.signature(factory).parameters.values()
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        accepted = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
        for option, value in options.items():
            if option not in accepted:
                raise ConfigError(
                    f"{kind} '{name}': unknown option '{option}' (got {value!r}){nearest(option, accepted)}; "
                    + (f"accepted: {', '.join(accepted)}" if accepted else "accepted: none; remove it")
                )
    for p in parameters:
        if p.default is p.empty and p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name not in options:
            raise ConfigError(f"{kind} '{name}': option '{p.name}' is missing; give it a value")
    return factory(**options)
