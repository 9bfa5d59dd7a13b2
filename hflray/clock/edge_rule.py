"""When an edge iteration ends: when all devices have arrived, or at a limit (``clock.edge``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from hflray.config.clock import EdgeClockConfig
from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray, IntArray


@dataclass(frozen=True)
class EdgeRule:
    """When an edge iteration ends; limits combine, and without any the edge waits for all of its devices.

    Attributes:
        deadline_s: seconds after its start.
        deadline: multiple of the edge's planned iteration.
        first: number of arrivals, or, as a float up to 1, their share of the edge's devices, rounded up.
    """

    deadline_s: float | None = None
    deadline: float | None = None
    first: int | float | None = None

    @classmethod
    def of(cls, config: EdgeClockConfig) -> Self:
        """Return the limits of a section."""
        return cls(config.deadline_s, config.deadline, config.first)

    def __post_init__(self) -> None:
        for name in ("deadline_s", "deadline"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name}: got {value}; a finite number above 0 is needed")
        if self.first is None:
            return
        if isinstance(self.first, int):
            if self.first < 1:
                raise ConfigError(f"first: got {self.first}; a number of arrivals of at least 1 is needed")
        elif not 0 < self.first <= 1:
            raise ConfigError(f"first: got {self.first}; a share of the devices above 0 and up to 1 is needed")

    def arrivals(self, devices: IntArray) -> IntArray:
        """Return how many arrivals end an iteration, (M,), for edges with so many assigned devices."""
        if self.first is None:
            return devices
        if isinstance(self.first, int):
            return np.minimum(self.first, devices)
        # Rounding must not turn a share of 0.1 of 30 devices into 4 of them.
        return np.asarray(np.ceil(self.first * devices - 1e-9), dtype=np.intp)

    def planned_s(self, edges: IntArray, delay_s: FloatArray, num_edges: int) -> FloatArray:
        """Return how long an edge iteration takes as planned, limits included, (M,), s; 0 without devices.

        Args:
            edges: the edge of each scheduled device, (H,).
            delay_s: planned seconds of each in an edge iteration, (H,).
            num_edges: M.
        """
        slowest_s = np.zeros(num_edges)
        np.maximum.at(slowest_s, edges, delay_s)
        limit_s = math.inf if self.deadline_s is None else self.deadline_s
        planned_s = np.minimum(
            slowest_s, limit_s if self.deadline is None else np.minimum(limit_s, self.deadline * slowest_s)
        )
        if self.first is None:
            return planned_s
        needed = self.arrivals(np.bincount(edges, minlength=num_edges))
        return np.asarray(np.minimum(planned_s, nth_arrival_s(edges, delay_s, needed)))


def nth_arrival_s(edges: IntArray, arrival_s: FloatArray, needed: IntArray) -> FloatArray:
    """Return when the arrival number `needed` (M,) of each edge happens, (M,), s; infinity where fewer arrive."""
    order = np.lexsort((arrival_s, edges))
    ordered = edges[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    nth = rank == needed[ordered] - 1
    nth_s = np.full(len(needed), np.inf)
    nth_s[ordered[nth]] = arrival_s[order[nth]]
    return nth_s
