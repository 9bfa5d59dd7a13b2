"""Fabricated runs for the tests of claims, with curves, costs and configurations that the tests choose."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from hflray import metrics
from hflray.allocation import allocate_round
from hflray.config import load_config
from hflray.cost import Workload, round_cost
from hflray.fleet import sample_fleet
from hflray.report.runs import RunRecord, SweepRecord
from hflray.reproduction.judge import verdicts
from hflray.reproduction.protocol import exhibits
from hflray.seeding import stream
from hflray.support.terminal.tables import TextTable
from hflray.sweep.tasks import DEFAULT
from hflray.tracking import History, RunTables

CLEAN = "0123456789abcdef0123456789abcdef01234567"


def run(
    rounds: Mapping[str, Sequence[float]],
    *overrides: str,
    steps: Sequence[int] | None = None,
    commit: str = CLEAN,
    cpu: str = "one",
    status: str = "FINISHED",
    settings: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Return a run of the default configuration with `overrides`; `settings` replaces entries of its settings."""
    config = load_config(None, list(overrides))
    count = len(next(iter(rounds.values())))
    table = pd.DataFrame({"round": steps or range(1, count + 1), **rounds})
    values = {name: column[-1] for name, column in rounds.items()}
    name = "-".join(text.rpartition("=")[2] for text in overrides)
    history = History(name, status, None, "", {"git_commit": commit, "cpu": cpu}, values, RunTables(table), 0, 1)
    fabricated = RunRecord(history, config)
    if settings:
        fabricated.__dict__["settings"] = fabricated.settings | dict(settings)  # a cached property
    return fabricated


def explorable(rounds: int, *overrides: str) -> RunRecord:
    """Return a run of clustered devices whose rounds are billed, so that a report can show their details.

    The devices of each round are drawn at random and go to their nearest edges, and nothing is trained.
    """
    config = load_config(None, list(overrides))
    fleet = sample_fleet(config.fleet, stream(config.seed, "fleet"))
    rng = np.random.default_rng([config.seed, zlib.crc32(" ".join(overrides).encode())])
    count, classes = config.fleet.num_devices, 10
    counts = rng.integers(1, 100, (count, classes))
    fleet = fleet.with_samples(counts.sum(axis=1))
    work = Workload.of(config, model_bits=3.6e6)
    rows, totals, best, pace = [], np.zeros(3), rng.uniform(0.88, 0.98), rng.uniform(5, 25)
    for number in range(1, rounds + 1):
        devices = np.sort(rng.choice(count, config.scheduling.num_scheduled, replace=False))
        edges = fleet.distance_m[devices].argmin(axis=1)
        allocation = allocate_round(fleet, work, devices, edges, method=config.allocation.method)
        cost = round_cost(fleet, work, devices, edges, allocation)
        bits = work.model_bits * (len(devices) * config.training.edge_iterations + config.fleet.num_edges)
        totals += (cost.delay_s, cost.energy_j, cost.objective)
        rows.append(
            {
                "round": number,
                metrics.ACCURACY: best - 0.8 * np.exp(-number / pace) + rng.normal(0, 0.005),
                metrics.TEST_LOSS: 2 * np.exp(-number / pace) + abs(rng.normal(0, 0.02)),
                metrics.CLASS_BALANCE: rng.uniform(0.9, 1),
                metrics.ROUND_OBJECTIVE: cost.objective,
                metrics.ROUND_MESSAGE_BITS: bits,
                metrics.TOTAL_DELAY_S: totals[0],
                metrics.TOTAL_ENERGY_J: totals[1],
                metrics.TOTAL_OBJECTIVE: totals[2],
                metrics.TOTAL_MESSAGE_BITS: bits * number,
                "devices": devices,
                "edges": edges,
                "bandwidth_hz": allocation.bandwidth_hz,
                "cpu_hz": allocation.cpu_hz,
            }
        )
    table = pd.DataFrame({f"class/{c}": counts[:, c] for c in range(classes)})
    table = table.assign(device=range(count), samples=counts.sum(axis=1), cluster=counts.argmax(axis=1))
    name = "-".join(text.rpartition("=")[2] for text in overrides)
    environment = {"git_commit": CLEAN, "cpu": "one"}
    return RunRecord(
        History(name, "FINISHED", None, "", environment, {}, RunTables(pd.DataFrame(rows), table), 0, 1), config
    )


@cache
def explorable_sweep(runs: int, rounds: int) -> SweepRecord:
    """Return a sweep of `runs` runs without repetitions, over schedulers, H and λ. Callers must not change it."""
    settings = [
        (f"scheduling.name={name}", f"scheduling.num_scheduled={h}", f"cost.delay_weight={weight:g}")
        for weight in (1, 0.01, 0.03, 0.1, 0.3, 3, 10, 30, 100, 300)
        for h in (10, 30)
        for name in ("ikc", "fedavg", "vkc")
    ]
    if runs == 4:
        settings = [setting for setting in settings[:6] if "vkc" not in setting[0]]
    return sweep(f"of-{runs}", [explorable(rounds, *setting) for setting in settings[:runs]])


def accuracy(h: int, scheduler: str, curve: Sequence[float], seed: int = 0, *overrides: str, **kinds: Any) -> RunRecord:
    """Return a run of Figure 3."""
    names = (f"scheduling.num_scheduled={h}", f"scheduling.name={scheduler}", f"seed={seed}")
    return run({metrics.ACCURACY: curve}, *names, "data.name=fashion_mnist", *overrides, **kinds)


def sweep(name: str, runs: list[RunRecord], task: str = DEFAULT) -> SweepRecord:
    return SweepRecord(name, name, task, "", runs)


def judged(name: str, runs: list[RunRecord], task: str = DEFAULT) -> TextTable:
    """Return the verdicts on an exhibit's claims from these runs."""
    shown = exhibits()[name]
    return verdicts(shown, sweep(shown.config, runs, task))
