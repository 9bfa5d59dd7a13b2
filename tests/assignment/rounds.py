"""Rounds, bills and neighbouring assignments that the tests of the assigners share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.state import NOWHERE
from hflray.cost import Workload, round_cost
from hflray.fleet import Fleet, FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def random_round(
    seed: int, num_devices: int = 100, num_edges: int = 5, scheduled: int = 50, dense: bool | None = None
) -> tuple[Fleet, np.ndarray]:
    """Return a fleet drawn as in the paper's Table I, and scheduled devices, sorted."""
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=num_devices, num_edges=num_edges, dense=dense), rng)
    return fleet, np.sort(rng.choice(num_devices, scheduled, replace=False))


def objective(fleet: Fleet, devices: Any, edges: Any, work: Workload = WORK, coupling: Any = "per_edge") -> float:
    """Return what a round is billed with the exact allocation, J; devices at `NOWHERE` are not scheduled."""
    devices, edges = np.asarray(devices), np.asarray(edges)
    devices, edges = devices[edges != NOWHERE], edges[edges != NOWHERE]
    allocation = allocate_round(fleet, work, devices, edges, coupling=coupling)
    return round_cost(fleet, work, devices, edges, allocation).objective


def assign(name: str, fleet: Fleet, devices: Any, seed: int = 0, work: Workload = WORK, **options: Any) -> np.ndarray:
    """Return the edges that a new assigner gives the devices."""
    return build_assigner(name, **options).assign(fleet, work, devices, np.random.default_rng(seed))


def neighbours(edges: np.ndarray, num_edges: int) -> Iterator[tuple[tuple[int, int, int], np.ndarray]]:
    """Yield every transfer and exchange as a move (see `hflray.assignment.state`), and the assignment after it."""
    for a, m in enumerate(edges.tolist()):
        for k in range(num_edges):
            if k != m:
                yield (a, a, k), np.where(np.arange(len(edges)) == a, k, edges)
        for b in range(a + 1, len(edges)):
            if edges[b] != m:
                moved = edges.copy()
                moved[[a, b]] = edges[[b, a]]
                yield (a, b, int(edges[b])), moved
