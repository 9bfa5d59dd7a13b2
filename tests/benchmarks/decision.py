"""A decision of the shipped policy with its pass in C and with torch's, in turns in one process.

python -m tests.benchmarks.decision [--fleets 150]
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.assignment import build_assigner
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet

SIZES = [(10, 5), (50, 5), (100, 5), (200, 5), (50, 10)]  # devices and edges


def main() -> None:
    """Print the medians in milliseconds, and on how many fleets both give the same edges."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=150)
    fleets = parser.parse_args().fleets
    work = Workload(model_bits=448 * 8192)
    compiled, torch_alone = build_assigner("d3qn"), build_assigner("d3qn")
    torch_alone._fast = None
    for scheduled, edges in SIZES:
        spent: dict[str, list[float]] = {"C": [], "torch": []}
        same = 0
        for seed in range(fleets):
            rng = np.random.default_rng(seed)
            fleet = sample_fleet(FleetConfig(num_devices=2 * scheduled, num_edges=edges), rng)
            devices = np.sort(rng.choice(2 * scheduled, scheduled, replace=False))
            answers = []
            for name, assigner in (("torch", torch_alone), ("C", compiled)):
                start = time.perf_counter()
                answers.append(assigner.assign(fleet, work, devices, rng))
                spent[name].append(1e3 * (time.perf_counter() - start))
            same += bool((answers[0] == answers[1]).all())
        medians = ", ".join(f"{name} {np.median(values):.2f} ms" for name, values in spent.items())
        print(f"H = {scheduled}, M = {edges}: {medians}; the same edges on {same} of {fleets} fleets")


if __name__ == "__main__":
    main()
