"""Fleets from 100 to 1,000,000 devices: seconds of each step against N, and the exponent.

A tenth of the devices is scheduled, and there is an edge for every thousand devices (at least 5). Best gain reads all
H × M links, which are N² / 10,000; the other steps read a fixed number per device. The exponent is the slope of
ln(seconds) against ln(N) over the three largest fleets, because the fixed cost of a call matters for smaller ones. Up
to 100,000 devices a figure is the median of three fleets.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.cost import Workload, round_cost
from hflray.fleet import FleetConfig, sample_fleet
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table

COMPARED = 10_000  # ratios are stored from this N on; calls are too short below it
STEPS = ("sample", "geographic", "best gain", "local search", "allocation", "cost")


def steps_of(num_devices: int, num_scheduled: int, num_edges: int, seed: int = 0) -> dict[str, Callable[[], object]]:
    """Return the steps of a round's decisions as functions, each with all that it needs made beforehand."""
    rng = np.random.default_rng(seed)
    work = Workload(model_bits=448 * 8192)
    config = FleetConfig(num_devices=num_devices, num_edges=num_edges)
    fleet = sample_fleet(config, rng)
    devices = np.sort(rng.choice(num_devices, num_scheduled, replace=False))
    assigners = {name: build_assigner(name) for name in ("geographic", "best_gain")}
    search = build_assigner("local_search", candidates=12)
    edges = assigners["best_gain"].assign(fleet, work, devices, rng)
    allocation = allocate_round(fleet, work, devices, edges)
    return {
        "sample": lambda: sample_fleet(config, np.random.default_rng(0)),
        "geographic": lambda: assigners["geographic"].assign(fleet, work, devices, rng),
        "best gain": lambda: assigners["best_gain"].assign(fleet, work, devices, rng),
        "local search": lambda: search.assign(fleet, work, devices, np.random.default_rng(0)),
        "allocation": lambda: allocate_round(fleet, work, devices, edges),
        "cost": lambda: round_cost(fleet, work, devices, edges, allocation),
    }


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call, the less of two, because the first may compile."""
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def steps(largest: int = 1_000_000) -> Table:
    """Measure fleets of up to `largest` devices."""
    sizes = [10**power for power in range(2, 7) if 10**power <= largest]
    columns = [("row", "N", ""), *((name, f"{name}, s", ".4f") for name in STEPS)]
    result = Table("scale/steps", "seconds of a round's decisions against the size of the fleet", columns)
    for size in sizes:
        loop_s = yardstick_s()
        turns = [
            {name: seconds_of(call) for name, call in steps_of(size, size // 10, max(5, size // 1000), seed).items()}
            for seed in range(3 if size <= 100_000 else 1)
        ]
        seconds = {name: statistics.median(turn[name] for turn in turns) for name in STEPS}
        result.add(f"{size:,}", **seconds)
        if size >= COMPARED:
            result.ratios |= {f"{name}, N = {size:,}": loop_s / seconds[name] for name in STEPS}
    if len(sizes) >= 3:
        last = result.rows[-3:]
        slopes = {name: np.polyfit(np.log(sizes[-3:]), np.log([row[name] for row in last]), 1)[0] for name in STEPS}
        result.facts |= {f"exponent, {name}": float(slope) for name, slope in slopes.items()}
        result.notes.append("exponents: " + ", ".join(f"{name} {slope:.2f}" for name, slope in slopes.items()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 2**30
    result.facts["peak_gib"] = peak
    result.notes.append(f"peak memory of the whole process: {peak:.2f} GiB; ratios: calls in the time of a bare loop")
    return result
