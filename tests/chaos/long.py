"""``python -m tests.chaos.long`` (or ``make long``): what grows in long runs.

    python -m tests.chaos.long [--rounds 2000] [--trials 300]

Two sweeps run one after the other: one trial of many short rounds, and many trials of two rounds. From the moment when
MLflow has the first run, before which the driver imports its libraries, the memory of the driver, the trials and the
actors, their open files, their part of /dev/shm and Ray's temporary folder are measured every `EVERY_S`. A line of the
table compares the first tenth of the rounds or trials after the warm-up with the last tenth, by medians.

Memory is the unique set size (USS): pages that no other process has. A page of the object store that all processes map
would otherwise count several times.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import yaml

from tests.chaos.fault import processes
from tests.chaos.sweep import ROOT

EVERY_S = 3.0
TENTH = 0.1  # the first tenth of the rounds or trials is the warm-up; the next one is compared with the last
LITTLE = {
    "data": {"name": "synthetic", "samples_per_device": [20, 40]},
    "fleet": {"num_devices": 12, "num_edges": 2},
    "scheduling": {"name": "fedavg", "num_scheduled": 4},
    "assignment": {"name": "geographic"},
    "training": {
        "local_iterations": 1, "edge_iterations": 1, "batch_size": 16, "backend": "ray", "num_actors": 1,
        "kernel": "channels_last", "threads": 1, "device": "cpu",
    },
}  # fmt: skip
MB = 2**20


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder. Files that vanish meanwhile count nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def of_raylet(raylet: psutil.Process) -> dict[str, float]:
    """Return the sizes of the temporary folder of a Ray, and of its part of /dev/shm, MB.

    The file in /dev/shm has no name any more, and other Rays may use it too, so the raylet's open file is asked.
    """
    values = {}
    sessions = [word.partition("=")[2] for word in raylet.cmdline() if word.startswith("--session_dir=")]
    for session in sessions:
        values["Ray's session folder, MB"] = folder_bytes(Path(session)) / MB
    for file in Path(f"/proc/{raylet.pid}/fd").glob("*"):
        with suppress(OSError):
            if os.readlink(file).startswith("/dev/shm/plasma"):
                values["/dev/shm, MB"] = file.stat().st_blocks * 512 / MB
    return values


def measure(driver: int) -> dict[str, float]:
    """Return what the processes of a sweep hold, and the sizes of their folders."""
    values: dict[str, float] = {}
    for role, members in processes(driver).items():
        used, files = [], []
        for process in members:
            with suppress(psutil.Error):
                used.append(process.memory_full_info().uss / MB)
                files.append(process.num_fds())
                values |= of_raylet(process) if role == "raylet" else {}
        if used:  # several trials run at a time, so their mean counts
            values |= {f"{role}, MB": statistics.fmean(used), f"{role}, open files": statistics.fmean(files)}
    return values


def rounds_and_ends(folder: Path) -> tuple[int, int]:
    """Return how many rounds and how many ends of trials the journals of a folder have."""
    texts = [path.read_bytes() for path in folder.glob("hflray_results/*/journal/*.jsonl")]
    return sum(text.count(b'\n{"round"') for text in texts), sum(text.count(b'\n{"end"') for text in texts)


def run(folder: Path, trials: int, rounds: int) -> list[tuple[float, dict[str, float]]]:
    """Run a sweep of `trials` trials with `rounds` rounds each, and measure it every `EVERY_S` seconds.

    Returns:
        How much of the sweep was done, from 0 to 1, and what was measured then.

    Raises:
        RuntimeError: the sweep failed.
    """
    axes = {"seed": {"grid": list(range(trials))}}
    file = {"name": "long", "experiment": LITTLE | {"max_rounds": rounds}, "sweep": axes}
    (folder / "long.yaml").write_text(yaml.dump(file), encoding="utf-8")
    samples = []
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "hflray.tune", "long.yaml", "-q"],
            cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while process.poll() is None:
            if any(folder.glob("hflray_results/artifacts/*/artifacts/config.yaml")):  # MLflow has a run
                made, ended = rounds_and_ends(folder)
                samples.append((made / rounds if trials == 1 else ended / trials, measure(process.pid)))
            time.sleep(EVERY_S)
    if process.returncode:
        raise RuntimeError(f"the sweep failed: {(folder / 'output.txt').read_text()[-2000:]}")
    return samples


def table(samples: list[tuple[float, dict[str, float]]]) -> str:
    """Return the medians of each quantity in the first tenth after the warm-up and in the last, as Markdown."""
    lines = ["| quantity | first tenth after the warm-up | last tenth | growth |", "|---|---:|---:|---:|"]
    low = max(TENTH, samples[0][0])
    for name in dict.fromkeys(name for _, values in samples for name in values):
        first, last = (
            [values[name] for done, values in samples if begin <= done <= end and name in values]
            for begin, end in ((low, low + TENTH), (1 - TENTH, 1.0))
        )
        if first and last:
            before, after = statistics.median(first), statistics.median(last)
            growth = f"{after / before - 1:+.1%}" if before else ""
            lines.append(f"| {name} | {before:,.1f} | {after:,.1f} | {growth} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of the one trial; 0 leaves this sweep out")
    parser.add_argument("--trials", type=int, default=300, help="trials of two rounds; 0 leaves this sweep out")
    options = parser.parse_args()
    for trials, rounds in ((1, options.rounds), (options.trials, 2)):
        if trials and rounds:
            begin = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="hflray-long-") as folder:
                samples = run(Path(folder), trials, rounds)
            print(
                f"{trials} trials of {rounds} rounds, {time.monotonic() - begin:.0f} s:\n\n{table(samples)}\n",
                flush=True,
            )


if __name__ == "__main__":
    main()
