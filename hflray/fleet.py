"""The physical system as arrays over N devices and M edges, and how one is drawn (Table I, paper section VI).

A fleet of up to `DENSE_LINKS` links holds the distance and gain of each as an (N, M) matrix. A larger one holds
positions, and computes links when they are asked for (`Links`): its shadowing is a function of the fleet's key, the
device and the edge, so that a link has the same gain whenever and with whatever else it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.spatial import cKDTree
from scipy.special import ndtri

from hflray.config import FleetConfig
from hflray.errors import ConfigError

__all__ = ["Fleet", "FleetConfig", "LinkArray", "Links", "path_gain", "sample_fleet"]

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

DENSE_LINKS = 5_000_000  # N·M up to which the matrices are kept: two of 40 MB
AT_ONCE = 200_000  # links computed at once where all edges of many devices are looked at: they stay in the cache


@dataclass(frozen=True, eq=False)
class Links:
    """The links of a fleet that is too large for matrices. Read-only by convention.

    Attributes:
        config: path loss, shadowing's standard deviation and the smallest distance.
        key: drawn once for the fleet, 64 bits.
        number: of each device when the fleet was drawn, (N,): a fleet taken from it keeps its links.
        position_m, edge_position_m: (N, 2) and (M, 2), m.
    """

    config: FleetConfig
    key: int
    number: IntArray
    position_m: FloatArray
    edge_position_m: FloatArray

    def distance_m(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Distance of the links, clamped from below, m; indices of any shapes that broadcast."""
        away = self.position_m[np.asarray(devices)] - self.edge_position_m[np.asarray(edges)]
        true = np.hypot(away[..., 0], away[..., 1])
        return np.asarray(np.maximum(true, self.config.min_distance_m), dtype=np.float64)

    def gain(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Linear power gain of the links; indices of any shapes that broadcast."""
        normal = standard_normal(self.key, self.number[np.asarray(devices)], np.asarray(edges))
        return path_gain(self.distance_m(devices, edges), self.config, self.config.shadowing_db * normal)


class LinkArray:
    """What stands in for an (N, M) matrix of links: indexed like one, it computes what is asked for.

    ``array[devices]`` gives rows (…, M) and ``array[devices, edges]`` links. To make all of it is refused above
    `DENSE_LINKS` values.
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
                f"links: {size:,} asked for at once, of a fleet of {self.shape[0]:,} devices and {self.shape[1]:,} "
                f"edges; accepted: {DENSE_LINKS:,}; ask for the devices and edges that are needed"
            )
        return self._compute(rows, columns)

    def __array__(self, dtype: object = None, copy: object = None) -> FloatArray:
        return self[:]


def standard_normal(key: int, devices: IntArray, edges: IntArray) -> FloatArray:
    """A standard normal number for each link, a function of `key`, device and edge only.

    SplitMix64 (Steele, Lea, Flood: "Fast Splittable Pseudorandom Number Generators", 2014) of a counter, twice, and
    the normal quantile of its upper 53 bits.
    """
    golden, mask = np.uint64(0x9E3779B97F4A7C15), 0xFFFFFFFFFFFFFFFF

    def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))

    # Of one dimension at least: a scalar would warn of the overflow that is meant.
    device, edge = (np.atleast_1d(index).astype(np.uint64) + np.uint64(1) for index in (devices, edges))
    # The device's state is mixed by itself first, so that edges of neighbouring devices are not shifted copies.
    bits = mix(mix(device * golden + np.uint64(key & mask)) + edge * golden)
    normal = ndtri(((bits >> np.uint64(11)) + 0.5) * 2.0**-53)
    return np.asarray(normal.reshape(np.broadcast_shapes(np.shape(devices), np.shape(edges))), dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Fleet:
    """N devices, M edges and one cloud. All arrays are float64 and read-only.

    Attributes:
        position_m: device positions in the square, (N, 2), m.
        edge_position_m: edge positions, (M, 2), m; the cloud is in the middle of the square.
        distance_m: device to edge, clamped from below, (N, M), m; of a large fleet computed on demand (`LinkArray`).
        gain: linear power gain ḡ_n^m of each link, (N, M); the same.
        cloud_gain: linear power gain of each edge's link to the cloud, (M,).
        cycles_per_sample: u_n, (N,), cycles.
        samples: D_n, (N,), samples.
        power_w: p_n, (N,), W.
        max_cpu_hz: f_n^max, (N,), Hz.
        edge_power_w: p^m, (M,), W.
        edge_bandwidth_hz: B_m, (M,), Hz.
        cloud_bandwidth_hz: B, given to each edge for its hop to the cloud, Hz.
        noise_w_per_hz: N_0, W/Hz.
        capacitance: the paper's α (the energy formula has the ½).
        links: what a large fleet computes its links from; None where the matrices are kept.
    """

    position_m: FloatArray
    edge_position_m: FloatArray
    distance_m: FloatArray | LinkArray
    gain: FloatArray | LinkArray
    cloud_gain: FloatArray
    cycles_per_sample: FloatArray
    samples: FloatArray
    power_w: FloatArray
    max_cpu_hz: FloatArray
    edge_power_w: FloatArray
    edge_bandwidth_hz: FloatArray
    cloud_bandwidth_hz: float
    noise_w_per_hz: float
    capacitance: float
    links: Links | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                # A copy: freezing the caller's own array would be a surprise, and a view would not stay frozen.
                value = np.array(value, dtype=np.float64, order="C")
                value.flags.writeable = False
                object.__setattr__(self, field.name, value)
        n, m = len(self.samples), len(self.edge_bandwidth_hz)
        expected: dict[str, tuple[int, ...]] = {}
        expected |= dict.fromkeys(_PER_DEVICE, (n,)) | dict.fromkeys(_PER_EDGE, (m,))
        expected |= {"position_m": (n, 2), "edge_position_m": (m, 2), "distance_m": (n, m), "gain": (n, m)}
        for name, shape in expected.items():
            got = getattr(self, name).shape
            if got != shape:
                least = min(len(got) and got[0], shape[0])
                raise ConfigError(
                    f"{name}[{least}]: got shape {got}, expected {shape} for {n} devices (the length of samples) and "
                    f"{m} edges (of edge_bandwidth_hz); the arrays must be of equal length"
                )

    @property
    def num_devices(self) -> int:
        """N."""
        return len(self.samples)

    @property
    def num_edges(self) -> int:
        """M."""
        return len(self.edge_bandwidth_hz)

    def take(self, devices: ArrayLike) -> Fleet:
        """Return the fleet of these devices only (in this order), with all the edges.

        Raises:
            ConfigError: an index is not an integer, or not of this fleet.
        """
        index = np.asarray(devices)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):  # a mask would pass for zeros and ones
            raise ConfigError(f"devices: got shape {index.shape} of {index.dtype}; a 1-D array of integers is needed")
        bad = np.flatnonzero((index < 0) | (index >= self.num_devices))
        if bad.size:
            raise ConfigError(
                f"devices[{bad[0]}]: device {index[bad[0]]} does not exist; accepted: 0 to {self.num_devices - 1}"
            )
        index = index.astype(np.intp)
        chosen = {name: getattr(self, name)[index] for name in _PER_DEVICE}
        if self.links is None or index.size * self.num_edges <= DENSE_LINKS:
            return replace(self, **chosen, distance_m=self.distance_m[index], gain=self.gain[index], links=None)
        links = replace(self.links, number=self.links.number[index], position_m=chosen["position_m"])
        return replace(self, **chosen, **_on_demand(links))

    def gain_of(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Linear power gain of links, ``gain[devices, edges]``; indices of any shapes that broadcast."""
        return np.asarray(self.gain[np.asarray(devices), np.asarray(edges)])

    def nearest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """The `count` nearest edges of each device, nearest first, (n, count); the lower index where two are equal.

        Positions alone decide: two edges within the smallest distance are as near as each other.
        """
        index = np.asarray(devices, dtype=np.intp)
        if self.links is None:
            return _first(np.asarray(self.distance_m[index]), count)
        # Some more than asked for, and sorted again: the tree knows neither the clamp nor the order of equals.
        more = min(self.num_edges, count + 4)
        found = cKDTree(self.edge_position_m).query(self.position_m[index], k=np.arange(1, more + 1))[1]
        found = np.sort(found.reshape(len(index), more), axis=1)
        near = _first(self.links.distance_m(index[:, None], found), count)
        return np.asarray(np.take_along_axis(found, near, axis=1), dtype=np.intp)

    def strongest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """The `count` edges of largest gain of each device, strongest first, (n, count); the lower index of equals.

        All links of the devices are looked at, a few devices at a time.
        """
        index = np.asarray(devices, dtype=np.intp)
        if self.links is None:
            return _first(-np.asarray(self.gain[index]), count)
        found = np.empty((len(index), count), dtype=np.intp)
        step = max(1, AT_ONCE // self.num_edges)

        def look(i: int) -> None:
            found[i : i + step] = _first(-np.asarray(self.gain[index[i : i + step]]), count)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy lets go of the interpreter lock
            for done in [pool.submit(look, i) for i in range(0, len(index), step)]:
                done.result()
        return found

    def with_samples(self, samples: ArrayLike) -> Fleet:
        """Return the same fleet holding `samples` (N,): an experiment's D_n are its partition's sizes."""
        array = np.array(samples, dtype=np.float64)
        if array.shape != (self.num_devices,):
            raise ConfigError(f"samples: got shape {array.shape}, expected ({self.num_devices},), one size a device")
        return replace(self, samples=array)


_PER_DEVICE = ("position_m", "cycles_per_sample", "samples", "power_w", "max_cpu_hz")
_PER_EDGE = ("cloud_gain", "edge_power_w", "edge_bandwidth_hz")


def _first(values: FloatArray, count: int) -> IntArray:
    """Columns of the `count` smallest of each row, in order; the lower column of equals."""
    if count == 1:
        return np.asarray(values.argmin(axis=1)[:, None], dtype=np.intp)
    if count < values.shape[1] // 4:
        some = np.sort(np.argpartition(values, count, axis=1)[:, : count + 1], axis=1)
        order = np.argsort(np.take_along_axis(values, some, axis=1), axis=1, kind="stable")[:, :count]
        return np.asarray(np.take_along_axis(some, order, axis=1), dtype=np.intp)
    return np.asarray(np.argsort(values, axis=1, kind="stable")[:, :count], dtype=np.intp)


def _on_demand(links: Links) -> dict[str, Any]:
    shape = len(links.number), len(links.edge_position_m)
    return {
        "links": links,
        "distance_m": LinkArray(shape, links.distance_m),
        "gain": LinkArray(shape, links.gain),
    }


def path_gain(distance_m: FloatArray, config: FleetConfig, shadowing_db: FloatArray | float = 0.0) -> FloatArray:
    """Linear power gain at a distance: path loss ``128.1 + 37.6 log10 d[km]`` dB plus shadowing, as 10^(-dB/10).

    Args:
        distance_m: any shape, m; clamped to ``config.min_distance_m``.
        config: holds the path loss at 1 km and its slope.
        shadowing_db: dB added to the loss, broadcast against `distance_m`.
    """
    distance_km = np.maximum(distance_m, config.min_distance_m) / 1e3
    loss_db = config.path_loss_db + config.path_loss_slope_db * np.log10(distance_km) + shadowing_db
    return np.asarray(10.0 ** (-loss_db / 10.0), dtype=np.float64)


def _edge_bandwidth_hz(config: FleetConfig, rng: np.random.Generator) -> FloatArray:
    """B_m (M,); drawn even if it is fixed, so that fixing it changes nothing else that `rng` gives."""
    drawn = rng.uniform(*config.edge_bandwidth_hz_range, config.num_edges)
    fixed = config.edge_bandwidths_mhz
    if fixed is None:
        return drawn
    if len(fixed) != config.num_edges:  # of a copy that was made without validation
        raise ConfigError(
            f"fleet.edge_bandwidths_mhz: {len(fixed)} values for num_edges = {config.num_edges}; accepted: one for "
            "each edge; correct the one or the other"
        )
    return np.array(fixed) * 1e6


def _power_w(config: FleetConfig, rng: np.random.Generator) -> FloatArray:
    """p_n (N,), W; both laws take as many numbers from `rng`, so that the rest of the fleet is the same."""
    if config.power_law == "watt":
        return rng.uniform(*config.power_w_range, config.num_devices)
    return np.asarray(10.0 ** (rng.uniform(*config.power_dbm, config.num_devices) / 10.0) * 1e-3)


def sample_fleet(config: FleetConfig, rng: np.random.Generator) -> Fleet:
    """Draw a fleet: positions, links, and Table I's uniform ranges.

    Args:
        config: ranges and counts; above `DENSE_LINKS` links, or with ``dense=False``, links are computed on demand.
        rng: the only source of randomness.
    """
    n, m = config.num_devices, config.num_edges
    position_m = rng.uniform(0.0, config.area_m, (n, 2))
    edge_position_m = rng.uniform(0.0, config.area_m, (m, 2))
    dense = n * m <= DENSE_LINKS if config.dense is None else config.dense
    if dense:
        distance_m = np.linalg.norm(position_m[:, None] - edge_position_m[None], axis=-1)
        link_fields: dict[str, Any] = {
            "distance_m": np.maximum(distance_m, config.min_distance_m),
            "gain": path_gain(distance_m, config, rng.normal(0.0, config.shadowing_db, (n, m))),
        }
    else:
        key = int(rng.integers(2**64, dtype=np.uint64))
        link_fields = _on_demand(Links(config, key, np.arange(n), position_m, edge_position_m))
    cloud_distance_m = np.linalg.norm(edge_position_m - config.area_m / 2, axis=-1)
    return Fleet(
        position_m=position_m,
        edge_position_m=edge_position_m,
        **link_fields,
        cloud_gain=path_gain(cloud_distance_m, config, rng.normal(0.0, config.shadowing_db, m)),
        cycles_per_sample=rng.uniform(*config.cycles_per_sample, n),
        samples=rng.integers(config.samples[0], config.samples[1], n, endpoint=True).astype(np.float64),
        power_w=_power_w(config, rng),
        max_cpu_hz=rng.uniform(*config.max_cpu_hz_range, n),
        edge_power_w=np.full(m, config.edge_power_w),
        edge_bandwidth_hz=_edge_bandwidth_hz(config, rng),
        cloud_bandwidth_hz=config.cloud_bandwidth_hz,
        noise_w_per_hz=config.noise_w_per_hz,
        capacitance=config.capacitance,
    )
