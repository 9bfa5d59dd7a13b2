"""What Tune and tracking cost: milliseconds a round, trials a second, the driver's memory. ``make bench``.

    python tests/benchmarks/sweep.py [--rounds 40] [--trials 200] [--data synthetic|fashion_mnist]

The overhead is the median time of a round under ``python -m hflray.tune`` (one trial, serial backend, a checkpoint
every round, MLflow in SQLite) less that of the same trial in a bare ``for record in Experiment(config)``, which saves
and logs nothing. Then many trials of two rounds on little data, with the processes of ended trials used again and,
for a tenth of them, without.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import yaml

from hflray.experiment import Experiment
from hflray.sweep import expand, load_sweep

ROOT = Path(__file__).parents[2]
LITTLE = {
    "data": {"name": "synthetic", "samples_per_device": [20, 40]},
    "fleet": {"num_devices": 12, "num_edges": 2},
    "scheduling": {"name": "fedavg", "num_scheduled": 4},
    "assignment": {"name": "geographic"},
    "training": {"local_iterations": 1, "edge_iterations": 1, "batch_size": 16, "backend": "serial"},
}
PAPER = {
    "data": {"name": "fashion_mnist"},
    "scheduling": {"name": "fedavg", "num_scheduled": 10},
    "assignment": {"name": "hfel"},
    "training": {"backend": "serial", "local_iterations": 1, "edge_iterations": 1},
}


def start(folder: Path, name: str, experiment: dict, **sections: object) -> subprocess.Popen[bytes]:
    """Begin a sweep in `folder`, in a process of its own."""
    (folder / f"{name}.yaml").write_text(yaml.dump({"name": name, "experiment": experiment, **sections}))
    command = [sys.executable, "-m", "hflray.tune", f"{name}.yaml", "-q"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.DEVNULL)


def stamps(folder: Path, name: str) -> list[tuple[float, list[float]]]:
    """For each trial of a sweep when it began and when its rounds were done, s, in the order they began."""
    found = []
    for path in folder.glob(f"hflray_results/{name}-*/journal/*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        begun = next(line["start"] for line in lines if "start" in line)
        found.append((begun / 1e3, [line["time"] / 1e3 for line in lines if "round" in line]))
    return sorted(found)


def overhead(folder: Path, rounds: int, experiment: dict) -> None:
    """Print the medians of a round with and without Tune, and the difference."""
    experiment = experiment | {"max_rounds": rounds}
    process = start(folder, "one", experiment)
    if process.wait():
        raise SystemExit("the sweep failed")
    ((_, times),) = stamps(folder, "one")
    tuned = [after - before for before, after in itertools.pairwise(times)]

    (trial,) = expand(load_sweep(folder / "one.yaml"))
    bare, last = [], None
    with Experiment(trial.config) as run:
        for _ in run:
            now = time.perf_counter()
            if last is not None:
                bare.append(now - last)
            last = now
    one, other = statistics.median(tuned), statistics.median(bare)
    print(
        f"a round of {experiment['data']['name']}: {other * 1e3:.1f} ms bare, {one * 1e3:.1f} ms under Tune with "
        f"tracking and checkpoints: {(one - other) * 1e3:+.1f} ms, {one / other - 1:+.1%} "
        f"(medians of {rounds - 1} rounds)"
    )


def many(folder: Path, trials: int, reuse: bool) -> None:
    """Print trials per second and how the driver's memory grew."""
    name = f"many-{reuse}".lower()
    axes = {"seed": {"grid": list(range(trials))}}
    process = start(folder, name, LITTLE | {"max_rounds": 2}, sweep=axes, tune={"reuse": reuse})
    begin, memory = time.perf_counter(), []
    driver = psutil.Process(process.pid)
    cpu_s: dict[int, float] = {}
    while process.poll() is None:
        try:
            ended = sum(len(times) == 2 for _, times in stamps(folder, name))
            memory.append((ended, driver.memory_info().rss / 2**20))
            for child in (driver, *driver.children(recursive=True)):
                cpu_s[child.pid] = sum(child.cpu_times()[:2])
        except (psutil.Error, StopIteration, ValueError):
            pass  # it is just ending, or a line is half written
        time.sleep(1)
    if process.returncode:
        raise SystemExit("the sweep failed")
    wall_s = time.perf_counter() - begin
    runs = stamps(folder, name)
    first, last = runs[0][1][0], max(times[-1] for _, times in runs)
    print(
        f"{trials} trials, reuse {reuse}: {(trials - 1) / (last - first):.2f} trials/s from the first's first round to "
        f"the last's last, {wall_s:.0f} s in all, {sum(cpu_s.values()) / trials:.2f} CPU seconds a trial"
    )
    marks = [next((mb for ended, mb in memory if ended >= trials * share), memory[-1][1]) for share in (0.1, 0.5, 0.95)]
    print("  the driver's memory after 10 %, 50 %, 95 % of the trials: " + ", ".join(f"{mb:.0f} MB" for mb in marks))


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--data", choices=["synthetic", "fashion_mnist"], default="synthetic")
    options = parser.parse_args()
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}")
    with tempfile.TemporaryDirectory(prefix="hflray-sweep-") as name:
        folder = Path(name)
        overhead(folder, options.rounds, LITTLE if options.data == "synthetic" else PAPER)
        many(folder, options.trials, reuse=True)
        many(folder, max(4, options.trials // 10), reuse=False)


if __name__ == "__main__":
    main()
