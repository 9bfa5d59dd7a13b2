"""The random draw of a fleet (Table I, paper section VI), of which some values may be given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hflray.config import FleetConfig, dbm_to_w
from hflray.errors import ConfigError
from hflray.fleet import links as link
from hflray.fleet.fleet import MEASURED, Fleet
from hflray.fleet.links import Links, on_demand, path_gain
from hflray.seeding import stream
from hflray.support.arrays import FloatArray

MOST_BITS_PER_HZ = 1000.0  # of a given rate, so that its gain is a finite number


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
    return complete(config, rng, {})


def complete(
    config: FleetConfig,
    rng: np.random.Generator,
    arrays: Mapping[str, FloatArray],
    **names: Any,
) -> Fleet:
    """Draw a fleet as `sample_fleet` does, and put what is given in the place of what was drawn.

    Nothing else changes, because as many numbers are drawn. A given link keeps its gain whatever the positions are.

    Args:
        config: see `sample_fleet`.
        rng: see `sample_fleet`.
        arrays: checked arrays as in `Fleet.of`, in which NaN stands for what is drawn.
        **names: ``device_names``, ``edge_names`` and ``edge_parents`` of `Fleet`.

    Raises:
        ConfigError: links are given for a fleet that is too large to hold them, or a rate is beyond any bandwidth.
    """

    def pick(name: str, drawn: FloatArray) -> FloatArray:
        return own_of(arrays[name], drawn) if name in arrays else drawn

    n, m = config.num_devices, config.num_edges
    edge_rng = rng if config.deployment_seed is None else stream(config.deployment_seed, "deployment")
    position_m = pick("position_m", rng.uniform(0.0, config.area_m, (n, 2)))
    edge_position_m = pick("edge_position_m", edge_rng.uniform(0.0, config.area_m, (m, 2)))
    dense = n * m <= link.DENSE_LINKS if config.dense is None else config.dense
    if dense:
        distance_m = np.linalg.norm(position_m[:, None] - edge_position_m[None], axis=-1)
        link_fields: dict[str, Any] = {
            "distance_m": np.maximum(distance_m, config.min_distance_m),
            "gain": pick("gain", path_gain(distance_m, config, rng.normal(0.0, config.shadowing_db, (n, m)))),
        }
    else:
        if fixed := next((name for name in ("gain", "rate_bps", "latency_s") if name in arrays), None):
            raise ConfigError(
                f"{fixed}: got links of {n:,} devices and {m:,} edges, which are not held in memory; accepted: up to "
                f"{link.DENSE_LINKS:,} links; leave them out, or set fleet.dense to true"
            )
        key = int(rng.integers(2**64, dtype=np.uint64))
        link_fields = on_demand(Links(config, key, np.arange(n), np.arange(m), position_m, edge_position_m))
    cloud_distance_m = np.linalg.norm(edge_position_m - config.area_m / 2, axis=-1)
    cloud_gain = pick("cloud_gain", path_gain(cloud_distance_m, config, edge_rng.normal(0.0, config.shadowing_db, m)))
    cycles_per_sample = pick("cycles_per_sample", rng.uniform(*config.cycles_per_sample, n))
    samples = pick("samples", rng.integers(config.samples[0], config.samples[1], n, endpoint=True).astype(np.float64))
    power_w = pick("power_w", _power_w(config, rng))
    max_cpu_hz = rng.uniform(config.max_cpu_ghz[0] * 1e9, config.max_cpu_ghz[1] * 1e9, n)
    edge_power_w = pick("edge_power_w", np.full(m, config.edge_power_w))
    edge_bandwidth_hz = pick("edge_bandwidth_hz", _edge_bandwidth_hz(config, edge_rng))
    # Slow devices are drawn last, so that nothing else changes, and a larger share has all of a smaller one's.
    if config.slow_share:
        max_cpu_hz[rng.permutation(n)[: round(config.slow_share * n)]] /= config.slow_factor
    max_cpu_hz = pick("max_cpu_hz", max_cpu_hz)
    measured: dict[str, Any] = {name: arrays.get(name) for name in (*MEASURED, "latency_s")}
    for name in ("fixed_s", "step_s", "latency_s"):
        if (array := measured[name]) is not None:
            measured[name] = np.nan_to_num(array)
    if "seconds_per_sample" in arrays:
        cycles_per_sample = own_of(arrays["seconds_per_sample"] * max_cpu_hz, cycles_per_sample)
        measured["seconds_per_sample"] = own_of(arrays["seconds_per_sample"], cycles_per_sample / max_cpu_hz)
    elif "cycles_per_sample" in arrays and {"fixed_s", "step_s"} & {*arrays}:  # else samples take nothing there
        measured["seconds_per_sample"] = cycles_per_sample / max_cpu_hz
    if "rate_bps" in arrays:
        gain = gain_of_rate(arrays["rate_bps"], edge_bandwidth_hz, power_w[:, None], config.noise_w_per_hz, "rate_bps")
        link_fields["gain"] = own_of(gain, link_fields["gain"])
    if "cloud_rate_bps" in arrays:
        hz = np.full(m, config.cloud_bandwidth_hz)
        gain = gain_of_rate(arrays["cloud_rate_bps"], hz, edge_power_w, config.noise_w_per_hz, "cloud_rate_bps")
        cloud_gain = own_of(gain, cloud_gain)
    return Fleet(
        position_m=position_m,
        edge_position_m=edge_position_m,
        **link_fields,
        cloud_gain=cloud_gain,
        cycles_per_sample=cycles_per_sample,
        samples=samples,
        power_w=power_w,
        max_cpu_hz=max_cpu_hz,
        edge_power_w=edge_power_w,
        edge_bandwidth_hz=edge_bandwidth_hz,
        cloud_bandwidth_hz=config.cloud_bandwidth_hz,
        noise_w_per_hz=config.noise_w_per_hz,
        capacitance=pick("capacitance", np.full(n, config.capacitance))
        if "capacitance" in arrays
        else config.capacitance,
        fixed_gain="gain" in arrays or "rate_bps" in arrays,
        has_rates="rate_bps" in arrays and bool(np.isfinite(arrays["rate_bps"]).all()),
        is_placed="position_m" in arrays,
        battery_j=arrays.get("battery_j"),
        **names,
        **measured,
    )


def own_of(arrays: FloatArray, drawn: FloatArray) -> FloatArray:
    """Return what is given, and what was drawn where it is NaN."""
    return np.where(np.isnan(arrays), drawn, arrays)


def gain_of_rate(
    rate_bps: FloatArray, bandwidth_hz: FloatArray, power_w: FloatArray, noise_w_per_hz: float, name: str
) -> FloatArray:
    """Return the gain with which a link of a bandwidth has a rate: equation (6) solved for ḡ, NaN for a rate of NaN.

    Raises:
        ConfigError: a rate is beyond `MOST_BITS_PER_HZ` times the bandwidth.
    """
    bits_per_hz = rate_bps / bandwidth_hz
    bad = np.argwhere(bits_per_hz > MOST_BITS_PER_HZ)
    if len(bad):
        at, shape = tuple(bad[0]), bits_per_hz.shape
        rate, width = (float(np.broadcast_to(values, shape)[at]) for values in (rate_bps, bandwidth_hz))
        raise ConfigError(
            f"{name}[{', '.join(map(str, at))}]: got {rate:g} bit/s, which no gain reaches with {width:g} Hz; lower "
            "the rate, or raise the bandwidth"
        )
    gain = np.expm1(bits_per_hz * np.log(2.0)) * noise_w_per_hz * bandwidth_hz / power_w
    return np.asarray(gain, dtype=np.float64)


def _edge_bandwidth_hz(config: FleetConfig, rng: np.random.Generator) -> FloatArray:
    """Return B_m (M,), Hz; it is drawn even if it is fixed, so that later draws from `rng` do not change."""
    low, high = config.edge_bandwidth_mhz
    drawn = rng.uniform(low * 1e6, high * 1e6, config.num_edges)
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
    low, high = config.power_dbm
    if config.power_law == "watt":
        return rng.uniform(dbm_to_w(low), dbm_to_w(high), config.num_devices)
    return np.asarray(10.0 ** (rng.uniform(low, high, config.num_devices) / 10.0) * 1e-3)
