"""Choice of the H devices of each round: FedAvg, VKC (Algorithm 3) and IKC (Algorithm 4) on Algorithm 2's clusters."""

from __future__ import annotations

from typing import Any

from hflray import registry
from hflray.scheduling.base import ClusterScheduler, Scheduler
from hflray.scheduling.clustering import cluster_devices, clustering_cost

__all__ = ["ClusterScheduler", "Scheduler", "build_scheduler", "cluster_devices", "clustering_cost"]


def build_scheduler(name: str, **options: Any) -> Scheduler:
    """Build the scheduler registered as `name`.

    Args:
        name: ``ikc``, ``vkc``, ``fedavg``, or a name added through the entry point group ``hflray.schedulers``.
        **options: ``num_devices`` (N), ``num_scheduled`` (H), ``clusters`` (see `Scheduler`), and further options of
            schedulers from other packages.

    Raises:
        ConfigError: the name or an option is unknown, or a value is outside what it accepts.
    """
    scheduler: Scheduler = registry.build("scheduler", name, **options)
    return scheduler
