"""The physical system as arrays over N devices and M edges, and how one is drawn (Table I, paper section VI)."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.config import FleetConfig
from hflray.errors import ConfigError

__all__ = ["Fleet", "FleetConfig", "path_gain", "sample_fleet"]

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fleet:
    """N devices, M edges and one cloud. All arrays are float64 and read-only.

    Attributes:
        position_m: device positions in the square, (N, 2), m.
        edge_position_m: edge positions, (M, 2), m; the cloud is in the middle of the square.
        distance_m: device to edge, clamped from below, (N, M), m.
        gain: linear power gain ḡ_n^m of each link, (N, M).
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
    """

    position_m: FloatArray
    edge_position_m: FloatArray
    distance_m: FloatArray
    gain: FloatArray
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

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                # A copy: freezing the caller's own array would be a surprise, and a view would not stay frozen.
                value = np.array(value, dtype=np.float64, order="C")
                value.flags.writeable = False
                object.__setattr__(self, field.name, value)

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
        return replace(self, **chosen)

    def with_samples(self, samples: ArrayLike) -> Fleet:
        """Return the same fleet holding `samples` (N,): an experiment's D_n are its partition's sizes."""
        array = np.array(samples, dtype=np.float64)
        if array.shape != (self.num_devices,):
            raise ConfigError(f"samples: got shape {array.shape}, expected ({self.num_devices},), one size a device")
        return replace(self, samples=array)


_PER_DEVICE = ("position_m", "distance_m", "gain", "cycles_per_sample", "samples", "power_w", "max_cpu_hz")


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


def sample_fleet(config: FleetConfig, rng: np.random.Generator) -> Fleet:
    """Draw a fleet: positions, links, and Table I's uniform ranges (transmit power uniform in dBm).

    Args:
        config: ranges and counts.
        rng: the only source of randomness.
    """
    n, m = config.num_devices, config.num_edges
    position_m = rng.uniform(0.0, config.area_m, (n, 2))
    edge_position_m = rng.uniform(0.0, config.area_m, (m, 2))
    distance_m = np.linalg.norm(position_m[:, None] - edge_position_m[None], axis=-1)
    cloud_distance_m = np.linalg.norm(edge_position_m - config.area_m / 2, axis=-1)
    return Fleet(
        position_m=position_m,
        edge_position_m=edge_position_m,
        distance_m=np.maximum(distance_m, config.min_distance_m),
        gain=path_gain(distance_m, config, rng.normal(0.0, config.shadowing_db, (n, m))),
        cloud_gain=path_gain(cloud_distance_m, config, rng.normal(0.0, config.shadowing_db, m)),
        cycles_per_sample=rng.uniform(*config.cycles_per_sample, n),
        samples=rng.integers(config.samples[0], config.samples[1], n, endpoint=True).astype(np.float64),
        power_w=10.0 ** (rng.uniform(*config.power_dbm, n) / 10.0) * 1e-3,
        max_cpu_hz=rng.uniform(*config.max_cpu_hz_range, n),
        edge_power_w=np.full(m, config.edge_power_w),
        edge_bandwidth_hz=rng.uniform(*config.edge_bandwidth_hz_range, m),
        cloud_bandwidth_hz=config.cloud_bandwidth_hz,
        noise_w_per_hz=config.noise_w_per_hz,
        capacitance=config.capacitance,
    )
