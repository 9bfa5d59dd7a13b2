"""The learned assigner on fleets inside and outside its training, compared with local search.

Objectives are divided by local search's on the same fleets (1.00 is as good): the ratio of the means, and the mean of
the ratios, which no single fleet dominates. Times are medians and 95th percentiles of `assign` in ms, on one thread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from hflray.assignment import build_assigner
from hflray.assignment.objective import round_problem
from hflray.assignment.state import assigned_objective
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table

KB = 8192.0
SCENARIOS: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = yaml.safe_load(
    Path(__file__).with_name("scenarios.yaml").read_text(encoding="utf-8")
)


def table(fleets: int = 100, policy: str | None = None, only: Sequence[str] = tuple(SCENARIOS)) -> Table:
    """Measure the policy of a file (None: the shipped one) on so many fleets of each scenario."""
    assigners = {
        "local search": build_assigner("local_search"),
        "HFEL-300": build_assigner("hfel"),
        "best gain": build_assigner("best_gain"),
        "d3qn": build_assigner("d3qn", policy=policy),
        "d3qn, 5 ms": build_assigner("d3qn", policy=policy, polish_ms=5.0),
        "d3qn, optimum": build_assigner("d3qn", policy=policy, polish_ms="optimum"),
    }
    columns = [
        ("row", "", ""), ("of_means", "of local search's mean", ".3f"), ("mean_ratio", "mean ratio", ".3f"),
        ("median_ratio", "median ratio", ".3f"), ("ms", "ms", ".2f"), ("ms_p95", "95th percentile", ".2f"),
    ]  # fmt: skip
    result = Table("generalisation/scenarios", f"the learned assigner, {fleets} fleets each", columns)
    for name in only:
        scheduled, fleet_options, work_options = SCENARIOS[name]
        work = Workload(**{"model_bits": 448 * KB, **work_options})
        config = FleetConfig(num_devices=max(100, scheduled), **fleet_options)
        objective: dict[str, list[float]] = {key: [] for key in assigners}
        milliseconds: dict[str, list[float]] = {key: [] for key in assigners}
        loops_s = []
        for seed in range(-1, fleets):  # seed -1 compiles the kernels
            rng = np.random.default_rng([77, abs(seed), seed < 0])
            fleet = sample_fleet(config, rng)
            devices = np.sort(rng.choice(fleet.num_devices, scheduled, replace=False))
            problem, _ = round_problem(fleet, work, devices)
            if seed % 10 == 0:
                loops_s.append(yardstick_s(0.02))
            for key, assigner in assigners.items():
                begin = time.perf_counter()
                edges = assigner.assign(fleet, work, devices, np.random.default_rng(abs(seed)))
                spent = time.perf_counter() - begin
                if seed >= 0:
                    objective[key].append(assigned_objective(problem, edges))
                    milliseconds[key].append(1e3 * spent)
        reference = np.array(objective["local search"])
        result.notes.append(
            f"{name}: local search {reference.mean():.2f} J by the mean, {np.median(reference):.2f} by the median"
        )
        for key in assigners:
            values, spent_ms = np.array(objective[key]), np.array(milliseconds[key])
            ratios = values / reference
            result.add(
                f"{name}: {key}", of_means=values.mean() / reference.mean(), mean_ratio=ratios.mean(),
                median_ratio=np.median(ratios), ms=np.median(spent_ms), ms_p95=np.percentile(spent_ms, 95),
            )  # fmt: skip
            result.ratios[f"{name}: {key}"] = 1e3 * statistics.median(loops_s) / float(np.median(spent_ms))
    result.notes.append("ratios: decisions in the time of a bare loop")
    return result
