"""The overhead of the actors, and the gain of a GPU. ``make bench`` runs it.

    python tests/benchmarks/actors.py [--only noop memory clustering gpu] [--data FOLDER]

noop        a round without training: 1,000 devices on 2 actors; 20 devices with an actor each
memory      memory of each device actor at the paper's setting (Fashion-MNIST, N = 100, H = 50, M = 5)
clustering  Algorithm 2 with the mini model on all 100 devices, on 2 actors
gpu         50 devices trained at once, compared with a sequential loop on the same GPU; skipped without a GPU

Fashion-MNIST is read from FOLDER or $HFLRAY_DATA; without it, noise of its shape and size is used.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a file

from hflray.config import ExperimentConfig, load_config
from hflray.cost import Schedule
from hflray.experiment import Experiment
from hflray.models import MINI, build_model, init_vector, load_vector
from hflray.models.problem import Problem
from hflray.training.hierarchy import RayHierarchy, start_ray
from hflray.training.job import LocalJob
from hflray.training.local import DeviceHost
from hflray.training.state import RoundTask
from tests.benchmarks._bare import yardstick_s
from tests.benchmarks._report import Table, arguments, publish
from tests.training.test_local import make_data, make_job

PASSES_OF_A_SAMPLE = 5.52e6  # floating-point operations of the forward pass and all gradients except the images'
PARTS = ("noop", "memory", "clustering", "gpu")


def paper(folder: str | None, *overrides: str) -> ExperimentConfig:
    """Return the paper's setting on Fashion-MNIST, or on noise of its shape."""
    data = ["data.name=synthetic", "data.samples_per_device=[400, 700]"]
    if folder and (Path(folder) / "fashion_mnist.npz").is_file():
        data = ["data.name=fashion_mnist", f"data.root={folder}"]
    return load_config(None, [*data, "scheduling.name=fedavg", "assignment.name=geographic", *overrides])


def noop(devices: int, actors: int, share: float, rounds: int = 30) -> tuple[float, float, float]:
    """Return the median and the best time of a round without training, and the time until the first round ended, s."""
    begin = time.perf_counter()
    job, data = make_job(local_iterations=0, problem=Problem((1, 10, 10), 3, model=MINI)), make_data((1,) * devices)
    vector = init_vector(build_model("mini", (1, 10, 10), 3), np.random.default_rng(0))
    pool = RayHierarchy(job, data, num_edges=5, num_actors=actors, cpus_per_actor=share)
    times, ready = [], 0.0
    try:
        for index in range(rounds + 1):
            start = time.perf_counter()
            everyone = np.arange(devices)
            task = RoundTask(index, Schedule(everyone, everyone % 5), np.ones((1, devices), dtype=bool))
            pool.train_round(task, pool.setting.start(vector))
            times.append(time.perf_counter() - start)
            ready = ready or time.perf_counter() - begin
    finally:
        pool.close()
    return statistics.median(times[1:]), min(times), ready


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the proportional set size (shared pages divided) and the resident set size of a process, MB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return sizes["Pss:"], sizes["Rss:"]


def memory(config: ExperimentConfig) -> list[tuple[float, float]]:
    """Return `memory_mb` of each device actor after two rounds with evaluation."""
    import ray

    with Experiment(config) as experiment:
        for _ in range(2):
            experiment.run_round()
        hierarchy = experiment.hierarchy
        assert isinstance(hierarchy, RayHierarchy)
        return [memory_mb(pid) for pid, _ in ray.get([actor.about.remote() for actor in hierarchy.pool.devices])]


def clustering(config: ExperimentConfig) -> tuple[float, float]:
    """Return the seconds of Algorithm 2 after the actors have started, and its ARI."""
    import ray

    with Experiment(config) as experiment:
        hierarchy = experiment.hierarchy
        assert isinstance(hierarchy, RayHierarchy)
        ray.get([actor.about.remote() for actor in hierarchy.pool.devices])
        begin = time.perf_counter()
        experiment.cluster()
        return time.perf_counter() - begin, experiment.clustering["ari"]


def at_once(device: str, devices: int, samples: int, repeats: int, precision: str = "float32") -> tuple[float, float]:
    """Return the samples per second of a bare loop over the devices, and of the batched kernel, on `device`."""
    shape, local_iterations, batch = (1, 28, 28), 5, 64
    rng = np.random.default_rng(0)
    module = build_model("hfl", shape, 10).to(device)
    start = init_vector(module, rng)
    count = devices * samples
    x, y = rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 10, count)
    own = [(torch.tensor(x[part]).float().to(device) / 255, torch.tensor(y[part]).to(device))
           for part in np.arange(count).reshape(devices, samples)]  # fmt: skip

    def bare() -> None:
        for images, labels in own:
            load_vector(module, start)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.01)
            for _ in range(local_iterations):
                for chosen in torch.randperm(samples, device=device).split(batch):
                    optimiser.zero_grad()
                    torch.nn.functional.cross_entropy(module(images[chosen]), labels[chosen]).backward()
                    optimiser.step()

    job = LocalJob(Problem(shape, 10), seed=0, local_iterations=local_iterations, batch_size=batch, kernel="batched",
                   device=device, precision=precision)  # type: ignore[arg-type]  # fmt: skip
    data = dataclasses.replace(make_data(), x=x, y=y, index=np.arange(count), offsets=np.arange(0, count + 1, samples))
    host = DeviceHost(job, data)

    def batched() -> None:
        host.train_each(start, range(devices))

    def seconds(run: object) -> float:
        begin = time.perf_counter()
        run()  # type: ignore[operator]
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for run in (bare, batched):
        seconds(run)
    turns = [(seconds(bare), seconds(batched)) for _ in range(repeats)]
    one, all_of_them = (count * local_iterations / statistics.median(column) for column in zip(*turns, strict=True))
    return one, all_of_them


def noop_table(quick: bool) -> Table:
    """Measure rounds without training."""
    columns = [
        ("row", "", ""),
        ("median_ms", "median, ms", ".1f"),
        ("best_ms", "best, ms", ".1f"),
        ("first_s", "the first was over after, s", ".1f"),
    ]
    table = Table("rounds in which nothing is trained", columns, [], key="actors/no-op round")
    settings = (("100 devices", 100, 2, 1.0), ("4 devices, an actor each", 4, 4, 0.1))
    if not quick:
        settings = (("1,000 devices", 1000, 2, 1.0), ("20 devices, an actor each", 20, 20, 0.1))
    for name, *setting in settings:
        loop_s = yardstick_s()
        median_s, best_s, ready_s = noop(*setting)
        loop_s = (loop_s + yardstick_s()) / 2
        row: dict[str, object] = {"median_ms": 1e3 * median_s, "best_ms": 1e3 * best_s, "first_s": ready_s}
        table.rows.append({"row": name} | row)
        table.ratios[name] = loop_s / median_s
    table.notes.append("ratios: rounds in the time of a bare loop")
    return table


def memory_table(data: str | None, quick: bool) -> Table:
    """Measure the memory of the device actors."""
    columns = [
        ("row", "", ""),
        ("actors", "actors", "d"),
        ("pss_mb", "MB of each at most", ".0f"),
        ("rss_mb", "resident, MB", ".0f"),
    ]
    table = Table("memory of the device actors, after two rounds", columns, [], key="actors/memory")
    few = 4 if quick else 20
    for name, pool in (("2 actors", "training.num_actors=2"), ("an actor each", "training.devices_per_actor=1")):
        small = () if pool.endswith("2") else (f"scheduling.num_scheduled={few}",)
        each = memory(paper(data, pool, "training.local_iterations=1", "training.edge_iterations=1", *small))
        pss, rss = (max(column) for column in zip(*each, strict=True))
        table.rows.append({"row": name, "actors": len(each), "pss_mb": pss, "rss_mb": rss})
    return table


def clustering_table(data: str | None, quick: bool) -> Table:
    """Measure Algorithm 2."""
    columns = [("row", "", ""), ("s", "s on 2 actors", ".1f"), ("ari", "ARI", ".2f")]
    table = Table("clustering all devices", columns, [], key="actors/clustering")
    small = ("fleet.num_devices=20", "scheduling.num_scheduled=10") if quick else ()
    for name in ("ikc", "vkc"):
        loop_s = yardstick_s()
        seconds, ari = clustering(paper(data, f"scheduling.name={name}", *small))
        table.rows.append({"row": name, "s": seconds, "ari": ari})
        table.ratios[name] = (loop_s + yardstick_s()) / 2 / seconds
    table.notes.append("ratios: clusterings in the time of a bare loop")
    return table


def gpu_table(quick: bool) -> Table:
    """Measure many devices at once on a GPU and a sequential loop on the same GPU."""
    columns = [
        ("row", "", ""),
        ("one", "sequential, samples/s", ",.0f"),
        ("together", "50 devices at once", ",.0f"),
        ("ratio", "x", ".1f"),
        ("tflops", "TFLOP/s", ".2f"),
        ("product_tflops", "matrix product, TFLOP/s", ".1f"),
    ]
    table = Table("training on a GPU", columns, [], key="actors/gpu")
    if not torch.cuda.is_available():
        table.not_measured = "torch finds no CUDA device"
        return table
    table.title += f", {torch.cuda.get_device_name()}"
    for precision in ("float32", "tf32", "bf16"):
        one, together = at_once("cuda", 50, 550, repeats=1 if quick else 5, precision=precision)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        a = torch.randn(8192, 8192, device="cuda", dtype=kind)
        best = 9e9
        for _ in range(10):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            a @ a
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        table.rows.append(
            {
                "row": precision,
                "one": one,
                "together": together,
                "ratio": together / one,
                "tflops": together * PASSES_OF_A_SAMPLE / 1e12,
                "product_tflops": 2 * 8192**3 / best / 1e12,
            }
        )
        table.ratios[precision] = together / one
    return table


def tables(only: Sequence[str], data: str | None, quick: bool) -> Iterator[Table]:
    """Measure, and yield each table as soon as it is measured. The arguments are those of the command line."""
    if set(only) != {"gpu"}:
        start_ray(2)
    if "noop" in only:
        yield noop_table(quick)
    if "memory" in only:
        yield memory_table(data, quick)
    if "clustering" in only:
        yield clustering_table(data, quick)
    if "gpu" in only:
        yield gpu_table(quick)


def main() -> None:
    """Print the tables."""
    parser = arguments(__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--data", default=os.environ.get("HFLRAY_DATA"), help="folder of fashion_mnist.npz")
    options = parser.parse_args()
    publish(tables(options.only, options.data, options.quick), options.json)


if __name__ == "__main__":
    main()
