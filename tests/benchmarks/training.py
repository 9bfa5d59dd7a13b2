"""Local training compared with a bare PyTorch loop, Flower and pfl-research in one run. ``make bench`` runs it.

    python tests/benchmarks/training.py [--quick] [--data fashion_mnist.npz] [--repeats 3] [--only bare1,bare2,...]
        [--one-core] [--installed-peers] [--model paper_cnn|resnet8|gru]

All contestants do the same work: H devices of about 550 samples, the network of ``--model``, batch 64, and one
aggregation (Q = M = 1, because the peers have no edges). Speed does not depend on which 50 of 100 devices are
scheduled, so only the scheduled ones exist. All contestants run at the same time and train one round each in turn, so
that other work on the machine affects them alike. Every figure is a median of the turns' ratios. Before the timing, two
full-batch steps from the same start must give all of them the same aggregated weights to a relative 1e-4. After the
timed rounds, in which each has its own order of batches, the models must have about the same loss on the training data.

`actors-eager` is hflray's actors with the gradient step of the peers. The difference between it and the peers is the
platforms' overhead (part of hflray's is a heap that keeps its memory), and the difference between it and `actors` is
the gain of the kernel. A last table gives Ray's share of a round at the paper's Q = 5, M = 5, at which the serial
backend and the actors must end with the same bits.

Flower and pfl-research have their own virtual environments in ~/.cache/hflray/bench, which are made from PyPI on first
use, or before by ``python -m tests.benchmarks peers``, as `make bench` does. With ``--installed-peers`` none is made,
and the row of a peer without an environment says "not measured".
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.config import TrainingConfig
from hflray.models import build, build_model, init_vector, initial_vector, load_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.support.cache import cache_folder
from hflray.training.job import torch_threads
from hflray.training.kernels import settled
from hflray.training.machine import available_cpus
from tests.benchmarks._report import Table, arguments, conditions, publish

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
LARGEST_LOSS_RATIO = 1.1  # after the timed rounds; another order of the batches alone gave 1.04 (4 devices)
EDGES = (5, 5)  # Q and M of the paper
SHARES = ("ray", "waiting", "beyond_busiest")  # of a round; see peers/ours.py
BATCH, PASSES_OF_A_SAMPLE = (
    64,
    5.52e6,
)  # floating-point operations of the forward pass and all gradients except the images'
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
    peak_mb: float = 0.0
    notes: list[dict[str, Any]] = field(default_factory=list)

    def start(self) -> None:
        begin = time.perf_counter()
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PEERS}", "PYTHONWARNINGS": "ignore"}
        # Ray's workers have niceness 15, so that on a busy machine bare loops would get more of a CPU than they.
        env |= {"RAY_worker_niceness": "0"}
        for command in self.commands:
            log = (cache_folder("bench") / f"{self.name.split()[0]}.log").open("w")
            self.processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
            )
        self._wait("ready")
        self.start_s = time.perf_counter() - begin

    def round(
        self, local_iterations: int, batch_size: int = BATCH, save: Path | None = None, edges: tuple[int, int] = (1, 1)
    ) -> float:
        """Train one round and return its seconds; `save` is a folder for each process's model, `edges` are Q and M."""
        begin = time.perf_counter()
        for index, process in enumerate(self.processes):
            command = {
                "local_iterations": local_iterations,
                "batch_size": batch_size,
                "save": str(self._path(save, index)) if save else None,
                "edge_iterations": edges[0],
                "num_edges": edges[1],
            }
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
        self._wait("done")
        return time.perf_counter() - begin

    def _path(self, folder: Path, index: int) -> Path:
        return folder / f"{self.name.split()[0]}-{index}.npy"

    def model(self, folder: Path, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the model that `round` has saved, (P,), averaged over the processes by `sizes`, D_n, (H,)."""
        count = len(self.processes)
        models = [np.load(self._path(folder, index)).astype(np.float64) for index in range(count)]
        return np.average(models, axis=0, weights=[sizes[index::count].sum() for index in range(count)])

    def check(self) -> None:
        """Raise AssertionError if a process reports another kernel or number of threads."""
        for note in self.notes:
            # Flower reports the weighted mean over its devices, which is rounded.
            if note["kernel"] != self.kernel or abs(note["threads"] - self.threads) > 1e-6:
                raise AssertionError(
                    f"{self.name} is to train with the kernel {self.kernel} and {self.threads} threads, and says "
                    f"{note['kernel']} and {note['threads']}: no comparison"
                )

    def timed(self, local_iterations: int, **options: Any) -> None:
        before, watch = self.cpu_time(), _Peak(self)
        self.seconds.append(self.round(local_iterations, **options))
        self.cpu_seconds.append(self.cpu_time() - before)
        self.peak_mb = max(self.peak_mb, watch.stop())

    def _wait(self, word: str) -> None:
        for process in self.processes:
            while (line := process.stdout.readline()).split()[:1] != [word]:  # Flower also prints to stdout
                if not line:
                    raise RuntimeError(f"{self.name} ended: see {cache_folder('bench')}/{self.name.split()[0]}.log")
            if word == "done":
                self.notes.append(json.loads(line.partition(" ")[2]))

    def stop(self) -> None:
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()

    def tree(self) -> set[int]:
        """Return the ids of the processes and their descendants."""
        parents: dict[int, int] = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
        pids = {process.pid for process in self.processes}
        while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
            pids |= more
        return pids

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
        """Return the proportional set size of all processes, MB, which counts shared pages once."""
        total = 0
        for pid in self.tree():
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
            except OSError:
                continue
        return total / 1024


class _Peak:
    """Sample a contestant's memory while it trains, every two seconds, because reading it takes time."""

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


def environment(name: str, make: bool = True) -> Path:
    """Return the Python of a peer's virtual environment, which is made if it is missing and `make` is true.

    An environment of other versions than `PINS` and this process's torch counts as missing.

    Raises RuntimeError with the reason if there is no environment.
    """
    folder = cache_folder("bench") / name
    python = folder / "bin" / "python"
    # This process's version of torch is installed first, and pinned, so that a peer brings no other version.
    wanted = f"{PINS[name]}\ntorch=={torch.__version__.split('+')[0]}\n"
    ready = folder / "ready"
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return python
    if not make:
        raise RuntimeError(f"there is none in {folder} of these versions; python -m tests.benchmarks peers makes it")
    print(f"installing {PINS[name]} into {folder} ...", flush=True)
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "-q", wanted.splitlines()[1], "numpy"],
        [str(python), "-m", "pip", "install", "-q", "-c", str(folder / "pins.txt"), PINS[name]],
    ]
    for step in steps:
        result = subprocess.run(step, capture_output=True, text=True, timeout=1800, check=False)
        if result.returncode:
            lines = result.stderr.strip().splitlines()
            raise RuntimeError(next((line for line in lines if line.startswith("ERROR")), (lines or ["?"])[-1])[:200])
        (folder / "pins.txt").write_text(f"{wanted.splitlines()[1]}\n", encoding="utf-8")
    ready.write_text(wanted, encoding="utf-8")
    return python


def make_environments() -> dict[str, str]:
    """Make the environments that are missing; return what is ready, or the reason why it is not, by peer."""
    found = {}
    for name, pin in PINS.items():
        try:
            found[name] = f"{pin}: ready in {environment(name).parents[1]}"
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


def matmul_peak(cpu: int) -> float:
    """Return the FLOP/s of one CPU's float32 matrix product, by CPU time, the best of 40."""
    code = (
        "import os,time,torch\n"
        f"hasattr(os,'sched_setaffinity') and os.sched_setaffinity(0,{{{cpu}}})\n"
        "torch.set_num_threads(1); a=torch.randn(1024,1024); best=9e9\n"
        "for _ in range(40):\n t=time.process_time(); a@a; best=min(best,time.process_time()-t)\n"
        "print(2*1024**3/best)"
    )
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def contestants(
    work: Path,
    cpus: tuple[int, ...],
    kernel: str,
    only: list[str] | None,
    missing: dict[str, str] | None = None,
    make: bool = True,
) -> list[Contestant]:
    """Return the contestants of `only`; `missing` gets the reason of each that cannot start. `make` is as in
    `environment`.
    """
    python, count = sys.executable, len(cpus)

    def selected(title: str) -> bool:
        return only is None or title.split()[0] in only

    def peer(interpreter: object, script: str, *arguments: object) -> Command:
        return [str(interpreter), str(PEERS / script), str(work), *map(str, arguments)]

    def ours(title: str, backend: str, workers: int, own_kernel: str, precision: str = "float32") -> Contestant:
        command = peer(python, "ours.py", backend, workers, own_kernel, precision)
        return Contestant(title, [command], workers, kernel=own_kernel)

    everyone = [
        Contestant("bare1 (a)", [peer(python, "bare.py", cpus[0], 0, 1)]),
        Contestant("bare2 (b)", [peer(python, "bare.py", cpu, first, count) for first, cpu in enumerate(cpus)], count),
        *(
            [
                Contestant(
                    "bare2-last",
                    [peer(python, "bare.py", cpu, first, count, "channels_last") for first, cpu in enumerate(cpus)],
                    count,
                    kernel="channels_last",
                )
            ]
            if kernel == "channels_last"
            else []
        ),
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
        if not selected(title):
            continue
        try:
            command = peer(environment(name, make), script, workers * threads)
        except (RuntimeError, subprocess.TimeoutExpired, OSError) as error:
            if missing is not None:
                missing[title] = f"no environment: {error}"
            continue
        everyone.append(Contestant(title, [command], workers, threads))
    return [contestant for contestant in everyone if selected(contestant.name)]


def failures(*checks: Callable[[], object]) -> str:
    """Return what the checks that raise an AssertionError say; empty if none does."""
    found = []
    for check in checks:
        try:
            check()
        except AssertionError as error:
            found.append(str(error))
    return "; ".join(found)


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
    return Table(title, columns, rows, key="equal work", failed="; ".join(wrong))


def training_loss(model: NDArray[np.float64], work: Path) -> float:
    """Return the mean cross-entropy of a model, (P,), on all devices' samples."""
    with np.load(work) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        mean, std = (torch.from_numpy(file[moment]).view(-1, 1, 1) for moment in ("mean", "std"))
        module = build(PROBLEMS[str(file["model"])])
    load_vector(module, model.astype(np.float32))

    def normalised(part: torch.Tensor) -> torch.Tensor:
        return (part.float() / 255 - mean) / std if part.dtype == torch.uint8 else part.long()

    # On a busy machine threads wait for each other; the loss of a ResNet-8 then took minutes.
    with torch.no_grad(), torch_threads(1):
        parts = [
            torch.nn.functional.cross_entropy(module(normalised(inputs)), labels, reduction="sum")
            for inputs, labels in zip(x.split(1000), y.split(1000), strict=True)
        ]
    return float(sum(parts)) / len(y)


def check_equal_loss(losses: dict[str, float]) -> None:
    """Raise AssertionError if a model's loss differs from the first one's by more than `LARGEST_LOSS_RATIO`."""
    (first, reference), *others = losses.items()
    for name, loss in others:
        if not reference / LARGEST_LOSS_RATIO <= loss <= reference * LARGEST_LOSS_RATIO:
            raise AssertionError(f"{name} trained to a loss of {loss:.4f}, {first} to {reference:.4f}: no comparison")


def speed(
    running: list[Contestant], folder: Path, local_iterations: int, repeats: int, peak: float, load: float
) -> Table:
    """Train `repeats` rounds of each contestant in turns, and return the table of their speeds.

    `load` is the load average before the contestants were started.
    """
    with np.load(folder / "work.npz") as file:
        sizes, model = np.diff(file["offsets"]), str(file["model"])
    for contestant in running:
        contestant.round(local_iterations)  # the first round of a setting includes what is loaded once
        contestant.seconds, contestant.cpu_seconds, contestant.notes = [], [], []
    with conditions(load=load) as surroundings:
        for turn in range(repeats):
            for contestant in running:
                contestant.timed(local_iterations, save=folder if turn == repeats - 1 else None)
    losses = {contestant.name: training_loss(contestant.model(folder, sizes), folder / "work.npz")
              for contestant in running}  # fmt: skip
    table = report(running, int(sizes.sum()) * local_iterations, local_iterations, peak, losses, model)
    table.failed = failures(*(contestant.check for contestant in running), partial(check_equal_loss, losses))
    if table.failed:
        table.ratios = {}
    table.facts |= surroundings.facts()
    table.notes += surroundings.text().splitlines()
    return table


def ray_share(running: list[Contestant], folder: Path, repeats: int) -> Table:
    """Return Ray's share of a round at Q = 5, M = 5.

    The table has failed if the serial backend and the actors end with other bits.
    """
    edge_iterations, num_edges = EDGES
    with np.load(folder / "work.npz") as file:
        sizes = np.diff(file["offsets"])
    ours = [contestant for contestant in running if contestant.name in ("serial (c)", "actors (d)")]
    rows: list[dict[str, object]] = []
    wrong = []
    for local_iterations in (5, 1):
        for contestant in ours:
            contestant.round(local_iterations, edges=EDGES)
            contestant.notes = []
            contestant.seconds = [contestant.round(local_iterations, save=folder, edges=EDGES) for _ in range(repeats)]
        wrong += [found for contestant in ours if (found := failures(contestant.check))]
        models = [contestant.model(folder, sizes) for contestant in ours]
        if any((model != models[0]).any() for model in models):
            wrong.append("the serial backend and the actors ended with other models: no comparison")
        for contestant in ours:
            reports = [note for note in contestant.notes if "ray" in note]
            if reports:
                medians = {
                    key: statistics.median(note[key] for note in reports)
                    for key in ("beyond_busiest", "waiting", "ray")
                }
                row = {"row": f"L = {local_iterations}", "round_s": statistics.median(contestant.seconds)}
                rows.append(row | medians)  # type: ignore[arg-type]
    columns = [
        ("row", "", ""),
        ("round_s", "a round, s", ".2f"),
        ("ray", "Ray's share (no actor trains)", ".2%"),
        ("waiting", "waiting for another actor", ".2%"),
        ("beyond_busiest", "both: beyond the busiest actor", ".2%"),
    ]
    title = f"Ray's share of a round at Q = {edge_iterations}, M = {num_edges}, medians of {repeats} rounds"
    table = Table(title, columns, rows, key="Ray's share", failed="; ".join(wrong))
    if len(ours) == 2 and not wrong:
        table.notes.append("serial (c) and actors (d) ended with the same bits")
    return table


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--data", help="fashion_mnist.npz; default: the one in $HFLRAY_DATA, else noise of its shape")
    parser.add_argument("--repeats", type=int, help="turns (default 5; quick 2)")
    parser.add_argument("--devices", type=int, help="scheduled devices (default 50; quick 10)")
    parser.add_argument("--only", help="first words of the rows wanted, with commas")
    parser.add_argument("--one-core", action="store_true", help="only what trains in one process: bare1, serial")
    parser.add_argument("--installed-peers", action="store_true", help="make no environment that a peer lacks")
    parser.add_argument("--model", choices=list(PROBLEMS), default="paper_cnn", help="the network that is trained")
    parser.add_argument("--kernel", help="of hflray; default: as hflray chooses")
    options = parser.parse_args()
    result = tables(
        repeats=options.repeats or (2 if options.quick else 5),
        devices=options.devices or (10 if options.quick else 50),
        source=options.data,
        only=["bare1", "serial"] if options.one_core else options.only.split(",") if options.only else None,
        kernel=options.kernel,
        make=not options.installed_peers,
        key="training, one core" if options.one_core else "training",
        model=options.model,
    )
    publish(result, options.json)


def tables(
    repeats: int,
    devices: int,
    source: str | None = None,
    only: list[str] | None = None,
    kernel: str | None = None,
    make: bool = True,
    key: str = "training",
    model: str = "paper_cnn",
) -> Iterator[Table]:
    """Measure, and yield each table as soon as it is measured. The arguments are those of the command line.

    The tables' keys begin with `key`.
    """
    key = key if model == "paper_cnn" else f"{key}, {model}"
    default = Path(os.environ.get("HFLRAY_DATA", "")) / f"{SOURCES.get(model)}.npz"
    source = source or (str(default) if default.is_file() else None)
    data = "characters of Python's documentation" if model == "gru" else SOURCES[model] if source else "noise"
    cpus = available_cpus()[:2]
    with conditions() as surroundings:
        config = settled(TrainingConfig(kernel=kernel or "auto"), PROBLEMS[model], 10**6)
        peak = matmul_peak(cpus[0])
    what = f"training: {devices} devices of {data}, {model}, kernel {config.kernel}"
    facts = {"matmul_flops": peak, "cpus": len(cpus), **surroundings.facts()}
    title = f"{what}, {len(cpus)} CPUs, matmul {peak / 1e9:.0f} GFLOP/s on one"
    yield Table(title, [], [], facts, surroundings.text().splitlines(), key=f"{key}/setting")
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        work, _ = make_work(folder, devices, source, model)
        running = []
        for contestant in contestants(work, cpus, str(config.kernel), only, missing, make):
            try:
                contestant.start()
                running.append(contestant)
            except RuntimeError as error:
                missing[contestant.name] = str(error)
        try:
            for table in measured(running, folder, repeats, peak, surroundings.load):
                table.key = f"{key}/{table.key}"
                table.rows += [
                    {name: None for name, _, _ in table.columns} | {"row": f"{title}: not measured"}
                    for title in missing
                    if table.ratios
                ]
                table.notes += [f"not measured: {title}: {reason}" for title, reason in missing.items()]
                yield table
        finally:
            for contestant in running:
                contestant.stop()


def measured(running: list[Contestant], folder: Path, repeats: int, peak: float, load: float) -> Iterator[Table]:
    """Yield the tables of contestants that have started."""
    yield check_equal_work(running, folder)
    for local_iterations in (5, 1):
        yield speed(running, folder, local_iterations, repeats, peak, load)
    if any(contestant.name == "actors (d)" for contestant in running):
        yield ray_share(running, folder, repeats)


def named_kernel(running: list[Contestant]) -> str:
    """Return the kernel of hflray's actors."""
    return next((contestant.kernel for contestant in running if contestant.name == "actors (d)"), "")


def report(
    running: list[Contestant],
    passes: int,
    local_iterations: int,
    peak: float,
    losses: dict[str, float],
    model: str = "paper_cnn",
) -> Table:
    """Return the table of the turns of all contestants."""
    base = next((c for c in running if c.name.startswith("bare2")), running[0])
    papers = model == "paper_cnn"
    rows: list[dict[str, object]] = []
    for contestant in running:
        ratios = [b / s for s, b in zip(contestant.seconds, base.seconds, strict=True)]
        per_cpu = passes / statistics.median(contestant.cpu_seconds)
        used = [cpu / wall for cpu, wall in zip(contestant.cpu_seconds, contestant.seconds, strict=True)]
        rows.append(
            {
                "row": contestant.name,
                "samples_per_s": passes / statistics.median(contestant.seconds),
                "ratio": statistics.median(ratios),
                "ratio_min": min(ratios),
                "ratio_max": max(ratios),
                "workers": contestant.workers,
                "threads": contestant.threads,
                "cpus_used": statistics.median(used),
                "kernel": contestant.kernel,
                "samples_per_cpu_s": per_cpu,
                "of_matmul": per_cpu * PASSES_OF_A_SAMPLE / peak if papers else None,
                "loss": losses[contestant.name],
                "peak_mb": contestant.peak_mb,
                "start_s": contestant.start_s,
            }
        )
    columns = [
        ("row", "", ""),
        ("samples_per_s", "samples/s", ",.0f"),
        ("ratio", f"x {base.name.split()[-1]}", ".2f"),
        ("ratio_min", "least", ".2f"),
        ("ratio_max", "most", ".2f"),
        ("workers", "workers", "d"),
        ("threads", "threads each", "d"),
        ("cpus_used", "CPUs had", ".2f"),
        ("kernel", "kernel", ""),
        ("samples_per_cpu_s", "per CPU-s", ",.0f"),
        ("of_matmul", "of matmul", ".0%"),
        ("loss", "loss", ".4f"),
        ("peak_mb", "peak MB", ",.0f"),
        ("start_s", "start s", ".1f"),
    ]
    title = f"L = {local_iterations}: {passes} sample passes a round, medians of {len(base.seconds)} turns"
    table = Table(title, columns, rows, key=f"L = {local_iterations}")
    ours = {"serial", "actors-eager", "actors", "actors-bf16"}
    table.ratios = {
        f"{row['row']}, of {base.name}": float(str(row["ratio"])) for row in rows if str(row["row"]).split()[0] in ours
    }
    named = {contestant.name.split()[0]: contestant.seconds for contestant in running}
    if {"bare1", "bare2", "serial", "actors"} <= set(named):
        turns = zip(*(named[name] for name in ("bare1", "bare2", "serial", "actors")), strict=True)
        pairs = [(serial / actors, one / two) for one, two, serial, actors in turns]
        kept = statistics.median(mine / bare for mine, bare in pairs)
        mine, bare = (statistics.median(column) for column in zip(*pairs, strict=True))
        cpus = len(base.processes)
        table.facts |= {"speedup_actors": mine, "speedup_bare": bare, "speedup_kept": kept}
        table.ratios["speed-up kept, of two bare loops"] = kept
        table.notes.append(
            f"speed-up from one CPU to {cpus}: actors {mine:.2f}, bare loops {bare:.2f}: kept {kept:.2f}"
        )
    alike = "bare2" if named_kernel(running) == "eager" else "bare2-last"
    if model != "paper_cnn" and {alike, "actors"} <= set(named):
        kept = statistics.median(bare / ours for bare, ours in zip(named[alike], named["actors"], strict=True))
        table.ratios["actors, of two bare loops with the same kernel"] = kept
        table.notes.append(f"actors (d), of two bare loops with the same kernel ({alike}): {kept:.3f}")
    if {"bare2", "actors-eager", "actors"} <= set(named):
        turns = zip(*(named[name] for name in ("bare2", "actors-eager", "actors")), strict=True)
        factors = [(bare / eager, eager / ours) for bare, eager, ours in turns]
        platform, kernel = (statistics.median(column) for column in zip(*factors, strict=True))
        rate = {str(row["row"]).split()[0]: float(str(row["samples_per_cpu_s"])) for row in rows}
        by_cpu = rate["actors-eager"] / rate["bare2"], rate["actors"] / rate["actors-eager"]
        table.facts |= {"platform": platform, "kernel": kernel}
        table.facts |= {"platform_by_cpu": by_cpu[0], "kernel_by_cpu": by_cpu[1]}
        table.notes.append(
            f"against (b): platform {platform:.2f} (the peers' step in our actors), kernel {kernel:.2f} on top of it; "
            f"by CPU time {by_cpu[0]:.2f} and {by_cpu[1]:.2f}"
        )
    for contestant in running:
        beyond = [note["beyond_busiest"] for note in contestant.notes if "ray" in note]
        if beyond:
            share = statistics.median(beyond)
            table.facts[f"ray_share_{contestant.name.split()[0]}"] = share
            table.notes.append(
                f"{contestant.name}: Ray's share of a round (what it took beyond its busiest actor) {share:.1%}"
            )
    table.notes.append(
        "samples/s over the wall clock; per CPU-s: for each second of CPU it got, which a busy machine changes less"
    )
    return table


if __name__ == "__main__":
    main()
