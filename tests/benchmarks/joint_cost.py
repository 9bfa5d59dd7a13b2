"""What choosing devices and edges in one step saves in a round, and the time that it takes.

    python tests/benchmarks/joint_cost.py [--fleets 100]

Each fleet has N = 100 devices in 10 random clusters and M = 5 edges. IKC draws H devices, and local search assigns
them; `joint_cost` chooses H devices with the same quotas, and their edges. Nothing is trained. The round is the first
one, so that `max_wait` makes no difference. A second table bills rounds with one deadline for all edges, and compares
the choice of ``coupling="joint"`` with that of the per-edge objective. The times are CPU time of one thread, without
compiling.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.allocation import Coupling, allocate_round
from hflray.assignment import build_assigner
from hflray.cost import Workload, round_cost
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.scheduling import build_scheduler, choose_devices, choose_devices_and_edges
from hflray.support.arrays import IntArray
from tests.benchmarks._report import Table, arguments, publish
from tests.scheduling import toy

WORK = Workload(model_bits=448 * 8192)


def objective(fleet: Fleet, devices: IntArray, edges: IntArray, coupling: Coupling = "per_edge") -> float:
    """Return the round's objective, J."""
    allocation = allocate_round(fleet, WORK, devices, edges, coupling=coupling)
    return round_cost(fleet, WORK, devices, edges, allocation).objective


def table(fleets: int, coupling: Coupling) -> Table:
    """Compare two choices on random fleets.

    With ``per_edge`` they are those of joint_cost and of IKC with local search. With ``joint`` they are those of
    joint_cost with this coupling and with the other, both billed with one deadline for all edges.
    """
    title, rival_of, key = {
        "per_edge": ("joint_cost against IKC with local search", "IKC's", "joint_cost/round"),
        "joint": (
            "joint_cost with a joint deadline against its per-edge choice",
            "per-edge",
            "joint_cost/joint",
        ),
    }[coupling]
    columns = [("row", "H", ""), ("mean", f"objective / {rival_of}, mean", ".3f"), ("median", "median", ".3f"),
               ("low", "5 %", ".3f"), ("high", "95 %", ".3f"), ("time", "CPU time, median, ms", ".1f"),
               ("slow", "95 %, ms", ".1f")]  # fmt: skip
    result = Table(f"the first round of {title}, {fleets} fleets", columns, [], key=key)
    search = build_assigner("local_search")
    for scheduled in (10, 30, 50):
        ratios, times = [], []
        for seed in range(fleets):
            rng = np.random.default_rng(seed)
            fleet = sample_fleet(FleetConfig(num_devices=100, num_edges=5), rng)
            options = {"num_devices": 100, "num_scheduled": scheduled, "clusters": rng.permutation(np.arange(100) % 10)}
            context = replace(toy.context(fleet, 1, seed), work=WORK)
            if coupling == "joint":
                devices, rival_edges = choose_devices_and_edges(build_scheduler("joint_cost", **options), context)
                assert rival_edges is not None
            else:
                devices = choose_devices(build_scheduler("ikc", **options), context)
                rival_edges = search.assign(fleet, WORK, devices, rng)
            rival = objective(fleet, devices, rival_edges, coupling)
            scheduler = build_scheduler("joint_cost", coupling=coupling, **options)
            if not times:
                choose_devices_and_edges(scheduler, context)  # it compiles
                scheduler = build_scheduler("joint_cost", coupling=coupling, **options)
            start = time.process_time()
            devices, edges = choose_devices_and_edges(scheduler, context)
            times.append(1e3 * (time.process_time() - start))
            assert edges is not None
            ratios.append(objective(fleet, devices, edges, coupling) / rival)
        low, high = np.quantile(ratios, (0.05, 0.95))
        shares = {"mean": float(np.mean(ratios)), "median": float(np.median(ratios)), "low": low, "high": high}
        took = {"time": float(np.median(times)), "slow": float(np.quantile(times, 0.95))}
        result.rows.append({"row": str(scheduled), **shares, **took})
        result.ratios[f"H = {scheduled}, {rival_of} mean objective over joint_cost's"] = 1 / shares["mean"]
    return result


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--fleets", type=int, help="default 100; quick 10")
    options = parser.parse_args()
    fleets = options.fleets or (10 if options.quick else 100)
    publish((table(fleets, coupling) for coupling in ("per_edge", "joint")), options.json)


if __name__ == "__main__":
    main()
