"""Which edge each scheduled device talks to: Ψ_i of the paper, section V and the benchmarks of section VI."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray import registry
from hflray.config import ExperimentConfig
from hflray.cost import Workload
from hflray.fleet import Fleet

__all__ = ["Assigner", "build_assigner", "configured_assigner"]

# The keys of the configuration's `assignment` section that each assigner takes; the others ignore them. The assigners
# named here also take `allocation.coupling`: the objective that they lower is the one that the round is billed by.
SETTINGS = {
    "hfel": ("transfers", "exchanges", "start"),
    "local_search": ("start", "restarts", "budget_ms"),
    "d3qn": ("policy", "polish_ms"),
}


class Assigner(Protocol):
    """Anything that gives each scheduled device an edge."""

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> NDArray[np.intp]:
        """Return the edge of each of `devices`, (H,) indices from 0 to M - 1.

        Args:
            fleet: N devices and M edges.
            work: model size, iterations and λ of the round.
            devices: the scheduled devices, (H,) indices.
            rng: the only source of randomness; assigners that need none ignore it.

        Raises:
            ConfigError: an index is not of the fleet, or is listed twice.
        """


def build_assigner(name: str, **options: Any) -> Assigner:
    """Build the assigner registered as `name`.

    Args:
        name: ``geographic``, ``random``, ``best_gain``, ``hfel``… or one added through the entry point group
            ``hflray.assigners``.
        **options: whatever that assigner accepts, such as ``exchanges`` for ``hfel``.

    Raises:
        ConfigError: the name is unknown, or an option is; the message lists what is accepted.
    """
    assigner: Assigner = registry.build("assigner", name, **options)
    return assigner


def configured_assigner(config: ExperimentConfig) -> Assigner:
    """Build the assigner that a configuration asks for, with its settings; null leaves the assigner's own default.

    Raises:
        ConfigError: ``assignment.options`` holds something the assigner does not accept.
    """
    section = config.assignment
    settings = {name: getattr(section, name) for name in SETTINGS.get(section.name, ())}
    options = {name: value for name, value in settings.items() if value is not None}
    if section.name == "hfel":
        options["method"] = config.allocation.method
    if section.name in SETTINGS:
        options["coupling"] = config.allocation.coupling
    assigner = build_assigner(section.name, **(options | section.options))
    if section.name == "d3qn":
        from hflray.assignment.d3qn import D3QN  # with torch, which other assigners do without

        if isinstance(assigner, D3QN):
            assigner.on_deployment(config.fleet.deployment_seed)
    return assigner
