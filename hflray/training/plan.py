"""Who trains what: devices over hosts, longest first, and how many hosts there are. No Ray, no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.config import TrainingConfig
from hflray.training.aggregate import fraction_bits


@dataclass(frozen=True)
class RoundPlan:
    """Who trains what in a round.

    Attributes:
        fraction_bits: of the fixed-point sums.
        edge_samples: samples at each edge that has devices, by edge.
        shares: for each host, the devices it trains, by edge.
    """

    fraction_bits: int
    edge_samples: dict[int, int]
    shares: list[dict[int, tuple[int, ...]]]


def balance(load: NDArray[np.integer], hosts: int) -> NDArray[np.intp]:
    """Give each item to a host, longest first to the least loaded; return the host of each, (H,). Ties by index."""
    total = np.zeros(hosts, dtype=np.int64)
    host = np.empty(len(load), dtype=np.intp)
    for item in np.argsort(-load, kind="stable"):
        host[item] = total.argmin()
        total[host[item]] += load[item]
    return host


def plan_round(
    samples: NDArray[np.int64], devices: NDArray[np.intp], assignment: NDArray[np.intp], hosts: int
) -> RoundPlan:
    """Split a round's devices over hosts. `samples` is D_n of all devices, (N,)."""
    load = samples[devices]
    host = balance(load, hosts)
    shares: list[dict[int, tuple[int, ...]]] = []
    for h in range(hosts):
        mine = host == h
        edges = np.unique(assignment[mine])
        shares.append({int(m): tuple(devices[mine & (assignment == m)].tolist()) for m in edges})
    return RoundPlan(
        fraction_bits=fraction_bits(int(load.sum())),
        edge_samples={int(m): int(load[assignment == m].sum()) for m in np.unique(assignment)},
        shares=shares,
    )


class PoolSize(NamedTuple):
    """How many device actors to start, and the CPUs and GPUs that each reserves."""

    actors: int
    cpus: float
    gpus: float = 0.0


def pool_size(config: TrainingConfig, num_scheduled: int, cpus: int, gpus: float = 0.0, per_gpu: int = 1) -> PoolSize:
    """Return the size of the pool.

    One actor per CPU (or per `threads` CPUs) unless `num_actors` or `devices_per_actor` says otherwise; never more
    than there are devices to train. More actors than CPUs share them, or they would wait for each other for ever.

    Args:
        config: of the training.
        num_scheduled: H.
        cpus: that there are for the pool.
        gpus: that there are for the pool; below 1, a part of one. With any, actors go by GPUs instead of CPUs; each
            uses one GPU or a part of it.
        per_gpu: actors on a whole GPU, as measured (`hflray.training.processes`).
    """
    threads = config.threads or 1
    if config.devices_per_actor is not None:
        wanted = math.ceil(num_scheduled / config.devices_per_actor)
    else:
        wanted = config.num_actors or max(1, int(per_gpu * gpus) if gpus else cpus // threads)
    actors = min(wanted, num_scheduled)
    each = float(threads) if actors * threads <= cpus else _rounded_down(cpus / actors)
    # Of whole GPUs, each is shared by as many: 3 actors of 2/3 would not fit on 2 cards.
    share = gpus / actors if gpus < 1 else 1 / math.ceil(actors / gpus)
    return PoolSize(actors, each, _rounded_down(share) if gpus else 0.0)


def _rounded_down(amount: float) -> float:
    """To what Ray counts in, steps of 1e-4; down, so that the sum stays within what there is."""
    return math.floor(amount * 1e4 + 1e-6) / 1e4
