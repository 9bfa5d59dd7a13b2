"""A million devices that learn: seconds of a round beside a thousand devices, and the memory of all processes.

Both fleets draw their samples of Fashion-MNIST on demand (``data.partition: resampled``) in a living world: every
kind of part of `tests/benchmarks/world.py` is on, with devices that answer 99 % of the time, so that a fleet of a
thousand has them too. H = 1,000 devices, L = Q = 1, on an actor of Ray each, because two experiments share two CPUs.
Few samples a device make rounds short, so that what grows with N shows most. The two experiments are alive at once
and take turns; a row holds the median over its rounds but the first. Each side asserts that a scheduled device
trained on the samples that its own draw gives, and that the loss falls. The memory is the proportional set size of a
process tree with one experiment alone, in its own process.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from hflray.config import ExperimentConfig, load_config
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.training.local import DeviceHost
from tests.benchmarks._report import Table
from tests.benchmarks.world import ROWS

THERE = "world.availability={name: markov, options: {mean_on_s: 60000, mean_off_s: 600}}"
LIVING = (*(part for part in ROWS["everything"] if not part.startswith(("world.availability", "clock."))), THERE)


def paper(*overrides: str) -> ExperimentConfig:
    """Return the paper's setting on Fashion-MNIST, or on noise of its shape."""
    data = ["data.name=synthetic", "data.samples_per_device=[400, 700]"]
    folder = os.environ.get("HFLRAY_DATA")
    if folder and (Path(folder) / "fashion_mnist.npz").is_file():
        data = ["data.name=fashion_mnist", f"data.root={folder}"]
    return load_config(None, [*data, "scheduling.name=fedavg", "assignment.name=geographic", *overrides])


@dataclass(frozen=True)
class Setting:
    """What both fleets have in common: H, range of D_n, rounds and backend."""

    scheduled: int
    samples: tuple[int, int]
    rounds: int
    backend: str

    def experiment(self, num_devices: int) -> Experiment:
        """Return the experiment of a fleet of N devices."""
        config = paper(
            *LIVING, "clock.edge.deadline=2", "world.wait_s=60", "data.partition=resampled",
            f"fleet.num_devices={num_devices}", f"scheduling.num_scheduled={self.scheduled}",
            f"data.samples_per_device={list(self.samples)}", "training.local_iterations=1",
            "training.edge_iterations=1", f"max_rounds={self.rounds}", "target_accuracy=null",
            f"training.backend={self.backend}", "training.num_actors=1",
        )  # fmt: skip
        return Experiment(config)


def check(run: Experiment, records: list[RoundRecord]) -> None:
    """Assert that a host reads a device's own draw, and the same at each look, and that the loss falls."""
    host = DeviceHost(run.job(), run.scenario.device_data())
    for device in (0, run.config.fleet.num_devices - 1):
        own = list(run.scenario.parts[device])
        assert list(host.samples.index(device)) == own == list(host.samples.index(device))
        assert len(own) == run.scenario.fleet.samples[device]
    assert records[-1].test_loss < records[0].test_loss


def alone(setting: Setting, num_devices: int) -> float:
    """Run one experiment in this process, and return the largest memory of all its processes after a round, MB."""
    with setting.experiment(num_devices) as run:
        records, largest_mb = [], 0.0
        for record in run:
            records.append(record)
            family = [psutil.Process(), *psutil.Process().children(recursive=True)]
            largest_mb = max(largest_mb, sum(process.memory_full_info().pss for process in family) / 2**20)
        check(run, records)
    return largest_mb


def table(
    scheduled: int = 1_000, sizes: Sequence[int] = (1_000, 1_000_000), samples: tuple[int, int] = (20, 40),
    rounds: int = 5, backend: str = "ray",
) -> Table:  # fmt: skip
    """Measure the fleets of both sizes: H devices of so many samples each."""
    columns = [
        ("row", "N", ""), ("round", "round, s", ".2f"), ("plan", "of it planning, s", ".3f"),
        ("passes", "samples/s", ",.0f"), ("devices", "devices that trained", ",.0f"),
        ("build", "to build, s", ".1f"), ("memory", "all processes, MB", ",.0f"),
    ]  # fmt: skip
    title = f"a round of H = {scheduled:,} devices of {samples[0]} to {samples[1]} samples in a living world, {backend}"
    result = Table("million/round", title, columns)
    setting = Setting(scheduled, samples, rounds, backend)
    runs, builds_s = [], []
    for size in sizes:
        begin = time.perf_counter()
        runs.append(setting.experiment(size))
        builds_s.append(time.perf_counter() - begin)
        _ = runs[-1].scheduler, runs[-1].hierarchy
    seconds: list[list[float]] = [[] for _ in sizes]
    records: list[list[RoundRecord]] = [[] for _ in sizes]
    for index in range(rounds):
        for k in (0, 1) if index % 2 else (1, 0):
            begin = time.perf_counter()
            records[k].append(runs[k].run_round())
            seconds[k].append(time.perf_counter() - begin)
    for run, made in zip(runs, records, strict=True):
        check(run, made)
        run.close()
    for size, taken, (_, *made), build_s in zip(sizes, seconds, records, builds_s, strict=True):
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            memory = pool.submit(alone, setting, size).result()
        planned = [sum(record.wall[f"{name}_s"] for name in ("schedule", "assign", "allocate")) for record in made]
        passes = [record.samples_trained / took_s for record, took_s in zip(made, taken[1:], strict=True)]
        result.add(
            f"{size:,}", round=statistics.median(taken[1:]), plan=statistics.median(planned),
            passes=statistics.median(passes),
            devices=np.mean([record.timeline.participates.sum() for record in made]), build=build_s, memory=memory,
        )  # fmt: skip
    small, large = (row["passes"] for row in result.rows)
    result.ratios["large over small fleet, samples/s"] = large / small
    result.notes.append(f"a sample's pass takes {small / large:.2f} of that of the small fleet")
    return result
