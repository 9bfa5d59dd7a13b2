"""Assigners side by side on random fleets: objective, gap, and time. ``make bench`` runs it.

python -m tests.benchmarks.assignment [--fleets 100] [--scheduled 50] [--edges 5] [--clock wall|cpu]

"A + joint" searches by the per-edge objective and is then allocated with one shared deadline; "A joint" searches by the
objective of that too. ``--clock cpu`` counts the thread's own time, for a machine that is busy with something else.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.assignment.bounds import lower_bound
from hflray.cost import Workload, round_cost
from hflray.fleet import FleetConfig, sample_fleet

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


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fleets", type=int, default=100)
    parser.add_argument("--scheduled", type=int, default=50)
    parser.add_argument("--edges", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    clock = time.perf_counter if options.clock == "wall" else time.thread_time
    config = FleetConfig(num_devices=2 * options.scheduled, num_edges=options.edges)
    work = Workload(model_bits=448 * 8192)
    objective: dict[str, list[float]] = {name: [] for name in ASSIGNERS}
    seconds: dict[str, list[float]] = {name: [] for name in ASSIGNERS}
    bounds = []
    for seed in range(-1, options.fleets):  # -1: compile and warm up
        rng = np.random.default_rng(abs(seed))
        fleet = sample_fleet(config, rng)
        devices = np.sort(rng.choice(fleet.num_devices, options.scheduled, replace=False))
        for name, (kind, arguments, coupling) in ASSIGNERS.items():
            assigner = build_assigner(kind, **arguments)
            generator = np.random.default_rng(abs(seed))
            start = clock()
            edges = assigner.assign(fleet, work, devices, generator)
            spent = clock() - start
            allocation = allocate_round(fleet, work, devices, edges, coupling=coupling)  # type: ignore[arg-type]
            if seed >= 0:
                seconds[name].append(spent)
                objective[name].append(round_cost(fleet, work, devices, edges, allocation).objective)
        if seed >= 0:
            bounds.append(lower_bound(fleet, work, devices, allocation.delay_price, allocation.bandwidth_price))
    baseline, bound = np.array(objective["HFEL-300"]), np.array(bounds)
    print(f"{options.fleets} fleets, H = {options.scheduled}, M = {options.edges}")
    print(f"{'':36}{'median':>9}{'mean':>9}{'gap':>8}   below HFEL-300 by, of {'':12}{'ms':>9}{'':>9}")
    print(f"{'':36}{'J':>9}{'J':>9}{'mean':>8}{'medians':>10}{'means':>9}{'ratios, median':>17}{'median':>9}{'p95':>9}")
    for name in ASSIGNERS:
        v, t = np.array(objective[name]), 1e3 * np.array(seconds[name])
        print(
            f"{name:36}{np.median(v):9.2f}{v.mean():9.2f}{np.mean(1 - bound / v):8.1%}"
            f"{1 - np.median(v) / np.median(baseline):10.1%}{1 - v.mean() / baseline.mean():9.1%}"
            f"{1 - np.median(v / baseline):17.1%}{np.median(t):9.2f}{np.percentile(t, 95):9.2f}"
        )
    for name in ASSIGNERS:
        if (other := name.replace(" joint", " + joint")) != name and other in ASSIGNERS:
            ratio = np.array(objective[name]) / np.array(objective[other])
            print(
                f"{name}, of {other}: ratio median {np.median(ratio):.4f}, mean {ratio.mean():.4f}, 95th percentile "
                f"{np.percentile(ratio, 95):.4f}, worst {ratio.max():.4f}; lower on {np.mean(ratio < 1):.0%} of fleets"
            )


if __name__ == "__main__":
    main()
