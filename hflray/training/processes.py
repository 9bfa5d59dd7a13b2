"""The number of training processes, measured with real processes, because their shared resources decide it.

Processes on CPUs share cores, clock rates and memory bandwidth. Processes on a GPU share the card, which a single
process may leave idle while it prepares the next step. The measurements are saved like those of
`hflray.training.autotune`.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.losses import find_loss
from hflray.models import build, init_vector
from hflray.models.problem import Problem
from hflray.training.autotune import ENOUGH, MAX_BATCH, WORTH_MEASURING, remembered, sample_kernel, samples_per_second
from hflray.training.batched import BatchedTrainer
from hflray.training.kernels import KernelName, Precision
from hflray.training.machine import CpuClaim, available_cpus

log = logging.getLogger(__name__)

SECONDS, REPEATS = 0.25, 6  # the duration and number of measurements for each number of processes
GPU_COUNTS = (1, 2, 4)  # the numbers of processes that are tried on one card
GPU_SAMPLES = 1024  # samples in the measurement's data set; their values do not affect the speed
GPU_STEPS = 40  # steps of a call; an edge iteration of the paper's devices has about 45: 5 passes over 9 batches


@dataclass(frozen=True)
class Load:
    """The workload of a measuring process.

    `devices` is the number of devices that all processes train at once; 0 means one device with a CPU kernel.
    """

    kernel: KernelName
    problem: Problem
    batch_size: int
    precision: Precision
    device: str = "cpu"
    devices: int = 0
    steps: int = GPU_STEPS
    cuda_graph: bool | None = None


def useful_cpus(config: TrainingConfig, problem: Problem, passes_per_round: int, cpus: int) -> int:
    """Return how many of `cpus` CPUs get an actor: all of them, or half if the other half adds no speed.

    Nothing is measured, and all CPUs are used, without `autotune`, for small rounds, with several threads, and if
    `cpus` exceeds this machine's CPUs.
    """
    small = passes_per_round < WORTH_MEASURING or cpus < 2 or cpus > len(available_cpus())
    if small or not config.autotune or config.threads != 1 or config.kernel in ("compiled", "batched"):
        return cpus
    assert config.kernel != "auto"
    load = Load(config.kernel, problem, min(config.batch_size, MAX_BATCH), config.precision)
    counts = sorted({max(1, cpus // 2), cpus})
    key = {
        "measured": "pool",
        "counts": counts,
        "model": [*problem.measured_as, load.batch_size, config.precision, config.kernel],
    }
    return _smallest_sufficient(remembered(key, lambda: measure_rates(load, counts)))


def gpu_load(config: TrainingConfig, problem: Problem, devices: int) -> Load:
    """Return the workload that is measured for a GPU that trains `devices` devices at once."""
    batch = min(config.batch_size, MAX_BATCH)
    return Load("batched", problem, batch, config.precision, "cuda", devices, cuda_graph=config.cuda_graph)


def useful_gpu_processes(load: Load) -> int:
    """Return the number of processes on one GPU that together train fastest: 1, 2 or 4.

    Each process trains its share of the devices with the batched kernel. The measurement uses the first GPU that this
    process sees, or CPU tensors if the load says so.

    Raises:
        HflrayError: torch finds no GPU on this node, or the memory does not hold the measurement.
    """
    if load.device == "cuda" and not torch.cuda.is_available():
        raise HflrayError(
            f"training.device: 'cuda', but torch {torch.__version__} finds no CUDA device on {platform.node()}, which "
            "Ray says has one; install torch with CUDA there, or set training.device to cpu"
        )
    counts = [count for count in GPU_COUNTS if count <= load.devices]
    key = {
        "measured": "processes on a GPU",
        "gpu": torch.cuda.get_device_name() if load.device == "cuda" else load.device,
        "counts": counts,
        "load": _load_key(load),
    }
    return _smallest_sufficient(remembered(key, lambda: measure_rates(load, counts)))


def _load_key(load: Load) -> dict[str, Any]:
    """Return the load as a part of a measurement's key: for the paper's network that of hflray 0.1."""
    problem = load.problem
    fields = {name: value for name, value in asdict(load).items() if name != "problem"}
    fields |= {"image_shape": problem.input_shape, "num_classes": problem.num_outputs}
    of_0_1 = len(problem.measured_as) == len(problem.input_shape) + 1
    return fields if of_0_1 else fields | {"problem": problem.measured_as}


def measure_rates(load: Load, counts: Sequence[int]) -> dict[str, float]:
    """Return the total samples per second for each number of processes; 0 where the memory does not suffice."""
    rates = dict.fromkeys(map(str, counts), 0.0)
    with _measuring_processes(load, max(counts)) as workers:
        possible = [count for count in counts if count <= len(workers)]
        for _ in range(REPEATS):
            for count in possible:
                for worker in workers[:count]:
                    _write(worker, count)
                worker_rates = [float(_read(worker)) for worker in workers[:count]]
                # The best repetition counts, because other programs may have used the machine during the others.
                rates[str(count)] = max(rates[str(count)], sum(worker_rates) if all(worker_rates) else 0.0)
    if not any(rates.values()):
        raise HflrayError(
            f"training.num_actors: the memory of {load.device} does not hold the measurement of the pool; set "
            "training.num_actors, or lower training.batch_size"
        )
    return rates


def _smallest_sufficient(rates: dict[str, float]) -> int:
    """Return the smallest number of processes whose rate is at least `ENOUGH` times the best."""
    return min(int(count) for count, rate in rates.items() if rate >= ENOUGH * max(rates.values()))


@contextmanager
def _measuring_processes(load: Load, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Run `count` measuring processes; yield those that are ready.

    Some may fail to start, for example on a GPU that serves one process only.
    """
    command, pipe = [sys.executable, "-m", "hflray.training.processes", json.dumps(asdict(load))], subprocess.PIPE
    # The package may be on this process's path only.
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    workers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) for _ in range(count)]
    try:
        ready = [worker for worker in workers if worker.stdout and worker.stdout.readline()]
        if len(ready) < count:
            log.warning("of %d processes on %s only %d could start", count, load.device, len(ready))
        if not ready:
            raise HflrayError("training.num_actors: measuring the pool failed (see above); set training.num_actors")
        yield ready
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def _read(worker: subprocess.Popen[str]) -> str:
    line = worker.stdout.readline() if worker.stdout else ""
    if not line:
        raise HflrayError("training.num_actors: measuring the pool failed (see above); set training.num_actors")
    return line


def _write(worker: subprocess.Popen[str], count: int) -> None:
    if worker.stdin:
        worker.stdin.write(f"{count}\n")
        worker.stdin.flush()


class _Batched:
    """Trains a share of the devices at once, like an actor in an edge iteration."""

    def __init__(self, load: Load) -> None:
        self._load, rng = load, np.random.default_rng(0)
        module = build(load.problem)
        self._start = init_vector(module, rng)
        self._trainer = BatchedTrainer(
            module, find_loss(load.problem.loss), 1e-4, load.device, load.precision, load.cuda_graph
        )
        inputs, targets = load.problem.random_samples(GPU_SAMPLES, rng)
        if inputs.ndim == 4:  # images are normalised in each step
            inputs = rng.integers(0, 256, inputs.shape, dtype=np.uint8)
        self._trainer.hold(
            inputs,
            targets,
            torch.full((1, 1, 1, 1), 1 / 255),
            torch.zeros(1, 1, 1, 1),
        )
        self._order = rng.integers(0, GPU_SAMPLES, (load.devices, load.steps, load.batch_size))
        self._warmed_up: set[int] = set()

    def rate(self, count: int) -> float:
        """Return the samples per second of one of `count` processes; 0 if the memory does not hold its share."""
        share = math.ceil(self._load.devices / count)
        batches = [list(device_order) for device_order in self._order[:share]]
        starts = [self._start] * share
        try:
            if share not in self._warmed_up:  # the first call captures a graph, and libraries choose their algorithms
                self._warmed_up.add(share)
                self._trainer.fit(starts, batches)
            calls, begin = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < SECONDS or not calls:
                self._trainer.fit(starts, batches)
                calls += 1
        except (torch.OutOfMemoryError, HflrayError):
            return 0.0
        return calls * share * self._load.steps * self._load.batch_size / elapsed


def _worker(spec: dict[str, Any]) -> None:
    """Run a measuring process: print "ready", then measure once for each input line, a number of processes."""
    load = Load(**spec | {"problem": Problem.from_json(spec["problem"])})
    torch.set_num_threads(1)
    if load.devices:
        batched = _Batched(load)
        print("ready", flush=True)
        for line in sys.stdin:
            print(batched.rate(int(line)), flush=True)
        return
    claim = CpuClaim()
    kernel = sample_kernel(load.kernel, load.problem, load.batch_size, load.precision)
    print("ready", claim.cpu, flush=True)
    for _ in sys.stdin:
        print(samples_per_second(kernel, load.batch_size, SECONDS), flush=True)


if __name__ == "__main__":
    _worker(json.loads(sys.argv[1]))
