"""A small fleet whose best choice is known by hand, and contexts of its rounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from hflray.cost import Workload
from hflray.fleet import Fleet
from hflray.scheduling import RoundContext

NEVER = np.nan


def fleet(gain: Any, samples: Any = 100.0, max_cpu_hz: Any = 1e9, cycles: Any = 1e4, power_w: Any = 0.1) -> Fleet:
    """Return a fleet with the gains (N, M); the other values are one number, or one for each device."""
    gain = np.asarray(gain, dtype=np.float64)
    count, edges = gain.shape

    def each(value: Any) -> np.ndarray:
        return np.broadcast_to(np.float64(value), count).copy()

    return Fleet(
        position_m=np.zeros((count, 2)),
        edge_position_m=np.zeros((edges, 2)),
        distance_m=np.ones((count, edges)),
        gain=gain,
        cloud_gain=np.full(edges, 1e-9),
        cycles_per_sample=each(cycles),
        samples=each(samples),
        power_w=each(power_w),
        max_cpu_hz=each(max_cpu_hz),
        edge_power_w=np.full(edges, 1.0),
        edge_bandwidth_hz=np.full(edges, 1e6),
        cloud_bandwidth_hz=1e7,
        noise_w_per_hz=1e-18,
        capacitance=2e-28,
    )


def context(toy: Fleet, index: int = 1, seed: int = 0, **more: Any) -> RoundContext:
    """Return the context of round `index`; `more` replaces its arrays."""
    count = toy.num_devices
    values: dict[str, Any] = {
        "available": np.ones(count, dtype=bool),
        "edges_up": np.ones(toy.num_edges, dtype=bool),
        "battery_j": np.full(count, np.inf),
        "class_counts": np.ones((count, 2), dtype=np.intp),
        "participation": np.zeros(count, dtype=np.intp),
        "last_round": np.zeros(count, dtype=np.intp),
        "last_loss": np.full(count, NEVER),
        "last_utility": np.full(count, NEVER),
        "last_delay_s": np.full(count, NEVER),
        "edge_of": np.full(count, -1),
        "record": None,
    }
    values |= {name: value if name in ("record", "poll") else np.asarray(value) for name, value in more.items()}
    rng = np.random.default_rng([seed, index])
    return RoundContext(round=index, clock_s=0.0, rng=rng, fleet=toy, work=Workload(4e6), **values)


def record(devices: Any, delay_s: Any, spent_j: Any = 0.0) -> Any:
    """Return the part of a round's record that schedulers observe."""
    devices = np.asarray(devices)
    spent = np.broadcast_to(np.float64(spent_j), devices.shape)
    delay_s = np.broadcast_to(np.float64(delay_s), devices.shape)
    happened = SimpleNamespace(
        devices=devices, device_delay_s=delay_s, spent_j=spent, vanished=np.isnan(delay_s), turn=None
    )  # fmt: skip
    return SimpleNamespace(devices=devices, timeline=happened, device_delay_s=lambda: delay_s, spent_j=lambda: spent)
