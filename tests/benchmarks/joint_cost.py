"""What choosing devices and edges in one step saves in a round, and the time that it takes.

Each fleet has N = 100 devices in 10 random clusters and M = 5 edges. IKC draws H devices, and local search assigns
them; `joint_cost` chooses H devices with the same quotas, and their edges. Nothing is trained. The round is the first
one, so that `max_wait` makes no difference. The times are CPU time of one thread, without compiling.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner
from hflray.cost import Workload, round_cost
from hflray.fleet import Fleet, FleetConfig, sample_fleet
from hflray.scheduling import build_scheduler, choose_devices, choose_devices_and_edges
from hflray.support.arrays import IntArray
from tests.benchmarks._report import Table
from tests.scheduling import toy

WORK = Workload(model_bits=448 * 8192)


def objective(fleet: Fleet, devices: IntArray, edges: IntArray) -> float:
    """Return the round's objective, J."""
    allocation = allocate_round(fleet, WORK, devices, edges)
    return round_cost(fleet, WORK, devices, edges, allocation).objective


def table(fleets: int = 100) -> Table:
    """Compare the choices of joint_cost with those of IKC and local search on random fleets."""
    columns = [("row", "H", ""), ("mean", "objective / IKC's, mean", ".3f"), ("median", "median", ".3f"),
               ("low", "5 %", ".3f"), ("high", "95 %", ".3f"), ("time", "CPU time, median, ms", ".1f"),
               ("slow", "95 %, ms", ".1f")]  # fmt: skip
    title = f"the first round of joint_cost against IKC with local search, {fleets} fleets"
    result = Table("joint_cost/round", title, columns)
    search = build_assigner("local_search")
    for scheduled in (10, 30, 50):
        ratios, times = [], []
        for seed in range(fleets):
            rng = np.random.default_rng(seed)
            fleet = sample_fleet(FleetConfig(num_devices=100, num_edges=5), rng)
            options = {"num_devices": 100, "num_scheduled": scheduled, "clusters": rng.permutation(np.arange(100) % 10)}
            context = replace(toy.context(fleet, 1, seed), work=WORK)
            devices = choose_devices(build_scheduler("ikc", **options), context)
            rival = objective(fleet, devices, search.assign(fleet, WORK, devices, rng))
            if not times:  # compile
                choose_devices_and_edges(build_scheduler("joint_cost", **options), context)
            scheduler = build_scheduler("joint_cost", **options)
            start = time.process_time()
            devices, edges = choose_devices_and_edges(scheduler, context)
            times.append(1e3 * (time.process_time() - start))
            assert edges is not None
            ratios.append(objective(fleet, devices, edges) / rival)
        low, high = np.quantile(ratios, (0.05, 0.95))
        mean = float(np.mean(ratios))
        result.add(
            str(scheduled), mean=mean, median=np.median(ratios), low=low, high=high, time=np.median(times),
            slow=np.quantile(times, 0.95),
        )  # fmt: skip
        result.ratios[f"H = {scheduled}, IKC's mean objective over joint_cost's"] = 1 / mean
    return result
