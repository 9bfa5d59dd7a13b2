"""How many processes to train in: measured with processes, because what they share decides it.

On CPUs that is cores, clock rates and memory bandwidth; on a GPU it is the card, which one process may leave idle
while it prepares the next step. The measurements are kept as those of `hflray.training.autotune` are.
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
from hflray.models import build_model, init_vector
from hflray.training.autotune import ENOUGH, MAX_BATCH, WORTH_MEASURING, remembered, sample_kernel, samples_per_second
from hflray.training.batched import BatchedTrainer
from hflray.training.kernels import KernelName, Precision
from hflray.training.machine import CpuClaim, available_cpus

log = logging.getLogger(__name__)

SECONDS, REPEATS = 0.25, 6  # of each measurement of each number of processes
GPU_COUNTS = (1, 2, 4)  # processes tried on one card
GPU_SAMPLES = 1024  # in the data set of the measurement; which ones does not matter for the speed
GPU_STEPS = 40  # of a call: about an epoch and a half of the paper's devices, five times over is an edge iteration


@dataclass(frozen=True)
class Load:
    """What a measuring process trains. `devices` at once over all processes; 0: one device, with a CPU kernel."""

    kernel: KernelName
    image_shape: tuple[int, int, int]
    num_classes: int
    batch_size: int
    precision: Precision
    device: str = "cpu"
    devices: int = 0
    steps: int = GPU_STEPS
    cuda_graph: bool | None = None


def useful_cpus(
    config: TrainingConfig, image_shape: tuple[int, int, int], num_classes: int, passes_per_round: int, cpus: int
) -> int:
    """Return on how many of `cpus` CPUs to put actors: all of them, or half where those share cores or memory.

    Without `autotune`, for small rounds, with several threads, and for CPUs of more than this machine: all of them.
    """
    small = passes_per_round < WORTH_MEASURING or cpus < 2 or cpus > len(available_cpus())
    if small or not config.autotune or config.threads != 1 or config.kernel in ("compiled", "batched"):
        return cpus
    assert config.kernel != "auto"
    load = Load(config.kernel, image_shape, num_classes, min(config.batch_size, MAX_BATCH), config.precision)
    counts = sorted({max(1, cpus // 2), cpus})
    what = {
        "measured": "pool",
        "counts": counts,
        "model": [*image_shape, num_classes, load.batch_size, config.precision, config.kernel],
    }
    return _smallest(remembered(what, lambda: measured(load, counts)))


def gpu_load(config: TrainingConfig, image_shape: tuple[int, int, int], num_classes: int, devices: int) -> Load:
    """What is measured for a GPU that trains `devices` devices at once."""
    batch = min(config.batch_size, MAX_BATCH)
    return Load(
        "batched", image_shape, num_classes, batch, config.precision, "cuda", devices, cuda_graph=config.cuda_graph
    )


def useful_gpu_processes(load: Load) -> int:
    """Return how many processes to put on one GPU so that together they train fastest: 1, 2 or 4.

    Each has its share of the devices, and trains them with the batched kernel. Measured on the first GPU that this
    process sees (on CPU tensors if the load says so).

    Raises:
        HflrayError: torch finds no GPU here, or the memory does not hold the measurement.
    """
    if load.device == "cuda" and not torch.cuda.is_available():
        raise HflrayError(
            f"training.device: 'cuda', but torch {torch.__version__} finds no CUDA device on {platform.node()}, which "
            "Ray says has one; install torch with CUDA there, or set training.device to cpu"
        )
    counts = [count for count in GPU_COUNTS if count <= load.devices]
    what = {
        "measured": "processes on a GPU",
        "gpu": torch.cuda.get_device_name() if load.device == "cuda" else load.device,
        "counts": counts,
        "load": asdict(load),
    }
    return _smallest(remembered(what, lambda: measured(load, counts)))


def measured(load: Load, counts: Sequence[int]) -> dict[str, float]:
    """Samples per second of each number of processes, all together; 0 for a number that the memory does not hold."""
    rates = dict.fromkeys(map(str, counts), 0.0)
    with _started(load, max(counts)) as workers:
        possible = [count for count in counts if count <= len(workers)]
        for _ in range(REPEATS):
            for count in possible:
                for worker in workers[:count]:
                    _write(worker, count)
                each = [float(_read(worker)) for worker in workers[:count]]
                # The best of all: the question is what the machine can do, not who else used it just now.
                rates[str(count)] = max(rates[str(count)], sum(each) if all(each) else 0.0)
    if not any(rates.values()):
        raise HflrayError(
            f"training.num_actors: the memory of {load.device} does not hold the measurement of the pool; set "
            "training.num_actors, or lower training.batch_size"
        )
    return rates


def _smallest(rates: dict[str, float]) -> int:
    """The smallest number that is as good as the best."""
    return min(int(count) for count, rate in rates.items() if rate >= ENOUGH * max(rates.values()))


@contextmanager
def _started(load: Load, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """So many measuring processes, ready; fewer where not all can be (a GPU may be set to serve one process only)."""
    command, pipe = [sys.executable, "-m", "hflray.training.processes", json.dumps(asdict(load))], subprocess.PIPE
    # The package may lie where only this process looks.
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
    """Trains a share of the devices at once, as an actor does in an edge iteration."""

    def __init__(self, load: Load) -> None:
        self._load, rng = load, np.random.default_rng(0)
        module = build_model("hfl", load.image_shape, load.num_classes)
        self._start = init_vector(module, rng)
        self._trainer = BatchedTrainer(module, 1e-4, load.device, load.precision, load.cuda_graph)
        self._trainer.hold(
            rng.integers(0, 256, (GPU_SAMPLES, *load.image_shape), dtype=np.uint8),
            rng.integers(0, load.num_classes, GPU_SAMPLES),
            torch.full((1, 1, 1, 1), 1 / 255),
            torch.zeros(1, 1, 1, 1),
        )
        self._order = rng.integers(0, GPU_SAMPLES, (load.devices, load.steps, load.batch_size))
        self._known: set[int] = set()

    def rate(self, count: int) -> float:
        """Samples per second with the share of one of `count` processes; 0 if the memory does not hold it."""
        share = math.ceil(self._load.devices / count)
        batches = [list(own) for own in self._order[:share]]
        starts = [self._start] * share
        try:
            if share not in self._known:  # the first call captures a graph, and libraries choose their algorithms
                self._known.add(share)
                self._trainer.fit(starts, batches)
            calls, begin = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begin) < SECONDS or not calls:
                self._trainer.fit(starts, batches)
                calls += 1
        except (torch.OutOfMemoryError, HflrayError):
            return 0.0
        return calls * share * self._load.steps * self._load.batch_size / elapsed


def _worker(spec: dict[str, Any]) -> None:
    """A measuring process: says that it is ready, then measures once for every line ``number of processes``."""
    load = Load(**spec | {"image_shape": tuple(spec["image_shape"])})
    torch.set_num_threads(1)
    if load.devices:
        batched = _Batched(load)
        print("ready", flush=True)
        for line in sys.stdin:
            print(batched.rate(int(line)), flush=True)
        return
    claim = CpuClaim()
    kernel = sample_kernel(load.kernel, load.image_shape, load.num_classes, load.batch_size, load.precision)
    print("ready", claim.cpu, flush=True)
    for _ in sys.stdin:
        print(samples_per_second(kernel, load.batch_size, SECONDS), flush=True)


if __name__ == "__main__":
    _worker(json.loads(sys.argv[1]))
