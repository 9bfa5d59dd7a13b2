"""Local training compared with a bare PyTorch loop, Flower and pfl-research in one run.

All contestants do the same work: H devices of about 550 samples, the network of `model`, batch 64, and one
aggregation (Q = M = 1, because the peers have no edges). Speed does not depend on which 50 of 100 devices are
scheduled, so only the scheduled ones exist. All contestants run at the same time and train one round each in turn, so
that other work on the machine affects them alike. Every figure is a median of the turns' ratios. Before the timing, two
full-batch steps from the same start must give all of them the same aggregated weights to a relative 1e-4.

`actors-eager` is hflray's actors with the gradient step of the peers. The difference between it and the peers is the
platforms' overhead (part of hflray's is a heap that keeps its memory), and the difference between it and `actors` is
the gain of the kernel.

Flower and pfl-research have their own virtual environments in ~/.cache/hflray/bench, which ``python -m tests.benchmarks
peers`` makes from PyPI. The row of a peer without an environment says "not measured".
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.config import TrainingConfig
from hflray.models import initial_vector
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.support.limits import available_cpus
from hflray.support.private import cache_folder
from hflray.training.kernels import settled
from tests.benchmarks._report import Processes, Table, conditions
from tests.models.samples import build_model

# What each network learns, and the mean and deviation of its images.
PROBLEMS = {
    "paper_cnn": Problem((1, 28, 28), 10),
    "resnet8": Problem((3, 32, 32), 10, model=ModelSpec("resnet8")),
    "gru": Problem((40,), 96, model=ModelSpec("gru"), kind="next_token", num_tokens=96),
}
MOMENTS = {"paper_cnn": ([0.2860], [0.3530]), "resnet8": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])}
SOURCES = {"paper_cnn": "fashion_mnist", "resnet8": "cifar10"}
ROOT, PEERS = Path(__file__).parents[2], Path(__file__).parent / "peers"
FULL_STEPS = 2  # full-batch steps that must give all the same weights; two steps also test L
LARGEST_DIFFERENCE = 1e-4  # relative difference of these weights; float32 sums in another order give 1e-7
BATCH = 64
PINS = {"flwr": "flwr[simulation]==1.41.0", "pfl": "pfl[pytorch]==0.6.0"}
Command = list[str]


@dataclass
class Contestant:
    """One row of the table: one process, or for the bare loop one process per CPU.

    Attributes:
        name: name, whose first word identifies the contestant.
        commands: commands of the processes.
        workers: number of processes that train at the same time.
        threads: number of torch threads of each of them.
        kernel: `peers`, or the name of hflray's kernel.
        notes: report of each process about each round.
    """

    name: str
    commands: list[Command]
    workers: int = 1
    threads: int = 1
    kernel: str = "peers"
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    start_s: float = 0.0
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def word(self) -> str:
        """The first word of the name."""
        return self.name.split()[0]

    def start(self) -> None:
        """Start the processes."""
        begin = time.perf_counter()
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}", "PYTHONWARNINGS": "ignore"}
        # Ray's workers have niceness 15, so that on a busy machine bare loops would get more of a CPU than they.
        env |= {"RAY_worker_niceness": "0"}
        log = (cache_folder("bench") / f"{self.word}.log").open("w")
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
            for command in self.commands
        ]
        self._wait("ready")
        self.start_s = time.perf_counter() - begin

    def round(self, local_iterations: int, batch_size: int = BATCH, save: Path | None = None) -> float:
        """Train one round and return its seconds; `save` is a folder for each process's model."""
        begin = time.perf_counter()
        for index, process in enumerate(self.processes):
            command = {
                "local_iterations": local_iterations, "batch_size": batch_size,
                "save": str(self._path(save, index)) if save else None,
            }  # fmt: skip
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        self._wait("done")
        return time.perf_counter() - begin

    def _path(self, folder: Path, index: int) -> Path:
        return folder / f"{self.word}-{index}.npy"

    def model(self, folder: Path, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the model that `round` has saved, (P,), averaged over the processes by `sizes`, D_n, (H,)."""
        count = len(self.processes)
        models = [np.load(self._path(folder, index)).astype(np.float64) for index in range(count)]
        return np.average(models, axis=0, weights=[sizes[index::count].sum() for index in range(count)])

    def mistake(self) -> str:
        """Return what is wrong if a process reports another kernel or number of threads."""
        for note in self.notes:
            # Flower reports the weighted mean over its devices, which is rounded.
            if note["kernel"] != self.kernel or abs(note["threads"] - self.threads) > 1e-6:
                return (
                    f"{self.name} is to train with the kernel {self.kernel} and {self.threads} threads, and says "
                    f"{note['kernel']} and {note['threads']}: no comparison"
                )
        return ""

    def timed(self, local_iterations: int) -> None:
        """Train one round, and note its seconds and its CPU seconds."""
        counters = [Processes(process.pid) for process in self.processes]
        before = sum(counter.look() for counter in counters)
        self.seconds.append(self.round(local_iterations))
        self.cpu_seconds.append(sum(counter.look() for counter in counters) - before)

    def _wait(self, word: str) -> None:
        for process in self.processes:
            while (line := process.stdout.readline()).split()[:1] != [word]:  # Flower also prints to stdout
                if not line:
                    raise RuntimeError(f"{self.name} ended: see {cache_folder('bench')}/{self.word}.log")
            if word == "done":
                self.notes.append(json.loads(line.partition(" ")[2]))

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def environment(name: str, make: bool) -> Path:
    """Return the Python of a peer's virtual environment, which is made if it is missing and `make` is true.

    An environment of other versions than `PINS` and this process's torch counts as missing.

    Raises:
        RuntimeError: there is no environment; the message has the reason.
    """
    folder = cache_folder("bench") / name
    python, ready = folder / "bin" / "python", folder / "ready"
    # This process's version of torch is installed first, and pinned, so that a peer brings no other version.
    pins = f"torch=={torch.__version__.split('+')[0]}"
    wanted = f"{PINS[name]}\n{pins}\n"
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return python
    if not make:
        raise RuntimeError(f"there is none in {folder} of these versions; python -m tests.benchmarks peers makes it")
    print(f"installing {PINS[name]} into {folder} ...", flush=True)
    for step in (
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "-q", pins, "numpy"],
        [str(python), "-m", "pip", "install", "-q", pins, PINS[name]],
    ):
        result = subprocess.run(step, capture_output=True, text=True, timeout=1800, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines() or ["?"]
            raise RuntimeError(next((line for line in lines if line.startswith("ERROR")), lines[-1])[:200])
    ready.write_text(wanted, encoding="utf-8")
    return python


def make_environments() -> dict[str, str]:
    """Make the environments that are missing; return what is ready, or the reason why it is not, by peer."""
    found = {}
    for name, pin in PINS.items():
        try:
            found[name] = f"{pin}: ready in {environment(name, True).parents[1]}"
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            found[name] = f"{pin}: not made: {error}"
    return found


def characters(total: int, rng: np.random.Generator) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return windows of 40 characters of Python's own documentation, (total, 40), and the character after each."""
    from pydoc_data.topics import topics

    text = np.frombuffer("\n".join(topics.values()).encode("ascii", "replace"), np.uint8)
    codes = np.where((text >= 32) & (text < 127), text - 31, 0).astype(np.int32)  # 96 codes; 0 is any other character
    begin = rng.integers(0, len(codes) - 40, total)
    return codes[begin[:, None] + np.arange(40)], codes[begin + 40].astype(np.int64)


def make_work(folder: Path, devices: int, source: str | None, model: str = "paper_cnn") -> tuple[Path, int]:
    """Write the devices' data, or noise without `source`, and return the file and the number of samples."""
    problem = PROBLEMS[model]
    shape = problem.input_shape
    rng = np.random.default_rng(0)
    sizes = rng.integers(500, 601, devices)
    total = int(sizes.sum())
    if model == "gru":
        x, y = characters(total, rng)
    elif source:
        with np.load(source) as file:
            chosen = rng.permutation(len(file["y_train"]))[:total]
            x, y = file["x_train"][chosen], file["y_train"][chosen].astype(np.int64)
            x = x.transpose(0, 3, 1, 2) if x.shape[1:] == shape[1:] + shape[:1] else x.reshape(-1, *shape)
    else:
        x, y = rng.integers(0, 256, (total, *shape), dtype=np.uint8), rng.integers(0, 10, total)
    papers = model == "paper_cnn"
    start = init_vector(build_model("hfl", (1, 28, 28), 10), rng) if papers else initial_vector(problem, 0)
    mean, std = (np.array(moment, np.float32) for moment in MOMENTS.get(model, ([0.0], [1.0])))
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    np.savez(folder / "work.npz", x=x, y=y, offsets=offsets, start=start, mean=mean, std=std, model=model)
    return folder / "work.npz", total


def contestants(
    work: Path, cpus: Sequence[int], kernel: str, only: Sequence[str] | None, missing: dict[str, str]
) -> list[Contestant]:
    """Return the contestants of `only`; `missing` gets the reason of each that has no environment."""
    count = len(cpus)

    def command(script: str, *arguments: object, python: object = sys.executable) -> Command:
        return [str(python), str(PEERS / script), str(work), *map(str, arguments)]

    def ours(title: str, backend: str, workers: int, own_kernel: str, precision: str = "float32") -> Contestant:
        return Contestant(
            title, [command("ours.py", backend, workers, own_kernel, precision)], workers, kernel=own_kernel
        )

    def loops(title: str, *more: str, kernel: str = "peers") -> Contestant:
        commands = [command("bare.py", cpu, first, count, *more) for first, cpu in enumerate(cpus)]
        return Contestant(title, commands, count, kernel=kernel)

    everyone = [
        Contestant("bare1 (a)", [command("bare.py", cpus[0], 0, 1)]),
        loops("bare2 (b)"),
        *([loops("bare2-last", "channels_last", kernel="channels_last")] if kernel == "channels_last" else []),
        ours("serial (c)", "serial", 1, kernel),
        ours("actors-eager", "ray", count, "peers"),
        ours("actors (d)", "ray", count, kernel),
        ours("actors-bf16", "ray", count, "fused_bf16" if kernel == "fused" else kernel, "bf16"),
    ]
    # pfl-research computes in one process with threads. Another row has one thread, because other work slows
    # threads most.
    for name, title, script, workers, threads in (
        ("flwr", "flower (e)", "flower.py", count, 1),
        ("pfl", "pfl (f)", "pfl_research.py", 1, count),
        ("pfl", "pfl-1-thread", "pfl_research.py", 1, 1),
    ):
        try:
            python = environment(name, False)
        except RuntimeError as error:
            if only is None or title.split()[0] in only:
                missing[title] = f"no environment: {error}"
        else:
            everyone.append(Contestant(title, [command(script, workers * threads, python=python)], workers, threads))
    return [contestant for contestant in everyone if only is None or contestant.word in only]


def check_equal_work(running: list[Contestant], folder: Path) -> Table:
    """Return how far the models are from each other after `FULL_STEPS` full-batch steps from the same start.

    The table has failed if weights differ by more than `LARGEST_DIFFERENCE`, which bf16 may.
    """
    with np.load(folder / "work.npz") as file:
        start, sizes = file["start"].astype(np.float64), np.diff(file["offsets"])
    results = {}
    for contestant in running:
        contestant.round(FULL_STEPS, batch_size=10**6, save=folder)
        results[contestant.name] = contestant.model(folder, sizes)
    (first, reference), *others = results.items()
    rows: list[dict[str, object]] = []
    wrong = []
    for name, vector in others:
        distance = float(np.linalg.norm(vector - reference))
        error = distance / float(np.linalg.norm(reference))
        rows.append({"row": name, "weights": error, "learned": distance / float(np.linalg.norm(reference - start))})
        if name != "actors-bf16" and not error < LARGEST_DIFFERENCE:
            wrong.append(f"{name} does other work than {first} ({error:.1e} of the weights): no comparison")
    columns = [("row", "", ""), ("weights", "of the weights", ".1e"), ("learned", "of what was learned", ".1e")]
    title = f"{FULL_STEPS} full-batch steps: how far the models are from that of {first}"
    return Table("equal work", title, columns, rows, failed="; ".join(wrong))


def speed(local_iterations: int, repeats: int, load: float, running: list[Contestant], folder: Path) -> Table:
    """Train `repeats` rounds of each contestant in turns, and return the table of their speeds.

    `load` is the load average before the contestants were started.
    """
    with np.load(folder / "work.npz") as file:
        sizes, model = np.diff(file["offsets"]), str(file["model"])
    for contestant in running:
        contestant.round(local_iterations)  # the first round of a setting includes what is loaded once
        contestant.seconds, contestant.cpu_seconds, contestant.notes = [], [], []
    with conditions(load) as surroundings:
        for _ in range(repeats):
            for contestant in running:
                contestant.timed(local_iterations)
    table = report(running, int(sizes.sum()) * local_iterations, local_iterations, model)
    table.failed = "; ".join(filter(None, (contestant.mistake() for contestant in running)))
    if table.failed:
        table.ratios = {}
    surroundings.note(table)
    return table


def tables(
    repeats: int = 5, devices: int = 50, model: str = "paper_cnn", only: Sequence[str] | None = None,
    kernel: str = "auto", key: str = "training",
) -> Iterator[Table]:  # fmt: skip
    """Measure, and yield each table as soon as it is measured.

    Args:
        repeats: number of turns.
        devices: number of scheduled devices.
        model: the network, one of `PROBLEMS`.
        only: first words of the rows wanted.
        kernel: of hflray.
        key: the beginning of the tables' keys.
    """
    key = key if model == "paper_cnn" else f"{key}, {model}"
    file = Path(os.environ.get("HFLRAY_DATA", "")) / f"{SOURCES.get(model)}.npz"
    data = "characters of Python's documentation" if model == "gru" else SOURCES[model] if file.is_file() else "noise"
    cpus = available_cpus()[:2]
    with conditions() as surroundings:
        config = settled(TrainingConfig(kernel=kernel), PROBLEMS[model], 10**6)
    title = f"training: {devices} devices of {data}, {model}, kernel {config.kernel}, {len(cpus)} CPUs"
    yield Table(f"{key}/setting", title, facts={"cpus": len(cpus)})
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        work, _ = make_work(Path(scratch), devices, str(file) if file.is_file() else None, model)
        running = []
        for contestant in contestants(work, cpus, str(config.kernel), only, missing):
            stack.callback(contestant.stop)
            try:
                contestant.start()
                running.append(contestant)
            except RuntimeError as error:
                missing[contestant.name] = str(error)
        for make in (
            check_equal_work,
            partial(speed, 5, repeats, surroundings.load),
            partial(speed, 1, repeats, surroundings.load),
        ):
            table = make(running, Path(scratch))
            table.key = f"{key}/{table.key}"
            table.notes += [f"not measured: {name}: {reason}" for name, reason in missing.items()]
            yield table


def report(running: list[Contestant], passes: int, local_iterations: int, model: str = "paper_cnn") -> Table:
    """Return the table of the turns of all contestants."""
    base = next((contestant for contestant in running if contestant.word == "bare2"), running[0])
    columns = [
        ("row", "", ""), ("samples_per_s", "samples/s", ",.0f"), ("ratio", f"x {base.name.split()[-1]}", ".2f"),
        ("ratio_min", "least", ".2f"), ("ratio_max", "most", ".2f"), ("workers", "workers", "d"),
        ("threads", "threads each", "d"), ("cpus_used", "CPUs had", ".2f"), ("kernel", "kernel", ""),
        ("samples_per_cpu_s", "per CPU-s", ",.0f"),
        ("start_s", "start s", ".1f"),
    ]  # fmt: skip
    title = f"L = {local_iterations}: {passes} sample passes a round, medians of {len(base.seconds)} turns"
    table = Table(f"L = {local_iterations}", title, columns)
    seconds = {contestant.word: np.array(contestant.seconds) for contestant in running}

    def median_of(turns: NDArray[np.float64]) -> float:
        return float(np.median(turns))

    for contestant in running:
        own, cpu = seconds[contestant.word], np.array(contestant.cpu_seconds)
        ratios = seconds[base.word] / own
        table.add(
            contestant.name, samples_per_s=passes / median_of(own), ratio=median_of(ratios), ratio_min=ratios.min(),
            ratio_max=ratios.max(), workers=contestant.workers, threads=contestant.threads,
            cpus_used=median_of(cpu / own), kernel=contestant.kernel, samples_per_cpu_s=passes / median_of(cpu),
            start_s=contestant.start_s,
        )  # fmt: skip
        if contestant.word in ("serial", "actors-eager", "actors", "actors-bf16"):
            table.ratios[f"{contestant.name}, of {base.name}"] = median_of(ratios)
    if {"bare1", "bare2", "serial", "actors"} <= set(seconds):
        actors, bare = seconds["serial"] / seconds["actors"], seconds["bare1"] / seconds["bare2"]
        kept = table.ratios["speed-up kept, of two bare loops"] = median_of(actors / bare)
        table.notes.append(
            f"speed-up from one CPU to {len(base.processes)}: actors {median_of(actors):.2f}, bare loops "
            f"{median_of(bare):.2f}: kept {kept:.2f}"
        )
    alike = "bare2-last" if "bare2-last" in seconds else "bare2"
    if model != "paper_cnn" and {alike, "actors"} <= set(seconds):
        table.ratios["actors, of two bare loops with the same kernel"] = median_of(seconds[alike] / seconds["actors"])
    if {"bare2", "actors-eager", "actors"} <= set(seconds):
        platform = median_of(seconds["bare2"] / seconds["actors-eager"])
        gain = median_of(seconds["actors-eager"] / seconds["actors"])
        table.facts |= {"platform": platform, "kernel": gain}
        table.notes.append(
            f"against (b): platform {platform:.2f} (the peers' step in our actors), kernel {gain:.2f} on top of it"
        )
    table.notes.append(
        "samples/s over the wall clock; per CPU-s: for each second of CPU it got, which a busy machine changes less"
    )
    return table
