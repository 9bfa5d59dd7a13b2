"""Random and hand-made edges for the tests of the allocators."""

from __future__ import annotations

from typing import Any

import numpy as np

from hflray.allocation.instance import EdgeProblem
from hflray.allocation.kernels.bundles import Devices, Edges, Solution
from hflray.allocation.newton import solve_batch

NOISE = 10.0**-17.4 * 1e-3  # -174 dBm/Hz in W/Hz
BITS, ALPHA = 448 * 8192.0, 2e-28


def edge(snr_hz: Any, cycles: Any, power_w: Any, max_cpu_hz: Any, bandwidth_hz: float, weight: float) -> EdgeProblem:
    """Return an edge's problem from arrays or numbers, which are broadcast to the length of `snr_hz`."""
    snr = np.atleast_1d(np.asarray(snr_hz, dtype=np.float64))
    cycles, power, cap = (np.broadcast_to(np.float64(v), snr.shape).copy() for v in (cycles, power_w, max_cpu_hz))
    return EdgeProblem(0, np.arange(len(snr)), snr, cycles, power, cap, bandwidth_hz, BITS, weight, ALPHA)


def random_edge(rng: np.random.Generator, max_devices: int = 200) -> EdgeProblem:
    """Return a problem harder than a fleet's: λ from 1e-4 to 1e4, gains over 120 dB, and caps that may bind."""
    n = int(rng.integers(1, max_devices + 1))
    gain = 10 ** rng.uniform(-17, -5, n) if rng.random() < 0.5 else 10 ** (rng.uniform(-16, -6) + rng.uniform(-1, 1, n))
    power = 10 ** (rng.uniform(0, 23, n) / 10) * 1e-3
    kind = rng.integers(3)
    cap = (
        np.full(n, 2e9)
        if kind == 0
        else np.full(n, 10 ** rng.uniform(7, 10))
        if kind == 1
        else 10 ** rng.uniform(7, 10, n)
    )
    cycles = 5 * rng.uniform(1e4, 1e5, n) * rng.integers(400, 701, n)
    return edge(gain * power / NOISE, cycles, power, cap, 10 ** rng.uniform(5.7, 6.5), 10 ** rng.uniform(-4, 4))


def solve_all(problems: list[EdgeProblem], **options: Any) -> tuple[Solution, np.ndarray]:
    """Solve edges as one batch with the z and α of the first, and return the solution and the offsets."""
    edges = Edges(
        offsets=np.cumsum([0] + [len(p.members) for p in problems]).astype(np.intp),
        devices=Devices(
            np.concatenate([p.snr_hz for p in problems]),
            np.concatenate([p.cycles for p in problems]),
            np.concatenate([p.power_w for p in problems]),
            np.concatenate([p.max_cpu_hz for p in problems]),
        ),
        bandwidth=np.array([p.bandwidth_hz for p in problems]),
        bits=problems[0].model_bits,
        alpha=problems[0].capacitance,
    )
    return solve_batch(edges, np.array([p.delay_weight for p in problems]), **options), edges.offsets
