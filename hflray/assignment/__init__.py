"""Assign an edge to each scheduled device: Ψ_i of the paper, its section V and the benchmarks of section VI.

With `assignment.once` a device keeps its first edge, that of the first round in which it counted. The assigner is asked
for all scheduled devices of a round as long as one of them keeps no edge; its answer counts for those alone. A device
whose edge is down cannot be scheduled until the edge works again. Nothing else is remembered than the devices' history,
so resumed runs agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hflray import registry
from hflray.config import ExperimentConfig
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import BoolArray, IntArray
from hflray.support.contract import Contract

__all__ = [
    "Assigner",
    "assign_among",
    "assign_the_rest",
    "assigned",
    "build_assigner",
    "check_any_edges",
    "check_once",
    "configured_assigner",
    "reachable",
]

# The keys of the configuration's `assignment` section that each assigner takes; other assigners ignore them. These
# assigners also take `allocation.coupling`, so that they minimise the objective of the round's allocation.
SETTINGS = {
    "hfel": ("transfers", "exchanges", "start"),
    "local_search": ("start", "restarts", "budget_ms"),
    "d3qn": ("policy", "polish_ms"),
}


class Assigner(Protocol):
    """An object that assigns an edge to each scheduled device.

    Examples:
        >>> import numpy as np
        >>> from hflray import Assigner, FleetConfig, Workload, sample_fleet
        >>> class FirstEdge:
        ...     def assign(self, fleet, work, devices, rng):
        ...         return np.zeros(len(devices), dtype=np.intp)
        >>> assigner: Assigner = FirstEdge()
        >>> rng = np.random.default_rng(0)
        >>> assigner.assign(sample_fleet(FleetConfig(), rng), Workload(model_bits=1e6), [2, 5, 7], rng).tolist()
        [0, 0, 0]
    """

    def assign(self, fleet: Fleet, work: Workload, devices: ArrayLike, rng: np.random.Generator) -> IntArray:
        """Return the edge of each of `devices`, (H,) indices from 0 to M - 1.

        Args:
            fleet: N devices and M edges.
            work: model size, iterations and λ of the round.
            devices: the scheduled devices, (H,) indices.
            rng: the only source of randomness; deterministic assigners ignore it.

        Raises:
            ConfigError: an index is not in the fleet, or is listed twice.
        """


def assign_among(
    assigner: Assigner,
    edges_up: BoolArray,
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    rng: np.random.Generator,
) -> IntArray:
    """Return the edge of each of `devices`, (H,), among the edges that are up, (M,).

    The assigner is given the fleet without the other edges, and its answer is mapped back to `fleet`.

    Raises:
        ConfigError: besides the assigner's own reasons, it needs all edges, or returned no edge of the fleet for each
            device.
    """
    if edges_up.all():
        return assigned(assigner, fleet, work, devices, rng)
    up = np.flatnonzero(edges_up)
    return np.asarray(up[assigned(assigner, fleet.take_edges(up), work, devices, rng)], dtype=np.intp)


def assigned(
    assigner: Assigner,
    fleet: Fleet,
    work: Workload,
    devices: ArrayLike,
    rng: np.random.Generator,
    setting: str = "assignment.name",
) -> IntArray:
    """Return the edge that an assigner, whom a `setting` names, chooses for each of `devices`, (H,).

    Raises:
        ConfigError: besides the assigner's own reasons, it returned no edge of the fleet for each device.
    """
    devices = np.array(devices)
    devices.flags.writeable = False  # as the fleet's arrays are
    edges = assigner.assign(fleet, work, devices, rng)
    count = np.size(devices)
    accepted = f"for each of {count} devices the index of an edge, from 0 to {fleet.num_edges - 1}"
    contract = Contract.of(setting, assigner, accepted, "mend its method assign")
    return contract.array(edges, (count,), "i", 0, fleet.num_edges - 1).astype(np.intp)


def check_any_edges(assigner: Assigner) -> None:
    """Raise ConfigError if an assigner can only assign to all edges, and edges may fail.

    Such an assigner has an attribute ``fixed_edges`` that is not None, or ``keeps_edges`` that is true.
    """
    if getattr(assigner, "keeps_edges", False):
        raise ConfigError(
            "assignment.name: 'home' keeps each device at one edge, and world.edge_failure takes failed edges out; "
            "take another assigner, such as geographic, or turn world.edge_failure off"
        )
    fixed = getattr(assigner, "fixed_edges", None)
    if fixed is not None:
        raise ConfigError(
            f"assignment.policy: {getattr(assigner, 'path', type(assigner).__name__)} is for M = {fixed} edges alone, "
            "and world.edge_failure takes failed edges out; leave assignment.policy out for the shipped policy (any "
            "M), or turn world.edge_failure off"
        )


def reachable(edge_of: IntArray, edges_up: BoolArray) -> BoolArray:
    """Return whether each device keeps no edge, or one that is up, (N,).

    Args:
        edge_of: the edge that each device keeps, (N,); -1: none.
        edges_up: whether each edge is up, (M,).
    """
    return (edge_of < 0) | edges_up[edge_of]


def assign_the_rest(kept_edge: IntArray, assign: Callable[[], IntArray]) -> IntArray:
    """Return the edges of a round's devices: the kept one, or else the assigner's, (H,).

    Args:
        kept_edge: the edge that each scheduled device keeps, (H,); -1: none.
        assign: returns the assigner's edge of each, (H,); it is not called if every device keeps one.
    """
    return np.array(kept_edge) if (kept_edge >= 0).all() else np.where(kept_edge >= 0, kept_edge, assign())


def check_once(config: ExperimentConfig, scheduler: type) -> None:
    """Raise ConfigError if devices keep their edges, and the scheduler chooses edges itself in every round."""
    if config.assignment.once and hasattr(scheduler, "schedule_and_assign"):
        raise ConfigError(
            f"assignment.once: got true with scheduling.name = {config.scheduling.name}, which chooses the edges "
            "itself in every round; accepted: false; or choose a scheduler that leaves edges to the assigner"
        )


def build_assigner(name: str, **options: Any) -> Assigner:
    """Return the assigner registered as `name`.

    Args:
        name: ``geographic``, ``random``, ``best_gain``, ``hfel``… or the name of an entry point in the group
            ``hflray.assigners``.
        **options: arguments of the assigner, such as ``exchanges`` of ``hfel``.

    Raises:
        ConfigError: the name or an option is unknown; the message lists the known ones.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, Workload, build_assigner, sample_fleet
        >>> rng = np.random.default_rng(0)
        >>> fleet = sample_fleet(FleetConfig(num_devices=6, num_edges=3), rng)
        >>> build_assigner("best_gain").assign(fleet, Workload(model_bits=1e6), [0, 2, 5], rng).tolist()
        [1, 2, 0]
        >>> fleet.gain[[0, 2, 5]].argmax(axis=1).tolist()
        [1, 2, 0]
    """
    assigner: Assigner = registry.build("assigner", name, **options)
    return assigner


def configured_assigner(config: ExperimentConfig) -> Assigner:
    """Return the assigner of a configuration; a setting of null leaves the assigner's default.

    Raises:
        ConfigError: the assigner does not accept an option in ``assignment.options``.
    """
    section = config.assignment
    settings = {name: getattr(section, name) for name in SETTINGS.get(section.name, ())}
    options = {name: value for name, value in settings.items() if value is not None}
    if section.name in SETTINGS:
        options["coupling"] = config.allocation.coupling
    assigner = build_assigner(section.name, **(options | section.options))
    if section.name == "d3qn":
        from hflray.assignment.d3qn import D3QN  # imports torch, which other assigners do not need

        if isinstance(assigner, D3QN):
            assigner.on_deployment(config.fleet.deployment_seed)
    return assigner
