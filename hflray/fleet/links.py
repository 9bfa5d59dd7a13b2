"""The links of a fleet that is too large for matrices, and path loss.

Such a fleet holds positions, and its links are computed on demand. The shadowing of a link is a function of the fleet's
key, the device and the edge, so that it has the same gain in every request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from hflray.config import FleetConfig
from hflray.errors import ConfigError
from hflray.seeding import random_bits
from hflray.support.arrays import FloatArray, IntArray

DENSE_LINKS = 5_000_000  # largest N·M for which a fleet holds the two matrices, of 40 MB each
BOUND_BITS = 12  # bits of a link's random number that bound its shadowing when strongest edges are searched
GROUPS = 64  # least number of groups of edges there, of which only the best edges are sorted


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a fleet that is too large for matrices. They are read-only by convention.

    Attributes:
        config: path loss, shadowing's standard deviation and the smallest distance.
        key: 64 random bits, drawn once for the fleet.
        number: each device's index when the fleet was drawn, (N,), so that fleets made by `Fleet.take` keep their
            links.
        edge_number: each edge's index when the fleet was drawn, (M,), so that fleets made by `Fleet.take_edges` keep
            their links.
        position_m, edge_position_m: positions of devices (N, 2) and edges (M, 2), m; see `Fleet`.
        factor: returns a factor on the gain of links, for the numbers of devices and edges; None: 1.
        shadowing: returns the shadowing of links in units of its standard deviation, for the numbers of devices and
            edges and the devices' positions; None: that of `standard_normal`.
    """

    config: FleetConfig
    key: int
    number: IntArray
    edge_number: IntArray
    position_m: FloatArray | Indexed
    edge_position_m: FloatArray
    factor: Callable[[IntArray, IntArray], FloatArray] | None = None
    shadowing: Callable[[IntArray, IntArray, FloatArray], FloatArray] | None = None

    def distance_m(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Return the distances of links, clamped from below, m, for indices of any shapes that broadcast."""
        offset_m = self.position_m[np.asarray(devices)] - self.edge_position_m[np.asarray(edges)]
        true_m = np.hypot(offset_m[..., 0], offset_m[..., 1])
        return np.asarray(np.maximum(true_m, self.config.min_distance_m), dtype=np.float64)

    def gain(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Return the linear power gains of links, for indices of any shapes that broadcast."""
        numbers = self.number[np.asarray(devices)], self.edge_number[np.asarray(edges)]
        if self.shadowing is None:
            normal = standard_normal(self.key, *numbers)
        else:
            normal = self.shadowing(*numbers, self.position_m[np.asarray(devices)])
        gain = path_gain(self.distance_m(devices, edges), self.config, self.config.shadowing_db * normal)
        return gain if self.factor is None else gain * self.factor(*numbers)

    def strongest(self, devices: IntArray, count: int) -> IntArray:
        """Return the `count` edges of largest gain of each of `devices`, (n,), strongest first, (n, count).

        Gain falls with ``d² 10^(2 σ z / slope)`` for distance d and shadowing σz. The first bits of the random number
        from which z is computed bound z, so that only the gains of a few edges have to be computed.
        """
        devices_first, config = devices[:, None], self.config
        if self.shadowing is not None or self.factor is not None or config.path_loss_slope_db <= 0:
            return first(-self.gain(devices_first, np.arange(len(self.edge_number))), count)
        x, y = (np.subtract.outer(self.position_m[devices][:, i], self.edge_position_m[:, i]) for i in (0, 1))
        square = np.maximum(np.square(x, out=x) + np.square(y, out=y), config.min_distance_m**2)
        bits = random_bits(self.key, self.number[devices_first], self.edge_number)
        interval = (bits >> np.uint64(64 - BOUND_BITS)).astype(np.intp)
        factor = _shadowing_bounds(2 * config.shadowing_db / config.path_loss_slope_db)
        # The best edges of `count` groups are `count` edges, so their bounds are bounds for the `count` strongest.
        most = square * factor[interval + 1]
        groups = max(GROUPS, 4 * count)
        if (size := most.shape[1] // groups) > 1:
            most = most[:, : size * groups].reshape(len(devices), size, groups).min(axis=1)
        most = np.partition(most, count - 1, axis=1)[:, count - 1 : count]
        rows, columns = np.nonzero(square * factor[interval] <= most * (1 + 1e-9))
        counts = np.bincount(rows, minlength=len(devices))
        place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        weakness = np.full((len(devices), counts.max()), np.inf)
        edges = np.zeros(weakness.shape, dtype=np.intp)
        weakness[rows, place], edges[rows, place] = -self.gain(devices[rows], columns), columns
        return np.asarray(np.take_along_axis(edges, first(weakness, count), axis=1), dtype=np.intp)


class Indexed(Protocol):
    """Positions of devices, (N, 2), m, that are computed when they are indexed."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, 2)."""

    def __getitem__(self, index: Any) -> FloatArray:
        """Return the positions of some devices."""

    def __array__(self, dtype: Any = None, copy: Any = None) -> FloatArray:
        """Return the positions of all devices."""


class LinkArray:
    """A lazy (N, M) matrix of links, which is indexed like an array and computes only the indexed links.

    ``array[devices]`` returns rows (…, M) and ``array[devices, edges]`` links. A request for more than `DENSE_LINKS`
    values is a ConfigError.
    """

    def __init__(self, shape: tuple[int, int], compute: Callable[[ArrayLike, ArrayLike], FloatArray]) -> None:
        self.shape, self._compute = shape, compute

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: object) -> FloatArray:
        rows, columns = index if isinstance(index, tuple) else (index, slice(None))
        if isinstance(rows, slice):
            rows = np.arange(self.shape[0])[rows]
            if not isinstance(columns, slice):
                rows = rows.reshape(-1, *(1 for _ in np.shape(columns)))
        if isinstance(columns, slice):
            rows, columns = np.asarray(rows)[..., None], np.arange(self.shape[1])[columns]
        size = np.broadcast(np.asarray(rows), np.asarray(columns)).size
        if size > DENSE_LINKS:
            raise ConfigError(
                f"links: {size:,} requested at once of a fleet of {self.shape[0]:,} devices and {self.shape[1]:,} "
                f"edges; accepted: {DENSE_LINKS:,}; request only the devices and edges that are needed"
            )
        return self._compute(rows, columns)

    def __array__(self, dtype: object = None, copy: object = None) -> FloatArray:
        return self[:]


def standard_normal(key: int, devices: IntArray, edges: IntArray) -> FloatArray:
    """Return a standard normal number for each link, which is a function of `key`, device and edge only.

    The number is the normal quantile of the upper 53 bits of `hflray.seeding.random_bits`.
    """
    from scipy.special import ndtri  # importing it takes 0.4 s, which only large fleets need

    upper = random_bits(key, devices, edges) >> np.uint64(11)
    return np.asarray(ndtri((upper + 0.5) * 2.0**-53), dtype=np.float64)


@lru_cache(maxsize=8)
def _shadowing_bounds(scale: float) -> FloatArray:
    """Return the bounds of ``10^(scale z)`` for numbers z with the same first `BOUND_BITS` random bits, in order."""
    from scipy.special import ndtri

    quantiles = ndtri(np.arange(2**BOUND_BITS + 1) / 2**BOUND_BITS)
    return np.asarray(10.0 ** (scale * quantiles) if scale else np.ones_like(quantiles), dtype=np.float64)


def first(values: FloatArray, count: int) -> IntArray:
    """Return the columns of the `count` smallest values of each row, in order; ties go to the lower column."""
    if count == 1:
        return np.asarray(values.argmin(axis=1)[:, None], dtype=np.intp)
    if count < values.shape[1] // 4:
        columns = np.sort(np.argpartition(values, count, axis=1)[:, : count + 1], axis=1)
        last = np.take_along_axis(values, columns, axis=1).max(axis=1)
        if ((values <= last[:, None]).sum(axis=1) > count + 1).any():  # a partition takes any of equal values
            return np.asarray(np.argsort(values, axis=1, kind="stable")[:, :count], dtype=np.intp)
        order = np.argsort(np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")[:, :count]
        return np.asarray(np.take_along_axis(columns, order, axis=1), dtype=np.intp)
    return np.asarray(np.argsort(values, axis=1, kind="stable")[:, :count], dtype=np.intp)


def on_demand(links: Links) -> dict[str, Any]:
    """Return the fields of a fleet that computes its links when they are indexed."""
    shape = len(links.number), len(links.edge_position_m)
    return {
        "links": links,
        "distance_m": LinkArray(shape, links.distance_m),
        "gain": LinkArray(shape, links.gain),
    }


def path_gain(distance_m: FloatArray, config: FleetConfig, shadowing_db: FloatArray | float = 0.0) -> FloatArray:
    """Return the linear power gain 10^(-dB/10) of path loss ``128.1 + 37.6 log10 d[km]`` dB plus shadowing.

    Args:
        distance_m: distances of any shape, m; they are clamped to at least ``config.min_distance_m``.
        config: path loss at 1 km and its slope.
        shadowing_db: shadowing that is added to the loss, dB, broadcast against `distance_m`.
    """
    distance_km = np.maximum(distance_m, config.min_distance_m) / 1e3
    loss_db = config.path_loss_db + config.path_loss_slope_db * np.log10(distance_km) + shadowing_db
    return np.asarray(10.0 ** (-loss_db / 10.0), dtype=np.float64)
