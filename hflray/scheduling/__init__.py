"""Choice of the H devices of each round: FedAvg, VKC (Algorithm 3) and IKC (Algorithm 4) on Algorithm 2's clusters."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray import registry
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.scheduling.base import ClusterScheduler, Scheduler
from hflray.scheduling.clustering import cluster_devices, clustering_cost
from hflray.scheduling.context import DeviceHistory, RoundContext
from hflray.scheduling.poll import Poll
from hflray.support.arrays import IntArray
from hflray.support.references import short, spoken

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


def choose_devices(scheduler: Scheduler, context: RoundContext) -> IntArray:
    """Return the devices that a scheduler chooses.

    Raises:
        ConfigError: it chose another number of devices than min(H, available), or a device twice, or one that does not
            exist or is not available.
    """
    devices = np.asarray(scheduler.schedule(context.rng if _takes_rng(type(scheduler)) else context))
    _check_devices(devices, "schedule", scheduler, context)
    return np.sort(devices).astype(np.intp)


def choose_devices_and_edges(scheduler: Scheduler, context: RoundContext) -> tuple[IntArray, IntArray | None]:
    """Return the devices that a scheduler chooses, and their edges if it has a method ``schedule_and_assign``.

    Raises:
        ConfigError: the devices are wrong, see `choose_devices`, or an edge does not exist or is down.
    """
    choose = getattr(scheduler, "schedule_and_assign", None)
    if choose is None:
        return choose_devices(scheduler, context), None
    devices, edges = map(np.asarray, choose(context))
    _check_devices(devices, "schedule_and_assign", scheduler, context)
    up = np.flatnonzero(context.edges_up)
    if edges.shape != devices.shape or not np.isin(edges, up).all():
        wrong = edges[~np.isin(edges, up)]
        reason = f"edge {wrong[0]}" if wrong.size else f"edges of shape {edges.shape}"
        raise ConfigError(
            f"scheduling.name: {type(scheduler).__name__} returned {reason} in round {context.round}; accepted: for "
            f"each of {len(devices)} devices one of the edges {', '.join(map(str, up))}; mend its method "
            "schedule_and_assign"
        )
    order = np.argsort(devices)
    return devices[order].astype(np.intp), edges[order].astype(np.intp)


def _check_devices(devices: NDArray[Any], method: str, scheduler: Scheduler, context: RoundContext) -> None:
    """Raise ConfigError if the devices that a scheduler's method returned are wrong; see `choose_devices`."""
    name, available = type(scheduler).__name__, context.available
    expected = min(scheduler.num_scheduled, int(available.sum()))
    if devices.ndim != 1 or (devices.size and devices.dtype.kind not in "iu") or len(devices) != expected:
        raise ConfigError(
            f"scheduling.name: {name} returned {devices.dtype} of shape {devices.shape} in round {context.round}; "
            f"accepted: {expected} indices of devices; mend its method {method}"
        )
    in_fleet = (devices >= 0) & (devices < len(available))
    refused = devices[~(in_fleet & available[np.where(in_fleet, devices, 0)])]
    if refused.size or len(np.unique(devices)) != len(devices):
        reason = f"device {refused[0]}, which is not available" if refused.size else "a device twice"
        raise ConfigError(
            f"scheduling.name: {name} chose {reason}, in round {context.round}; accepted: {expected} different devices "
            f"of those that are available; mend its method {method}"
        )


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
