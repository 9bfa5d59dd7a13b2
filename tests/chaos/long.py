"""``python -m tests.chaos.long`` (or ``make long``): what grows in long runs.

    python -m tests.chaos.long [--rounds 2000] [--trials 300] [--out FILE.json]

Two sweeps run one after the other: one trial of many short rounds, and many trials of two rounds. From the moment when
MLflow has the first run, before which the driver imports its libraries, the memory of the driver, the trials and the
actors, their open files, their part of /dev/shm and Ray's temporary folder are measured every `EVERY_S`. A line of the
table compares the first tenth of the rounds or trials after the warm-up with the last tenth, by medians.

Memory is the unique set size (USS): pages that no other process has. A page of the object store that all processes map
would otherwise count several times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import yaml

from tests.chaos.fault import processes
from tests.chaos.sweep import ROOT

EVERY_S = 3.0
WARM_UP = 0.1  # the first tenth of the rounds or trials is not compared
BOUND = 0.02  # a quantity is flat if it grows by no more than this
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
ROLES = ("driver", "trial", "device actor", "edge actor", "raylet", "gcs")
MB = 2**20


@dataclass
class Sample:
    """The state of a sweep at one time.

    Attributes:
        time_s: seconds since the start.
        done: the number of rounds (of one trial) or of ended trials (of many).
        values: quantities by name.
    """

    time_s: float
    done: int
    values: dict[str, float]


@dataclass
class Series:
    """The samples of a sweep.

    Attributes:
        name: the sweep.
        unit: what `done` counts.
        total: how many of these the sweep has.
        samples: the samples, in order.
        wall_s: seconds of the whole sweep.
        journal_bytes: the sizes of the journal's lines of rounds, in order.
    """

    name: str
    unit: str
    total: int
    samples: list[Sample] = field(default_factory=list)
    wall_s: float = 0.0
    journal_bytes: list[int] = field(default_factory=list)

    def tenths(self, quantity: str) -> tuple[float, float] | None:
        """Return the medians of a quantity in the first tenth after the warm-up and in the last; None: not measured."""
        width, high = WARM_UP * self.total, 0.9 * self.total
        low = max(width, self.samples[0].done)
        first = [s.values[quantity] for s in self.samples if low <= s.done <= low + width and quantity in s.values]
        last = [s.values[quantity] for s in self.samples if s.done >= high and quantity in s.values]
        return (statistics.median(first), statistics.median(last)) if first and last else None

    def journal_tenths(self) -> tuple[float, float] | None:
        """Return the same medians for the bytes of the journal a round."""
        count = len(self.journal_bytes)
        if count < 20:
            return None
        first, last = self.journal_bytes[count // 10 : count // 5], self.journal_bytes[-count // 10 :]
        return statistics.median(first), statistics.median(last)


def folder_bytes(folder: Path) -> int:
    """Return the bytes of all files in a folder. Files that vanish meanwhile count nothing."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def session_of(places: dict[str, list[psutil.Process]]) -> Path | None:
    """Return the temporary folder of the sweep's Ray, from the command line of its raylet."""
    for process in places.get("raylet", []):
        with suppress(psutil.Error):
            for argument in process.cmdline():
                name, _, value = argument.partition("=")
                if name == "--session_dir":
                    return Path(value)
    return None


def object_store_bytes(places: dict[str, list[psutil.Process]]) -> int | None:
    """Return the bytes of /dev/shm that the sweep's own object store uses.

    The file has no name any more, and other Rays may use /dev/shm too, so the raylet's open file is asked.
    """
    for process in places.get("raylet", []):
        for file in Path(f"/proc/{process.pid}/fd").glob("*"):
            with suppress(OSError):
                if os.readlink(file).startswith("/dev/shm/plasma"):
                    return file.stat().st_blocks * 512
    return None


def measure(driver: int) -> dict[str, float]:
    """Return what the processes of a sweep hold, and the sizes of their folders."""
    places = processes(driver)
    values: dict[str, float] = {}
    for role in ROLES:
        members = places.get(role, [])
        used, files = [], []
        for process in members:
            with suppress(psutil.Error):
                used.append(process.memory_full_info().uss / MB)
                files.append(process.num_fds())
        if used:  # several trials run at a time, so their mean counts
            values[f"{role}, MB"] = statistics.fmean(used)
            values[f"{role}, open files"] = statistics.fmean(files)
    store = object_store_bytes(places)
    if store is not None:
        values["/dev/shm, MB"] = store / MB
    session = session_of(places)
    if session is not None:
        values["Ray's session folder, MB"] = folder_bytes(session) / MB
    values["processes"] = float(sum(map(len, places.values())))
    return values


def journals(folder: Path) -> list[Path]:
    """Return the journals of the sweep in a folder, in the order in which they began."""
    return sorted(folder.glob("hflray_results/*/journal/*.jsonl"), key=lambda path: path.stat().st_ctime)


class Counter:
    """Counts rounds and ended trials in the journals, and reads only what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, dict[Path, int]()
        self.rounds = self.ended = 0

    def update(self) -> None:
        """Read the new lines."""
        for path in self._folder.glob("hflray_results/*/journal/*.jsonl"):
            if path.stat().st_size == self._seen.get(path, 0):
                continue
            with path.open("rb") as file:
                file.seek(self._seen.get(path, 0))
                text = file.read().rpartition(b"\n")[0]
            self._seen[path] = self._seen.get(path, 0) + len(text) + (1 if text else 0)
            self.rounds += sum(line.startswith(b'{"round"') for line in text.split(b"\n"))
            self.ended += sum(line.startswith(b'{"end"') for line in text.split(b"\n"))


def run(folder: Path, name: str, trials: int, rounds: int, every_s: float = EVERY_S) -> Series:
    """Run a sweep of `trials` trials with `rounds` rounds each, and measure it every `every_s` seconds.

    Raises:
        RuntimeError: the sweep failed.
    """
    file = {
        "name": name,
        "experiment": LITTLE | {"max_rounds": rounds},
        "sweep": {"seed": {"grid": list(range(trials))}},
    }
    (folder / f"{name}.yaml").write_text(yaml.dump(file), encoding="utf-8")
    series = Series(name, *(("rounds", rounds) if trials == 1 else ("trials", trials)))
    counter = Counter(folder)
    settings = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    begin = time.monotonic()
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "hflray.tune", f"{name}.yaml", "-q"],
            cwd=folder, env=os.environ | settings, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        while process.poll() is None:
            counter.update()
            done = counter.rounds if trials == 1 else counter.ended
            if any(folder.glob("hflray_results/artifacts/*/artifacts/config.yaml")):  # MLflow has a run
                series.samples.append(Sample(time.monotonic() - begin, done, measure(process.pid)))
            time.sleep(every_s)
    if process.returncode:
        raise RuntimeError(f"the sweep failed: {(folder / 'output.txt').read_text()[-2000:]}")
    series.wall_s = time.monotonic() - begin
    for path in journals(folder):
        series.journal_bytes += [
            len(line) + 1 for line in path.read_bytes().split(b"\n") if line.startswith(b'{"round"')
        ]
    return series


def table(series: Series) -> list[dict[str, object]]:
    """Return a row per quantity with both medians, and whether it is flat."""
    names = dict.fromkeys(name for sample in series.samples for name in sample.values)
    pairs = [(name, series.tenths(name)) for name in names] + [("journal, bytes a round", series.journal_tenths())]
    rows = []
    for name, pair in pairs:
        if pair is not None:
            first, last = pair
            growth = (last - first) / first if first else (0.0 if last == first else float("inf"))
            rows.append({"quantity": name, "first": first, "last": last, "growth": growth, "flat": growth <= BOUND})
    return rows


def markdown(all_series: Iterable[Series]) -> str:
    """Return the tables as Markdown."""
    lines: list[str] = []
    for series in all_series:
        lines += [
            f"{series.total} {series.unit}, {series.wall_s:.0f} s:",
            "",
            "| quantity | first tenth after the warm-up | last tenth | growth |",
            "|---|---:|---:|---:|",
        ]
        for row in table(series):
            lines.append(f"| {row['quantity']} | {row['first']:,.1f} | {row['last']:,.1f} | {row['growth']:+.1%} |")
        lines.append("")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.long", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000, help="rounds of the one trial; 0 leaves this sweep out")
    parser.add_argument("--trials", type=int, default=300, help="trials of two rounds; 0 leaves this sweep out")
    parser.add_argument("--out", type=Path, default=Path("hflray_results/chaos/long.json"), help="the samples, as JSON")
    options = parser.parse_args(arguments)
    measured = []
    for name, trials, rounds in (("rounds", 1, options.rounds), ("trials", options.trials, 2)):
        if trials and rounds:
            with tempfile.TemporaryDirectory(prefix="hflray-long-") as folder:
                measured.append(run(Path(folder), name, trials, rounds))
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps([asdict(series) for series in measured]), encoding="utf-8")
    text = markdown(measured)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
