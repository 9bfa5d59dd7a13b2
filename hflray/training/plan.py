"""The plan of a round, which deals devices to hosts, longest first, and the number of hosts. No Ray, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hflray.aggregation.fixed_point import fraction_bits
from hflray.config import TrainingConfig


@dataclass(frozen=True)
class IterationPlan:
    """Which host trains which devices in an edge iteration.

    Attributes:
        edge_weights: the weight of each edge that has devices, by edge: the samples of its devices, or their number.
        shares: for each host, the devices that it trains, by edge.
    """

    edge_weights: dict[int, int]
    shares: list[dict[int, tuple[int, ...]]]


@dataclass(frozen=True)
class RoundPlan:
    """The edge iterations of a round.

    Attributes:
        fraction_bits: binary places of the fixed-point sums; they follow from all scheduled devices.
        iterations: the plan of each of the Q edge iterations.
    """

    fraction_bits: int
    iterations: tuple[IterationPlan, ...]

    def leaving(self, index: int, edge: int, devices: Sequence[int]) -> tuple[int, ...]:
        """Return those of an edge's `devices` for which the edge iteration `index` is their last one."""
        if index + 1 == len(self.iterations):
            return tuple(devices)
        later = {d for it in self.iterations[index + 1 :] for share in it.shares for d in share.get(edge, ())}
        return tuple(device for device in devices if device not in later)


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


def plan_round(
    samples: NDArray[np.int64],
    devices: NDArray[np.intp],
    assignment: NDArray[np.intp],
    hosts: int,
    participates: NDArray[np.bool_],
    weights: NDArray[np.int64] | None = None,
    host: NDArray[np.intp] | None = None,
) -> RoundPlan:
    """Split a round's devices over hosts.

    Args:
        samples: D_n of all devices, (N,).
        devices: the scheduled devices, (H,).
        assignment: the edge of each scheduled device, (H,).
        hosts: number of hosts.
        participates: whether a device takes part in an edge iteration, (Q, H); see `hflray.timeline`.
        weights: the weight of each device's model, (N,); None: its samples.
        host: the host of each scheduled device, (H,); None: they are dealt here.
    """
    load = samples[devices]
    weight = load if weights is None else weights[devices]
    host = balance(load, hosts) if host is None else host
    iterations: list[IterationPlan] = []
    for q, present in enumerate(participates):
        if q and (present == participates[q - 1]).all():
            iterations.append(iterations[-1])
            continue
        shares: list[dict[int, tuple[int, ...]]] = []
        for h in range(hosts):
            on_host = present & (host == h)
            edges = np.unique(assignment[on_host])
            shares.append({int(m): tuple(devices[on_host & (assignment == m)].tolist()) for m in edges})
        edges = np.unique(assignment[present])
        edge_weights = {int(m): int(weight[present & (assignment == m)].sum()) for m in edges}
        iterations.append(IterationPlan(edge_weights, shares))
    return RoundPlan(fraction_bits(int(weight.sum())), tuple(iterations))


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
