"""How far is each assigner from the best of all assignments? Brute force answers for small rounds.

    python -m tests.assignment.optimum [FLEETS]

prints a Markdown table: for H = 6 devices and M = 3 edges drawn as in the paper's Table I, the mean and the largest gap
(objective − optimum) / optimum, and the share of fleets on which the assigner finds the optimum.
"""

from __future__ import annotations

import sys

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.config import BITS_PER_KB, FleetConfig
from hflray.cost import Workload, round_cost
from hflray.fleet import sample_fleet
from hflray.seeding import stream
from hflray.support.arrays import FloatArray
from tests.assignment.brute import brute_force

ASSIGNERS = ("random", "geographic", "best_gain", "load_balanced", "hfel", "local_search", "d3qn")
WORK = Workload(448 * BITS_PER_KB)
FOUND = 1e-9  # relative difference up to which an objective is the optimum's


def gaps(fleets: int, num_scheduled: int = 6, num_edges: int = 3, names: tuple[str, ...] = ASSIGNERS) -> FloatArray:
    """Return the relative gaps of the assigners to the optimum, (number of assigners, number of fleets)."""
    assigners = [build_assigner(name) for name in names]
    devices = np.arange(num_scheduled)
    rows = np.empty((len(names), fleets))
    for number in range(fleets):
        fleet = sample_fleet(FleetConfig(num_devices=num_scheduled, num_edges=num_edges), stream(0, "optimum", number))
        _, best = brute_force(fleet, WORK, devices)
        for row, assigner in enumerate(assigners):
            edges = assigner.assign(fleet, WORK, devices, stream(0, "assign", number))
            cost = round_cost(fleet, WORK, devices, edges, allocate_round(fleet, WORK, devices, edges))
            rows[row, number] = cost.objective / best - 1
    return rows


def main(fleets: int) -> None:
    """Print the table."""
    print("| assigner | mean gap | largest gap | optimum found |\n|---|--:|--:|--:|")
    for name, row in zip(ASSIGNERS, gaps(fleets), strict=True):
        print(f"| `{name}` | {row.mean():.2%} | {row.max():.1%} | {(row < FOUND).mean():.0%} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
