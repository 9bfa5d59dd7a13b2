"""The gain of a GPU: 50 devices trained at once, compared with a sequential loop on it; skipped without a GPU."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from hflray.models.paper import init_vector
from hflray.models.problem import Problem
from hflray.models.vector import load_vector
from hflray.training.job import LocalJob
from hflray.training.local import DeviceHost
from tests.benchmarks._report import Table
from tests.models.samples import build_model
from tests.training.test_local import make_data

PASSES_OF_A_SAMPLE = 5.52e6  # floating-point operations of the forward pass and all gradients except the images'


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

    def seconds(run: Callable[[], None]) -> float:
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    for run in (bare, batched):
        seconds(run)
    turns = [(seconds(bare), seconds(batched)) for _ in range(repeats)]
    alone, all_of_them = (count * local_iterations / statistics.median(column) for column in zip(*turns, strict=True))
    return alone, all_of_them


def gpu(repeats: int = 5) -> Table:
    """Measure many devices at once on a GPU and a sequential loop on the same GPU."""
    columns = [
        ("row", "", ""), ("one", "sequential, samples/s", ",.0f"), ("together", "50 devices at once", ",.0f"),
        ("ratio", "x", ".1f"), ("tflops", "TFLOP/s", ".2f"), ("product_tflops", "matrix product, TFLOP/s", ".1f"),
    ]  # fmt: skip
    if not torch.cuda.is_available():
        return Table("actors/gpu", "training on a GPU", not_measured="torch finds no CUDA device")
    table = Table("actors/gpu", f"training on a GPU, {torch.cuda.get_device_name()}", columns)
    for precision in ("float32", "tf32", "bf16"):
        alone, together = at_once("cuda", 50, 550, repeats, precision)
        a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
        best = 9e9
        for _ in range(10):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            a @ a
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - begin)
        table.ratios[precision] = together / alone
        table.add(
            precision, one=alone, together=together, ratio=together / alone,
            tflops=together * PASSES_OF_A_SAMPLE / 1e12, product_tflops=2 * 8192**3 / best / 1e12,
        )  # fmt: skip
    return table
