"""Where a user's network spends a gradient step, and how fast each kernel makes it, on one thread.

The kernels take turns, and the figures are medians of CPU time. Then torch's profiler says what part of the time in
operations each kind takes, without the operations that it calls, and all that run in the backward pass. Python around
the operations is not in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from hflray.models import build, is_papers
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import to_vector
from hflray.training.kernels import Kernel, KernelName, Precision, build_kernel, suitable
from hflray.training.machine import quiet_heap
from tests.benchmarks._report import Table
from tests.benchmarks.training import BATCH, PROBLEMS
from tests.models.samples import random_samples

# Parts of the names of the operations in each column, of which the first that fits is taken.
PARTS = {
    "convolutions": ("convolution",),
    "normalisation": ("norm", "Norm"),
    "products": ("mm",),
    "GRU": ("_Gru",),
    "activations": ("threshold", "clamp_min", "tanh", "sigmoid"),
    "embedding": ("embedding", "index_select"),
    "gather": ("aten::index",),
}
BACKWARD, STEPS = "autograd::engine::evaluate_function", 4


def sample_kernel(name: KernelName, problem: Problem, batch_size: int, precision: Precision) -> Kernel:
    """Return a kernel that has made a step; the values of its random data do not matter for its speed."""
    quiet_heap()
    rng = np.random.default_rng(0)
    module = build(problem)
    kernel = build_kernel(name, module, problem, 0.01, precision)
    kernel.load(init_vector(module, rng) if is_papers(problem) else to_vector(module))
    inputs, targets = random_samples(problem, 4 * batch_size, rng)
    kernel.hold(torch.from_numpy(inputs), torch.from_numpy(targets))
    kernel.step(np.arange(batch_size))
    return kernel


def cpu_ms(kernel: Kernel) -> float:
    """Return the CPU time of a step, ms."""
    begin = time.process_time()
    for turn in range(STEPS):
        kernel.step(np.arange(turn * BATCH, (turn + 1) * BATCH))
    return 1e3 * (time.process_time() - begin) / STEPS


def shares(kernel: Kernel) -> dict[str, float]:
    """Return the shares of the time in operations."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        cpu_ms(kernel)
    spent = dict.fromkeys(("backward", *PARTS, "others"), 0.0)
    for event in profiler.key_averages():
        is_backward = event.key.startswith(BACKWARD)
        spent["backward"] += event.cpu_time_total if is_backward else 0.0
        fits = (part for part, names in PARTS.items() if any(name in event.key for name in names))
        spent["others" if is_backward else next(fits, "others")] += event.self_cpu_time_total
    whole = sum(spent.values()) - spent["backward"]
    return {part: time_us / whole for part, time_us in spent.items()}


def table(model: str, names: Sequence[str] | None, turns: int) -> Table:
    """Measure the kernels of a network in turn."""
    torch.set_num_threads(1)
    problem = PROBLEMS.get(model) or Problem((1, 28, 28), 10, model=ModelSpec(model))
    kernels = {
        (name, precision): sample_kernel(cast(KernelName, name), problem, BATCH, precision)
        for precision in cast(tuple[Precision, ...], ("float32", "bf16"))
        for name in names or sorted(suitable(problem, precision))
    }
    measured: dict[tuple[str, Precision], list[float]] = {key: [] for key in kernels}
    for turn in range(turns + 1):  # the first one warms up
        for key, kernel in kernels.items():
            spent = cpu_ms(kernel)
            measured[key] += [spent] if turn else []
    columns = [("row", "kernel", ""), ("ms", "a step, ms", ".1f"), ("ratio", "speed", ".2f")]
    columns += [(part, part, ".1%") for part in ("backward", *PARTS, "others")]
    result = Table(f"step/{model}", f"a step of {model}, batch {BATCH}, one thread, CPU time", columns)
    base = next(iter(measured.values()))
    for key, spent in measured.items():
        ratio = statistics.median(one / other for one, other in zip(base, spent, strict=True))
        result.add(" ".join(key), ms=statistics.median(spent), ratio=ratio, **shares(kernels[key]))
        result.ratios[" ".join(key)] = ratio
    return result


def tables(
    models: Sequence[str] = ("resnet8", "gru"), kernels: Sequence[str] | None = None, turns: int = 21
) -> Iterator[Table]:
    """Measure these networks with these kernels; None: with all that are suitable."""
    for model in models:
        yield table(model, kernels, turns)
