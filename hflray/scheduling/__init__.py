"""Choice of the H devices of each round: FedAvg, VKC (Algorithm 3) and IKC (Algorithm 4) on Algorithm 2's clusters."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hflray import registry
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.scheduling.base import ClusterScheduler, Scheduler
from hflray.scheduling.clustering import cluster_devices, clustering_cost
from hflray.scheduling.context import DeviceHistory, Poll, RoundContext
from hflray.support.arrays import IntArray
from hflray.support.contract import Contract
from hflray.support.references import short, spoken
from hflray.support.text import shorten

__all__ = [
    "ClusterScheduler",
    "DeviceHistory",
    "Poll",
    "RoundContext",
    "Scheduler",
    "build_scheduler",
    "choose_devices",
    "choose_devices_and_edges",
    "cluster_devices",
    "clustering_cost",
    "configured_scheduler",
    "keeps_past",
    "looks_back",
    "scheduler_class",
]

MEND = "mend its method {}"


def choose_devices(scheduler: Scheduler, context: RoundContext) -> IntArray:
    """Return the devices that a scheduler chooses.

    Raises:
        ConfigError: it chose another number of devices than min(H, available), or a device twice, or one that does not
            exist or is not available.
    """
    chosen = scheduler.schedule(context.rng if _takes_rng(type(scheduler)) else context)
    return np.sort(_checked_devices(chosen, "schedule", scheduler, context))


def choose_devices_and_edges(scheduler: Scheduler, context: RoundContext) -> tuple[IntArray, IntArray | None]:
    """Return the devices that a scheduler chooses, and their edges if it has a method ``schedule_and_assign``.

    Raises:
        ConfigError: the devices are wrong, see `choose_devices`, or an edge does not exist or is down.
    """
    choose = getattr(scheduler, "schedule_and_assign", None)
    if choose is None:
        return choose_devices(scheduler, context), None
    accepted = f"a pair of arrays of integers, the devices and the edge of each, in round {context.round}"
    chosen = Contract.of("scheduling.name", scheduler, accepted, MEND.format("schedule_and_assign")).pair(
        choose(context)
    )
    devices = _checked_devices(chosen[0], "schedule_and_assign", scheduler, context)
    up = np.flatnonzero(context.edges_up)
    accepted = f"for each of {len(devices)} devices one of the {len(up)} edges that are up ({shorten(up.tolist())})"
    contract = Contract.of("scheduling.name", scheduler, accepted, MEND.format("schedule_and_assign"))
    where = f" for the edges in round {context.round}"
    edges = contract.array(chosen[1], devices.shape, "i", where=where)
    if not (exists := np.isin(edges, up)).all():
        raise contract.error(f"edge {edges[~exists][0]} in round {context.round}")
    order = np.argsort(devices)
    return devices[order], edges[order].astype(np.intp)


def _checked_devices(chosen: object, method: str, scheduler: Scheduler, context: RoundContext) -> IntArray:
    """Return the devices that a scheduler's method returned. Raises ConfigError as `choose_devices` does."""
    available = context.available
    expected = min(scheduler.num_scheduled, int(available.sum()))
    accepted = f"{expected} different indices of devices of those that are available"
    contract = Contract.of("scheduling.name", scheduler, accepted, MEND.format(method))
    where = f" in round {context.round}"
    devices = contract.array(chosen, (expected,), "i", where=where).astype(np.intp)
    in_fleet = (devices >= 0) & (devices < len(available))
    refused = devices[~(in_fleet & available[np.where(in_fleet, devices, 0)])]
    if refused.size or len(np.unique(devices)) != len(devices):
        reason = f"device {refused[0]}, which is not available" if refused.size else "a device twice"
        raise contract.error(f"{reason},{where}")
    return devices


def looks_back(kind: type[Scheduler]) -> bool:
    """Return whether a class of schedulers may look at the past rounds in its context."""
    return kind.looks_back and not _takes_rng(kind)


def keeps_past(config: ExperimentConfig) -> bool:
    """Return whether a run remembers what devices did: for its scheduler, or because they keep their edges.

    It also does where devices may fail to count, because the fairness of participation is a metric there.
    """
    may_fail = config.world.is_on or config.clock.is_on
    return looks_back(scheduler_class(config.scheduling.name)) or may_fail or config.assignment.once


def _takes_rng(kind: type[Scheduler]) -> bool:
    """Return whether `schedule` wants the generator alone, as in hflray 0.1."""
    return list(inspect.signature(kind.schedule).parameters)[1:2] == ["rng"]


def scheduler_class(name: str) -> type[Scheduler]:
    """Return the class of a scheduler; see `build_scheduler`. Raises ConfigError: it is no class of schedulers."""
    made = registry.resolve("scheduler", name)
    if not (isinstance(made, type) and issubclass(made, Scheduler)):
        raise ConfigError(
            f"scheduling.name: {spoken(name)} does not extend hflray.scheduling.Scheduler, which every scheduler does; "
            f"write it as in: class {short(name)}(Scheduler)"
        )
    return made


def build_scheduler(name: str, **options: Any) -> Scheduler:
    """Build the scheduler registered as `name`.

    Args:
        name: a built-in name, such as ``ikc``, one added through the entry point group ``hflray.schedulers``, or a
            reference such as ``mine.py:Mine``.
        **options: ``num_devices`` (N), ``num_scheduled`` (H), ``clusters`` (see `Scheduler`), and further options of
            schedulers from other packages.

    Raises:
        ConfigError: the name or an option is unknown, or a value is outside what it accepts.

    Examples:
        >>> from hflray import build_scheduler
        >>> scheduler = build_scheduler("round_robin", num_devices=5, num_scheduled=2)
        >>> type(scheduler).__name__, scheduler.num_scheduled
        ('RoundRobin', 2)
    """
    made = registry.resolve("scheduler", name)
    if options.get("clusters") is None and "clusters" not in inspect.signature(made).parameters:
        options.pop("clusters", None)  # a class that knows no clusters need not name them
    scheduler: Scheduler = registry.build("scheduler", name, **options)
    return scheduler


def configured_scheduler(config: ExperimentConfig, clusters: ArrayLike | None) -> Scheduler:
    """Return the scheduler of a configuration; see `build_scheduler`.

    A class that chooses edges, and names a parameter ``coupling``, receives ``allocation.coupling``, so that it can
    minimise the objective of the round's allocation.
    """
    section, made = config.scheduling, scheduler_class(config.scheduling.name)
    options = dict(section.options)
    counts = {"num_devices": config.fleet.num_devices, "num_scheduled": section.num_scheduled}
    if hasattr(made, "schedule_and_assign") and "coupling" in inspect.signature(made).parameters:
        options.setdefault("coupling", config.allocation.coupling)
    return build_scheduler(section.name, **counts, clusters=clusters, **options)
