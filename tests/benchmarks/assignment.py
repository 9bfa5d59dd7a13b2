"""Assigners side by side on random fleets: objective, gap, and time.

"A + joint" searches on the per-edge objective and then allocates with one shared deadline; "A joint" also searches on
the joint objective. Times are the thread's CPU time, so that other work on the machine changes them less.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.bounds import lower_bound
from hflray.cost import Workload, round_cost
from hflray.fleet import FleetConfig, sample_fleet
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table

ASSIGNERS: dict[str, tuple[str, dict[str, object], str]] = {
    "geographic": ("geographic", {}, "per_edge"),
    "best gain": ("best_gain", {}, "per_edge"),
    "HFEL-100": ("hfel", {"exchanges": 100}, "per_edge"),
    "HFEL-300": ("hfel", {"exchanges": 300}, "per_edge"),
    "HFEL-300, redraw": ("hfel", {"exchanges": 300, "redraw": True}, "per_edge"),
    "local search": ("local_search", {}, "per_edge"),
    "local search, 10 restarts": ("local_search", {"restarts": 10}, "per_edge"),
    "HFEL-100 + joint": ("hfel", {"exchanges": 100}, "joint"),
    "HFEL-100 joint": ("hfel", {"exchanges": 100, "coupling": "joint"}, "joint"),
    "HFEL-300 + joint": ("hfel", {"exchanges": 300}, "joint"),
    "HFEL-300 joint": ("hfel", {"exchanges": 300, "coupling": "joint"}, "joint"),
    "D3QN + joint": ("d3qn", {}, "joint"),
    "D3QN, 5 ms + joint": ("d3qn", {"polish_ms": 5}, "joint"),
    "D3QN, 5 ms joint": ("d3qn", {"polish_ms": 5, "coupling": "joint"}, "joint"),
    "D3QN, optimum + joint": ("d3qn", {"polish_ms": "optimum"}, "joint"),
    "D3QN, optimum joint": ("d3qn", {"polish_ms": "optimum", "coupling": "joint"}, "joint"),
    "local search + joint": ("local_search", {}, "joint"),
    "local search joint": ("local_search", {"coupling": "joint"}, "joint"),
    "local search, 10 restarts + joint": ("local_search", {"restarts": 10}, "joint"),
    "local search, 10 restarts joint": ("local_search", {"restarts": 10, "coupling": "joint"}, "joint"),
}


def tables(fleets: int = 100, scheduled: int = 50, edges: int = 5) -> Iterator[Table]:
    """Measure, and yield both tables."""
    config = FleetConfig(num_devices=2 * scheduled, num_edges=edges)
    work = Workload(model_bits=448 * 8192)
    objective: dict[str, list[float]] = {name: [] for name in ASSIGNERS}
    seconds: dict[str, list[float]] = {name: [] for name in ASSIGNERS}
    bounds, loops_s = [], []
    for seed in range(-1, fleets):  # seed -1 compiles the kernels
        rng = np.random.default_rng(abs(seed))
        fleet = sample_fleet(config, rng)
        devices = np.sort(rng.choice(fleet.num_devices, scheduled, replace=False))
        if seed % 10 == 0:
            loops_s.append(yardstick_s(0.02, time.thread_time))
        for name, (kind, arguments_, coupling) in ASSIGNERS.items():
            assigner = build_assigner(kind, **arguments_)
            generator = np.random.default_rng(abs(seed))
            start = time.thread_time()
            assignment = assigner.assign(fleet, work, devices, generator)
            spent = time.thread_time() - start
            allocation = allocate_round(fleet, work, devices, assignment, coupling=coupling)  # type: ignore[arg-type]
            if seed >= 0:
                seconds[name].append(spent)
                objective[name].append(round_cost(fleet, work, devices, assignment, allocation).objective)
        if seed >= 0:
            bounds.append(lower_bound(fleet, work, devices, allocation.delay_price, allocation.bandwidth_price))
    yield assigners(objective, seconds, bounds, statistics.median(loops_s), f"H = {scheduled}, M = {edges}")
    yield couplings(objective)


def assigners(
    objective: dict[str, list[float]], seconds: dict[str, list[float]], bounds: list[float], loop_s: float, sizes: str
) -> Table:
    """Return the table of the assigners from the objectives, J, seconds and lower bounds of each fleet."""
    baseline, bound = np.array(objective["HFEL-300"]), np.array(bounds)
    columns = [
        ("row", "", ""), ("median", "median, J", ".2f"), ("mean", "mean, J", ".2f"), ("gap", "mean gap", ".1%"),
        ("below_medians", "below HFEL-300: of medians", ".1%"), ("below_means", "of means", ".1%"),
        ("below_ratios", "median of ratios", ".1%"), ("ms", "ms", ".2f"), ("ms_p95", "95th percentile", ".2f"),
    ]  # fmt: skip
    table = Table("assignment/assigners", f"assigners, {len(bounds)} fleets, {sizes}", columns)
    for name in objective:
        v, t = np.array(objective[name]), 1e3 * np.array(seconds[name])
        table.add(
            name, median=np.median(v), mean=v.mean(), gap=np.mean(1 - bound / v),
            below_medians=1 - np.median(v) / np.median(baseline), below_means=1 - v.mean() / baseline.mean(),
            below_ratios=1 - np.median(v / baseline), ms=np.median(t), ms_p95=np.percentile(t, 95),
        )  # fmt: skip
        table.ratios[name] = 1e3 * loop_s / float(np.median(t))
    table.facts["bare_loop_ms"] = 1e3 * loop_s
    table.notes.append(f"ratios: decisions in the time of a bare loop ({1e3 * loop_s:.2f} ms)")
    return table


def couplings(objective: dict[str, list[float]]) -> Table:
    """Return the table of joint searches, relative to per-edge searches with a joint allocation; below 1 is a gain."""
    columns = [
        ("row", "", ""), ("median", "ratio: median", ".4f"), ("mean", "mean", ".4f"),
        ("p95", "95th percentile", ".4f"), ("worst", "worst", ".4f"), ("lower", "lower on", ".0%"),
    ]  # fmt: skip
    table = Table("assignment/couplings", "objective of a joint search, of that of + joint", columns)
    for name in objective:
        if (other := name.replace(" joint", " + joint")) != name and other in objective:
            ratio = np.array(objective[name]) / np.array(objective[other])
            table.add(
                name, median=np.median(ratio), mean=ratio.mean(), p95=np.percentile(ratio, 95), worst=ratio.max(),
                lower=np.mean(ratio < 1 - 1e-9),
            )  # fmt: skip
    return table
