"""Local training against a bare PyTorch loop, Flower and pfl-research, side by side in one run. ``make bench`` runs it.

    python tests/benchmarks/training.py [--quick] [--data fashion_mnist.npz] [--repeats 3] [--only bare1,bare2,...]

The same work for all: H devices of about 550 samples, the paper's Fashion-MNIST model, batch 64, one aggregation
(Q = M = 1: the peers have no edges). Speed does not depend on which 50 of 100 devices are scheduled, so only the
scheduled ones exist. All contestants are alive at once and train one round each in turn, so that whatever else the
machine does meets them alike; every figure is a median of the turns' ratios. Before anything is timed, one full-batch
step from the same start must give all of them the same aggregated weights to a relative 1e-4.

Flower and pfl-research get virtual environments of their own in ~/.cache/hflray/bench, made on first use from PyPI.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.config import TrainingConfig
from hflray.models import build_model, init_vector
from hflray.training.autotune import resolve
from hflray.training.machine import available_cpus, cache_folder

ROOT, PEERS = Path(__file__).parents[2], Path(__file__).parent / "peers"
BATCH, PASSES_OF_A_SAMPLE = 64, 5.52e6  # floating-point operations: forward, both gradients but the images'
PINS = {"flwr": "flwr[simulation]==1.41.*", "pfl": "pfl[pytorch]==0.6.*"}
Command = list[str]


@dataclass
class Contestant:
    """One row of the table: one process, or (the bare loop) one for each CPU."""

    name: str
    commands: list[Command]
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    start_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    notes: list[float] = field(default_factory=list)

    def start(self) -> None:
        begin = time.perf_counter()
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}", "PYTHONWARNINGS": "ignore"}
        for command in self.commands:
            log = (cache_folder("bench") / f"{self.name.split()[0]}.log").open("w")
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
            )
        self._wait("ready")
        self.start_s = time.perf_counter() - begin

    def round(self, local_iterations: int, batch_size: int = BATCH, save: Path | None = None) -> float:
        begin = time.perf_counter()
        for index, process in enumerate(self.processes):
            command = {
                "local_iterations": local_iterations,
                "batch_size": batch_size,
                "save": str(save) if save and index == 0 else None,
            }
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        self._wait("done")
        return time.perf_counter() - begin

    def timed(self, local_iterations: int) -> None:
        before, watch = self.cpu_time(), _Peak(self)
        self.seconds.append(self.round(local_iterations))
        self.cpu_seconds.append(self.cpu_time() - before)
        self.peak_mb = max(self.peak_mb, watch.stop())

    def _wait(self, word: str) -> None:
        for process in self.processes:
            while (line := process.stdout.readline()).split()[:1] != [word]:  # Flower prints to stdout as well
                if not line:
                    raise RuntimeError(f"{self.name} ended: see {cache_folder('bench')}/{self.name.split()[0]}.log")
            self.notes += [float(text) for text in line.split()[1:]]

    def stop(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def tree(self) -> set[int]:
        """The processes and all below them."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
        found = {process.pid for process in self.processes}
        while more := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= more
        return found

    def cpu_time(self) -> float:
        total = 0.0
        for pid in self.tree():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            except OSError:
                continue
        return total

    def memory_mb(self) -> float:
        """Proportional set size: shared pages are counted once."""
        total = 0
        for pid in self.tree():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except OSError:
                continue
        return total / 1024


class _Peak:
    """Samples a contestant's memory while it trains; every two seconds, because reading it costs some."""

    def __init__(self, contestant: Contestant) -> None:
        self._contestant, self._end, self._peak = contestant, threading.Event(), 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._end.wait(2.0):
            self._peak = max(self._peak, self._contestant.memory_mb())

    def stop(self) -> float:
        self._end.set()
        self._thread.join()
        return max(self._peak, self._contestant.memory_mb())


def environment(name: str) -> Path:
    """The Python of a peer's own virtual environment, made if need be. Raises RuntimeError with the reason."""
    folder = cache_folder("bench") / name
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    print(f"installing {PINS[name]} into {folder} ...", flush=True)
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        # The same torch as here first, and held there: a peer must bring neither another one nor CUDA's.
        [str(python), "-m", "pip", "install", "-q", f"torch=={torch.__version__.split('+')[0]}", "numpy"],
        [str(python), "-m", "pip", "install", "-q", "-c", str(folder / "pins.txt"), PINS[name]],
    ]
    for step in steps:
        result = subprocess.run(step, capture_output=True, text=True, timeout=1800, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            raise RuntimeError(next((line for line in lines if line.startswith("ERROR")), (lines or ["?"])[-1])[:200])
        (folder / "pins.txt").write_text(f"torch=={torch.__version__.split('+')[0]}\n")
    (folder / "ready").touch()
    return python


def make_work(folder: Path, devices: int, source: str | None) -> tuple[Path, int]:
    """Write the devices' data; return the file and the number of samples. Without Fashion-MNIST, noise of its shape."""
    rng = np.random.default_rng(0)
    sizes = rng.integers(500, 601, devices)
    total = int(sizes.sum())
    if source:
        with np.load(source) as file:
            chosen = rng.permutation(len(file["y_train"]))[:total]
            x, y = file["x_train"][chosen].reshape(-1, 1, 28, 28), file["y_train"][chosen].astype(np.int64)
    else:
        x, y = rng.integers(0, 256, (total, 1, 28, 28), dtype=np.uint8), rng.integers(0, 10, total)
    start = init_vector(build_model("hfl", (1, 28, 28), 10), rng)
    np.savez(folder / "work.npz", x=x, y=y, offsets=np.concatenate([[0], np.cumsum(sizes)]), start=start)
    return folder / "work.npz", total


def matmul_peak(cpu: int) -> float:
    """FLOP/s of one CPU's float32 matrix product, the best of some, by the CPU time it got."""
    code = (
        "import os,time,torch\n"
        f"hasattr(os,'sched_setaffinity') and os.sched_setaffinity(0,{{{cpu}}})\n"
        "torch.set_num_threads(1); a=torch.randn(1024,1024); best=9e9\n"
        "for _ in range(40):\n t=time.process_time(); a@a; best=min(best,time.process_time()-t)\n"
        "print(2*1024**3/best)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def contestants(work: Path, cpus: tuple[int, ...], kernel: str, only: list[str] | None) -> list[Contestant]:
    here, count = sys.executable, len(cpus)

    def wanted(title: str) -> bool:
        return only is None or title.split()[0] in only

    def peer(python: object, script: str, *arguments: object) -> Command:
        return [str(python), str(PEERS / script), str(work), *map(str, arguments)]

    everyone = [
        Contestant("bare1 (a)", [peer(here, "bare.py", cpus[0], 0, 1)]),
        Contestant("bare2 (b)", [peer(here, "bare.py", cpu, first, count) for first, cpu in enumerate(cpus)]),
        Contestant("serial (c)", [peer(here, "ours.py", "serial", 1, kernel, "float32")]),
        Contestant("actors (d)", [peer(here, "ours.py", "ray", count, kernel, "float32")]),
        Contestant("actors-bf16", [peer(here, "ours.py", "ray", count, kernel, "bf16")]),
    ]
    # pfl-research computes in one process, with threads; beside it with one, because threads suffer most from company.
    for name, title, script, threads in (
        ("flwr", "flower (e)", "flower.py", count),
        ("pfl", "pfl (f)", "pfl_research.py", count),
        ("pfl", "pfl-1-thread", "pfl_research.py", 1),
    ):
        if not wanted(title):
            continue
        try:
            everyone.append(Contestant(title, [peer(environment(name), script, threads)]))
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            print(f"skipped: {title}: its environment cannot be made: {error}")
    return [contestant for contestant in everyone if wanted(contestant.name)]


def check_equal_work(running: list[Contestant], folder: Path) -> None:
    """One full-batch step from the same start. The halves of (b) never meet, so it is checked through (a)."""
    results = {}
    for contestant in running:
        if len(contestant.processes) == 1:
            path = folder / f"{contestant.name.split()[0]}.npy"
            contestant.round(1, batch_size=10**6, save=path)
            results[contestant.name] = np.load(path).astype(np.float64)
    with np.load(folder / "work.npz") as file:
        start = file["start"].astype(np.float64)
    (first, reference), *others = results.items()
    for name, vector in others:
        error = np.linalg.norm(vector - reference) / np.linalg.norm(reference)
        learned = np.linalg.norm(vector - reference) / np.linalg.norm(reference - start)
        print(f"  {name:12s} differs from {first} by {error:.1e} of the weights, {learned:.1e} of what was learned")
        if name != "actors-bf16":
            assert error < 1e-4, f"{name} does other work than {first}: no comparison"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="10 devices instead of 50, 2 turns: a few minutes")
    parser.add_argument("--data", help="fashion_mnist.npz; default: the one in $HFLRAY_DATA, else noise of its shape")
    parser.add_argument("--repeats", type=int, help="turns (default 5; quick 2)")
    parser.add_argument("--devices", type=int, help="scheduled devices (default 50; quick 10)")
    parser.add_argument("--only", help="first words of the rows wanted, with commas")
    parser.add_argument("--kernel", help="of hflray; default: as autotuned here")
    options = parser.parse_args()
    repeats, devices = options.repeats or (2 if options.quick else 5), options.devices or (10 if options.quick else 50)
    found = Path(os.environ.get("HFLRAY_DATA", "")) / "fashion_mnist.npz"
    source = options.data or (str(found) if found.is_file() else None)
    cpus = available_cpus()[:2]
    config = resolve(TrainingConfig(kernel=options.kernel or "auto"), (1, 28, 28), 10, 10**6)
    peak = matmul_peak(cpus[0])
    print(f"{len(cpus)} CPUs, kernel {config.kernel}, matmul {peak / 1e9:.0f} GFLOP/s on one CPU, {devices} devices")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        work, samples = make_work(folder, devices, source)
        running = []
        only = options.only.split(",") if options.only else None
        for contestant in contestants(work, cpus, str(config.kernel), only):
            try:
                contestant.start()
                running.append(contestant)
            except RuntimeError as error:
                print(f"skipped: {error}")
        try:
            print("one full-batch step:")
            check_equal_work(running, folder)
            for local_iterations in (5, 1):
                for contestant in running:
                    contestant.round(local_iterations)  # the first round of a setting pays for what is loaded once
                    contestant.seconds, contestant.cpu_seconds, contestant.notes = [], [], []
                for _ in range(repeats):
                    for contestant in running:
                        contestant.timed(local_iterations)
                report(running, samples * local_iterations, local_iterations, peak)
        finally:
            for contestant in running:
                contestant.stop()


def report(running: list[Contestant], passes: int, local_iterations: int, peak: float) -> None:
    base = next((c for c in running if c.name.startswith("bare2")), running[0])
    print(f"\nL = {local_iterations}: {passes} sample passes a round, medians of {len(base.seconds)} turns")
    print(
        f"{'':12s} {'samples/s':>10s} {'x (b)':>6s} {'min..max':>12s} {'per CPU-s':>10s} {'of matmul':>9s} "
        f"{'peak MB':>8s} {'start s':>8s}"
    )
    for contestant in running:
        ratios = [b / s for s, b in zip(contestant.seconds, base.seconds, strict=True)]
        rate = passes / statistics.median(contestant.seconds)
        per_cpu = passes / statistics.median(contestant.cpu_seconds)
        print(
            f"{contestant.name:12s} {rate:10,.0f} {statistics.median(ratios):6.2f} "
            f"{min(ratios):5.2f}..{max(ratios):5.2f} {per_cpu:10,.0f} {per_cpu * PASSES_OF_A_SAMPLE / peak:9.0%} "
            f"{contestant.peak_mb:8,.0f} {contestant.start_s:8.1f}"
        )
    named = {contestant.name.split()[0]: contestant.seconds for contestant in running}
    if {"bare1", "bare2", "serial", "actors"} <= set(named):
        turns = zip(*(named[name] for name in ("bare1", "bare2", "serial", "actors")), strict=True)
        pairs = [(serial / actors, one / two) for one, two, serial, actors in turns]
        kept = statistics.median(ours / bare for ours, bare in pairs)
        ours, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
        cpus = len(base.processes)
        print(f"  speed-up from one CPU to {cpus}: actors {ours:.2f}, bare loops {bare:.2f}: kept {kept:.2f}")
    for contestant in running:
        if contestant.notes:
            share = statistics.median(contestant.notes)
            print(f"  {contestant.name}: Ray's share of a round (what it took beyond its busiest actor) {share:.1%}")
    print(
        "  samples/s over the wall clock; per CPU-s: for each second of CPU it got, which a busy machine changes less"
    )


if __name__ == "__main__":
    main()
