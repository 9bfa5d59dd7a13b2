"""The physical system as arrays over N devices and M edges, and its random draw (Table I, paper section VI).

A fleet of up to `DENSE_LINKS` links holds all distances and gains as (N, M) matrices. A larger fleet holds positions,
and computes links on demand (`Links`). Its shadowing is a function of the fleet's key, the device and the edge, so that
a link has the same gain in every request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.config import FleetConfig
from hflray.errors import ConfigError
from hflray.seeding import stream
from hflray.support.arrays import FloatArray, IntArray

__all__ = ["Fleet", "FleetConfig", "LinkArray", "Links", "path_gain", "sample_fleet"]


DENSE_LINKS = 5_000_000  # largest N·M for which a fleet holds the two matrices, of 40 MB each
MOVING_LINKS = 2_000  # largest N·M for which all links of moving devices are computed in each round
BOUND_BITS = 12  # bits of a link's random number that bound its shadowing when strongest edges are searched
GROUPS = 64  # least number of groups of edges there, of which only the best edges are sorted
AT_ONCE = 200_000  # links per step when all edges of many devices are computed, so that a step fits in the CPU's cache


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
            return _first(-self.gain(devices_first, np.arange(len(self.edge_number))), count)
        x, y = (np.subtract.outer(self.position_m[devices][:, i], self.edge_position_m[:, i]) for i in (0, 1))
        square = np.maximum(np.square(x, out=x) + np.square(y, out=y), config.min_distance_m**2)
        bits = _mixed_bits(self.key, self.number[devices_first], self.edge_number)
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
        return np.asarray(np.take_along_axis(edges, _first(weakness, count), axis=1), dtype=np.intp)


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

    The number is the normal quantile of the upper 53 bits of a counter, mixed twice by SplitMix64 (Steele, Lea, Flood:
    "Fast Splittable Pseudorandom Number Generators", 2014).
    """
    from scipy.special import ndtri  # importing it takes 0.4 s, which only large fleets need

    bits = _mixed_bits(key, devices, edges)
    normal = ndtri(((bits >> np.uint64(11)) + 0.5) * 2.0**-53)
    return np.asarray(normal.reshape(np.broadcast_shapes(np.shape(devices), np.shape(edges))), dtype=np.float64)


@lru_cache(maxsize=8)
def _shadowing_bounds(scale: float) -> FloatArray:
    """Return the bounds of ``10^(scale z)`` for numbers z with the same first `BOUND_BITS` random bits, in order."""
    from scipy.special import ndtri

    quantiles = ndtri(np.arange(2**BOUND_BITS + 1) / 2**BOUND_BITS)
    return np.asarray(10.0 ** (scale * quantiles) if scale else np.ones_like(quantiles), dtype=np.float64)


def _mixed_bits(key: int, devices: IntArray, edges: IntArray) -> NDArray[np.uint64]:
    """Return 64 random bits for each link, of at least one dimension; see `standard_normal`."""
    golden, mask = np.uint64(0x9E3779B97F4A7C15), 0xFFFFFFFFFFFFFFFF

    def mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))

    # Use at least one dimension, because NumPy warns of overflows of scalars, and the overflow is intended.
    device, edge = (np.atleast_1d(index).astype(np.uint64) + np.uint64(1) for index in (devices, edges))
    # Mix the device's state alone first, so that the edges of neighbouring devices are not shifted copies.
    return mix(mix(device * golden + np.uint64(key & mask)) + edge * golden)


@dataclass(frozen=True, eq=False)
class Fleet:
    """N devices, M edges and one cloud. All arrays are float64 and read-only.

    Attributes:
        position_m: device positions in the square, (N, 2), m; in a large fleet that moves, what looks them up.
        edge_position_m: edge positions, (M, 2), m; the cloud is in the middle of the square.
        distance_m: distance from device to edge, clamped from below, (N, M), m; a `LinkArray` in a large fleet.
        gain: linear power gain ḡ_n^m of each link, (N, M); a `LinkArray` in a large fleet.
        cloud_gain: linear power gain of each edge's link to the cloud, (M,).
        cycles_per_sample: u_n, (N,), cycles.
        samples: D_n, (N,), samples.
        power_w: p_n, (N,), W.
        max_cpu_hz: f_n^max, (N,), Hz.
        edge_power_w: p^m, (M,), W.
        edge_bandwidth_hz: B_m, (M,), Hz.
        cloud_bandwidth_hz: B, the bandwidth of each edge's hop to the cloud, Hz.
        noise_w_per_hz: N_0, W/Hz.
        capacitance: the paper's α (the energy formula has the ½).
        links: data from which a large fleet computes its links; None if the fleet holds the matrices.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(0))
        >>> fleet.num_devices, fleet.num_edges, fleet.gain.shape
        (4, 2, (4, 2))
    """

    position_m: FloatArray | Indexed
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
                # Copy the array: the caller's own must stay writable, and a frozen view could change with its base.
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
        """The number of devices, N."""
        return len(self.samples)

    @property
    def num_edges(self) -> int:
        """The number of edges, M."""
        return len(self.edge_bandwidth_hz)

    def take(self, devices: ArrayLike) -> Fleet:
        """Return the fleet of these devices only (in this order), with all the edges.

        Raises:
            ConfigError: an index is not an integer, or not of this fleet.
        """
        index = np.asarray(devices)
        if index.ndim != 1 or (index.size and index.dtype.kind not in "iu"):  # a mask would be read as zeros and ones
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

    def take_edges(self, edges: ArrayLike) -> Fleet:
        """Return the fleet with these edges only (in this order); its links are those of the edges' own numbers.

        An assigner's answer for it counts the edges of the new fleet: ``edges[answer]`` are those of this one.
        """
        index = np.asarray(edges, dtype=np.intp)
        chosen = {name: getattr(self, name)[index] for name in (*_PER_EDGE, "edge_position_m")}
        if self.links is None:
            distance_m, gain = np.asarray(self.distance_m)[:, index], np.asarray(self.gain)[:, index]
            return replace(self, **chosen, distance_m=distance_m, gain=gain)
        links = replace(
            self.links, edge_number=self.links.edge_number[index], edge_position_m=chosen["edge_position_m"]
        )
        return replace(self, **chosen, **_on_demand(links))

    def moved(
        self,
        position_m: FloatArray | Indexed,
        config: FleetConfig,
        shadowing: Callable[[IntArray, IntArray, FloatArray], FloatArray],
    ) -> Fleet:
        """Return the fleet with its devices at other positions, (N, 2), m; it must be a whole fleet.

        `config` gives the path loss, and `shadowing` is that of `Links`. More than `MOVING_LINKS` links are computed on
        demand.
        """
        devices, edges = np.arange(self.num_devices), np.arange(self.num_edges)
        links = Links(config, 0, devices, edges, position_m, self.edge_position_m, shadowing=shadowing)
        if self.num_devices * self.num_edges > MOVING_LINKS:
            return replace(self, position_m=position_m, **_on_demand(links))
        distance_m, gain = links.distance_m(devices[:, None], edges), links.gain(devices[:, None], edges)
        return replace(self, position_m=position_m, distance_m=distance_m, gain=gain, links=None)

    def with_factor(self, factor: Callable[[IntArray, IntArray], FloatArray]) -> Fleet:
        """Return the fleet with the gain of each link times a factor.

        `factor` returns it for the numbers of devices and of edges, of shapes that broadcast. A fleet that holds its
        gains must be the whole one, in which these are the indices.
        """
        if self.links is not None:
            return replace(self, **_on_demand(replace(self.links, factor=factor)))
        devices, edges = np.arange(self.num_devices)[:, None], np.arange(self.num_edges)
        return replace(self, gain=np.asarray(self.gain) * factor(devices, edges))

    def gain_of(self, devices: ArrayLike, edges: ArrayLike) -> FloatArray:
        """Return the linear power gains ``gain[devices, edges]``, for indices of any shapes that broadcast."""
        return np.asarray(self.gain[np.asarray(devices), np.asarray(edges)])

    def nearest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """Return the `count` nearest edges of each device, nearest first, (n, count); ties go to the lower index.

        Distances are clamped, so two edges within the smallest distance are equally near.
        """
        index = np.asarray(devices, dtype=np.intp)
        if self.links is None:
            return _first(np.asarray(self.distance_m[index]), count)
        from scipy.spatial import cKDTree

        # Query a few more edges and sort again, because the tree ignores the clamp and the order of ties.
        candidates = min(self.num_edges, count + 4)
        edges = cKDTree(self.edge_position_m).query(self.position_m[index], k=np.arange(1, candidates + 1))[1]
        edges = np.sort(edges.reshape(len(index), candidates), axis=1)
        near = _first(self.links.distance_m(index[:, None], edges), count)
        return np.asarray(np.take_along_axis(edges, near, axis=1), dtype=np.intp)

    def strongest_edges(self, devices: ArrayLike, count: int = 1) -> IntArray:
        """Return the `count` edges of largest gain of each device, strongest first, (n, count).

        Ties go to the lower index. A large fleet looks at all links of a few devices at a time.
        """
        index = np.asarray(devices, dtype=np.intp)
        links = self.links
        if links is None:
            return _first(-np.asarray(self.gain[index]), count)
        edges = np.empty((len(index), count), dtype=np.intp)
        step = max(1, AT_ONCE // self.num_edges)

        def find(i: int) -> None:
            edges[i : i + step] = links.strongest(index[i : i + step], count)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:  # NumPy releases the interpreter lock
            for done in [pool.submit(find, i) for i in range(0, len(index), step)]:
                done.result()
        return edges

    def with_samples(self, samples: ArrayLike) -> Fleet:
        """Return the same fleet with `samples` (N,): an experiment's D_n are its partition's sizes."""
        array = np.array(samples, dtype=np.float64)
        if array.shape != (self.num_devices,):
            raise ConfigError(f"samples: got shape {array.shape}, expected ({self.num_devices},), one size a device")
        return replace(self, samples=array)


_PER_DEVICE = ("position_m", "cycles_per_sample", "samples", "power_w", "max_cpu_hz")
_PER_EDGE = ("cloud_gain", "edge_power_w", "edge_bandwidth_hz")


def _first(values: FloatArray, count: int) -> IntArray:
    """Return the columns of the `count` smallest values of each row, in order; ties go to the lower column."""
    if count == 1:
        return np.asarray(values.argmin(axis=1)[:, None], dtype=np.intp)
    if count < values.shape[1] // 4:
        columns = np.sort(np.argpartition(values, count, axis=1)[:, : count + 1], axis=1)
        order = np.argsort(np.take_along_axis(values, columns, axis=1), axis=1, kind="stable")[:, :count]
        return np.asarray(np.take_along_axis(columns, order, axis=1), dtype=np.intp)
    return np.asarray(np.argsort(values, axis=1, kind="stable")[:, :count], dtype=np.intp)


def _on_demand(links: Links) -> dict[str, Any]:
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


def _edge_bandwidth_hz(config: FleetConfig, rng: np.random.Generator) -> FloatArray:
    """Return B_m (M,), Hz; it is drawn even if it is fixed, so that later draws from `rng` do not change."""
    drawn = rng.uniform(*config.edge_bandwidth_hz_range, config.num_edges)
    fixed = config.edge_bandwidths_mhz
    if fixed is None:
        return drawn
    if len(fixed) != config.num_edges:  # possible in a copy that was not validated
        raise ConfigError(
            f"fleet.edge_bandwidths_mhz: {len(fixed)} values for num_edges = {config.num_edges}; accepted: one for "
            "each edge; correct the one or the other"
        )
    return np.array(fixed) * 1e6


def _power_w(config: FleetConfig, rng: np.random.Generator) -> FloatArray:
    """Return p_n (N,), W; both laws take equally many numbers from `rng`, so that later draws do not change."""
    if config.power_law == "watt":
        return rng.uniform(*config.power_w_range, config.num_devices)
    return np.asarray(10.0 ** (rng.uniform(*config.power_dbm, config.num_devices) / 10.0) * 1e-3)


def sample_fleet(config: FleetConfig, rng: np.random.Generator) -> Fleet:
    """Draw a fleet: positions, links, and Table I's uniform ranges.

    Args:
        config: ranges and counts; above `DENSE_LINKS` links, or with ``dense=False``, links are computed on demand.
            With a ``deployment_seed``, edge positions, the edges' cloud links and B_m are a function of that seed, M
            and their ranges, and `rng` draws the devices and their links only.
        rng: the only other source of randomness.

    Examples:
        >>> import numpy as np
        >>> from hflray import FleetConfig, sample_fleet
        >>> fleet = sample_fleet(FleetConfig(num_devices=3, num_edges=2, samples=500), np.random.default_rng(0))
        >>> fleet.samples.tolist()
        [500.0, 500.0, 500.0]
    """
    n, m = config.num_devices, config.num_edges
    edge_rng = rng if config.deployment_seed is None else stream(config.deployment_seed, "deployment")
    position_m = rng.uniform(0.0, config.area_m, (n, 2))
    edge_position_m = edge_rng.uniform(0.0, config.area_m, (m, 2))
    dense = n * m <= DENSE_LINKS if config.dense is None else config.dense
    if dense:
        distance_m = np.linalg.norm(position_m[:, None] - edge_position_m[None], axis=-1)
        link_fields: dict[str, Any] = {
            "distance_m": np.maximum(distance_m, config.min_distance_m),
            "gain": path_gain(distance_m, config, rng.normal(0.0, config.shadowing_db, (n, m))),
        }
    else:
        key = int(rng.integers(2**64, dtype=np.uint64))
        link_fields = _on_demand(Links(config, key, np.arange(n), np.arange(m), position_m, edge_position_m))
    cloud_distance_m = np.linalg.norm(edge_position_m - config.area_m / 2, axis=-1)
    fleet = Fleet(
        position_m=position_m,
        edge_position_m=edge_position_m,
        **link_fields,
        cloud_gain=path_gain(cloud_distance_m, config, edge_rng.normal(0.0, config.shadowing_db, m)),
        cycles_per_sample=rng.uniform(*config.cycles_per_sample, n),
        samples=rng.integers(config.samples[0], config.samples[1], n, endpoint=True).astype(np.float64),
        power_w=_power_w(config, rng),
        max_cpu_hz=rng.uniform(*config.max_cpu_hz_range, n),
        edge_power_w=np.full(m, config.edge_power_w),
        edge_bandwidth_hz=_edge_bandwidth_hz(config, edge_rng),
        cloud_bandwidth_hz=config.cloud_bandwidth_hz,
        noise_w_per_hz=config.noise_w_per_hz,
        capacitance=config.capacitance,
    )
    # They are drawn last, so that nothing else changes, and a larger share has all of a smaller one's.
    if not config.slow_share:
        return fleet
    max_cpu_hz = fleet.max_cpu_hz.copy()
    max_cpu_hz[rng.permutation(n)[: round(config.slow_share * n)]] /= config.slow_factor
    return replace(fleet, max_cpu_hz=max_cpu_hz)
