"""The number of hosts that train devices, and which host takes which device, longest first. No Ray, no torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.config import TrainingConfig


def balance(load: NDArray[np.integer], hosts: int) -> NDArray[np.intp]:
    """Deal items to hosts, longest first, each to the least loaded host; return the host of each item, (H,).

    The lower index wins ties.
    """
    total = np.zeros(hosts, dtype=np.int64)
    host = np.empty(len(load), dtype=np.intp)
    for item in np.argsort(-load, kind="stable"):
        host[item] = total.argmin()
        total[host[item]] += load[item]
    return host


class PoolSize(NamedTuple):
    """How many device actors to start, and the CPUs and GPUs that each reserves."""

    actors: int
    cpus: float
    gpus: float = 0.0


def pool_size(config: TrainingConfig, num_scheduled: int, cpus: int, gpus: float = 0.0) -> PoolSize:
    """Return the size of the pool.

    There is one actor per GPU or per CPU (or per `threads` CPUs) unless `num_actors` or `devices_per_actor` says
    otherwise, and never more actors than scheduled devices. If there are more actors than CPUs, each reserves a part of
    a CPU; otherwise some would never start.

    Args:
        config: the training section.
        num_scheduled: H.
        cpus: CPUs available to the pool.
        gpus: GPUs available to the pool; a value below 1 is a part of one GPU. If it is above 0, GPUs instead of CPUs
            set the number of actors, and each actor uses one GPU or a part of it.
    """
    threads = config.threads or 1
    if config.devices_per_actor is not None:
        target = math.ceil(num_scheduled / config.devices_per_actor)
    else:
        target = config.num_actors or max(1, int(gpus) if gpus else cpus // threads)
    actors = min(target, num_scheduled)
    cpus_each = float(threads) if actors * threads <= cpus else _rounded_down(cpus / actors)
    # Every whole GPU is shared by the same number of actors: 3 actors with 2/3 each would not fit on 2 cards.
    share = gpus / actors if gpus < 1 else 1 / math.ceil(actors / gpus)
    return PoolSize(actors, cpus_each, _rounded_down(share) if gpus else 0.0)


def _rounded_down(amount: float) -> float:
    """Round down to a multiple of 1e-4, Ray's resolution, so that the sum does not exceed the available amount."""
    return math.floor(amount * 1e4 + 1e-6) / 1e4
