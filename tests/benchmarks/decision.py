"""A decision of the shipped policy with its pass in C and with torch's, in turns in one process.

The answers of both are compared to the last edge: a fleet on which they differ ends the benchmark.
"""

from __future__ import annotations

import statistics
import time

import numpy as np

from hflray.assignment import build_assigner
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet
from tests.benchmarks._report import Table

SIZES = ((10, 5), (50, 5), (100, 5), (200, 5), (50, 10))  # devices and edges


def table(fleets: int = 150) -> Table:
    """Measure all sizes."""
    columns = [("row", "devices, edges", ""), ("c", "C, ms", ".2f"), ("torch", "torch, ms", ".2f"),
               ("ratio", "speed", ".2f")]  # fmt: skip
    result = Table("decision/policy", f"a decision of the shipped policy, medians of {fleets} fleets", columns)
    work = Workload(model_bits=448 * 8192)
    assigners = {"torch": build_assigner("d3qn"), "c": build_assigner("d3qn")}
    assigners["torch"]._fast = None
    for scheduled, edges in SIZES:
        spent: dict[str, list[float]] = {name: [] for name in assigners}
        for seed in range(fleets):
            rng = np.random.default_rng(seed)
            fleet = sample_fleet(FleetConfig(num_devices=2 * scheduled, num_edges=edges), rng)
            devices = np.sort(rng.choice(2 * scheduled, scheduled, replace=False))
            answers = []
            for name, assigner in assigners.items():
                start = time.perf_counter()
                answers.append(assigner.assign(fleet, work, devices, rng))
                spent[name].append(1e3 * (time.perf_counter() - start))
            assert np.array_equal(*answers), (scheduled, edges, seed)
        medians = {name: statistics.median(values) for name, values in spent.items()}
        ratio = medians["torch"] / medians["c"]
        result.add(f"{scheduled}, {edges}", ratio=ratio, **medians)
        result.ratios[f"C / torch, H = {scheduled}, M = {edges}"] = ratio
    return result
