"""A million devices that learn: seconds of a round beside a thousand devices, and the memory of all processes.

    python tests/benchmarks/million.py [--data FOLDER] [--rounds 5] [--samples 20 40] [--scheduled 1000] [--backend ray]

Both fleets draw their samples of Fashion-MNIST on demand (``data.partition: resampled``) in a living world: every
kind of part of `tests/benchmarks/world.py` is on, with devices that answer 99 % of the time, so that a fleet of a
thousand has them too. H = 1,000 devices, L = Q = 1, on an actor of Ray each, because two experiments share two CPUs.
Few samples a device make rounds short, so that what grows with N shows most. The two experiments are alive at once
and take turns; a row holds the median over its rounds but the first. Each side asserts that a scheduled device
trained on the samples that its own draw gives, and that the loss falls. The memory is the proportional set size of a
process tree with one experiment alone, in its own process.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.training.local import DeviceHost
from tests.benchmarks._report import Table, arguments, publish
from tests.benchmarks.actors import memory_mb, paper
from tests.benchmarks.world import EVERYTHING, PARTS

THERE = "world.availability={name: markov, options: {mean_on_s: 60000, mean_off_s: 600}}"
LIVING = (*(part for part in EVERYTHING if part not in PARTS["availability (markov)"]), THERE)


@dataclass(frozen=True)
class Setting:
    """What both fleets have in common: folder of the data, H, range of D_n, rounds and backend."""

    data: str | None
    scheduled: int
    samples: tuple[int, int]
    rounds: int
    backend: str

    def experiment(self, num_devices: int) -> Experiment:
        """Return the experiment of a fleet of N devices."""
        config = paper(
            self.data, *LIVING, "clock.edge.deadline=2", "world.wait_s=60", "data.partition=resampled",
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


def tree_mb() -> float:
    """Return the proportional set size of this process and all its descendants, MB."""
    size_mb = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with suppress(FileNotFoundError, ProcessLookupError, KeyError):  # it has ended meanwhile
            size_mb += memory_mb(process.pid)[0]
    return size_mb


def alone(setting: Setting, num_devices: int) -> None:
    """Run one experiment, and print the largest memory after a round, MB."""
    with setting.experiment(num_devices) as run:
        records, largest_mb = [], 0.0
        for record in run:
            records.append(record)
            largest_mb = max(largest_mb, tree_mb())
        check(run, records)
    print(largest_mb)


def table(setting: Setting, sizes: list[int]) -> Table:
    """Measure the fleets of both sizes."""
    columns = [
        ("row", "N", ""), ("round", "round, s", ".2f"), ("plan", "of it planning, s", ".3f"),
        ("passes", "samples/s", ",.0f"), ("devices", "devices that trained", ",.0f"),
        ("build", "to build, s", ".1f"), ("memory", "all processes, MB", ",.0f"),
    ]  # fmt: skip
    low, high = setting.samples
    title = (
        f"a round of H = {setting.scheduled:,} devices of {low} to {high} samples in a living world, {setting.backend}"
    )
    result = Table(title, columns, [], key="million/round")
    runs, builds_s = [], []
    for size in sizes:
        begin = time.perf_counter()
        runs.append(setting.experiment(size))
        builds_s.append(time.perf_counter() - begin)
        _ = runs[-1].scheduler, runs[-1].hierarchy
    seconds: list[list[float]] = [[] for _ in sizes]
    records: list[list[RoundRecord]] = [[] for _ in sizes]
    for index in range(setting.rounds):
        for k in (0, 1) if index % 2 else (1, 0):
            begin = time.perf_counter()
            records[k].append(runs[k].run_round())
            seconds[k].append(time.perf_counter() - begin)
    for run, each in zip(runs, records, strict=True):
        check(run, each)
        run.close()
    each_s = []
    for size, taken, each, build_s in zip(sizes, seconds, records, builds_s, strict=True):
        passes = [record.samples_trained for record in each[1:]]
        each_s.append(statistics.median(s / count for s, count in zip(taken[1:], passes, strict=True)))
        command = [
            sys.executable, __file__, "--alone", str(size), "--rounds", str(setting.rounds), "--backend",
            setting.backend, "--scheduled", str(setting.scheduled), "--samples", *map(str, setting.samples),
            *(["--data", setting.data] if setting.data else []),
        ]  # fmt: skip
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
        planned = [sum(record.wall[f"{name}_s"] for name in ("schedule", "assign", "allocate")) for record in each[1:]]
        result.rows.append({
            "row": f"{size:,}", "round": statistics.median(taken[1:]), "plan": statistics.median(planned),
            "passes": 1 / each_s[-1], "devices": np.mean([record.timeline.participates.sum() for record in each[1:]]),
            "build": build_s, "memory": float(answer),
        })  # fmt: skip
    result.facts["time of a sample's pass, large over small fleet"] = each_s[1] / each_s[0]
    result.ratios["large over small fleet, samples/s"] = each_s[0] / each_s[1]
    result.notes.append(f"a sample's pass takes {each_s[1] / each_s[0]:.2f} of that of the small fleet")
    return result


def main() -> None:
    """Print the table."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--data", default=os.environ.get("HFLRAY_DATA"), help="folder of fashion_mnist.npz; default: $HFLRAY_DATA"
    )
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--samples", type=int, nargs=2, default=[20, 40], help="range of D_n; default 20 to 40")
    parser.add_argument("--scheduled", type=int, help="H; default 1,000; quick 50")
    parser.add_argument("--backend", default="ray", help="ray, which is the default, or serial")
    parser.add_argument("--alone", type=int, help="run one fleet of so many devices, and print its memory")
    options = parser.parse_args()
    scheduled = options.scheduled or (50 if options.quick else 1_000)
    setting = Setting(options.data, scheduled, tuple(options.samples), options.rounds, options.backend)
    if options.alone:
        alone(setting, options.alone)
        return
    sizes = [100, 5_000] if options.quick else [1_000, 1_000_000]
    publish((table(setting, sizes) for _ in range(1)), options.json)


if __name__ == "__main__":
    main()
