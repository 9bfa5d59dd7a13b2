"""The choice of the kernel and of the number of threads, by a measurement of a few seconds, once per machine.

The kernel and the threads change low bits. Therefore the choice becomes part of the configuration (and of every
checkpoint) before round 1, and the measurement is saved in a file, so that a repeated run on this machine makes the
same choice. Rounds of fewer than `WORTH_MEASURING` sample passes would gain less than a measurement costs. They take
the fixed choice: `fused`, which is the fastest kernel of every CPU that was measured, or channels-last where there is
no C compiler. A run in bf16 takes `fused_bf16`. For `gru` and `resnet8` it is `layers`.

`compiled` (torch.compile) is never chosen here. Compiling takes 20 to 100 s, or 2 to 5 s in every actor from a
cache of Inductor. It was measured at 0.8 to 1.1 × channels-last in float32 on Zen 4, and at 1.0 × eager for a
GRU. The configuration can name it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from hflray import __version__
from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.models import build, init_vector, is_papers, to_vector
from hflray.models.problem import Problem
from hflray.support.cache import cache_folder, cpu_model
from hflray.support.checksum import checked, stamped
from hflray.support.files import write
from hflray.support.native import compiler
from hflray.support.reader import read_json
from hflray.support.references import reason, spoken
from hflray.support.text import one_line
from hflray.training.fused import fused_library
from hflray.training.kernels import FUSIBLE, Kernel, KernelName, Precision, build_kernel, suitable
from hflray.training.layers import NO_LAYERS, replaceable
from hflray.training.machine import available_cpus, quiet_heap
from hflray.training.native import library

log = logging.getLogger(__name__)

WORTH_MEASURING = 100_000  # sample passes of a round that takes some ten seconds on one CPU
WITHOUT_COMPILER: KernelName = "channels_last"
# The kernels of C code, and for each the function that builds it or says why it cannot be built for a precision.
COMPILED: dict[str, Callable[[Precision], object]] = {
    "native": lambda precision: library(),
    "fused": lambda precision: fused_library(precision == "bf16"),
    "fused_bf16": lambda precision: fused_library(False),
    "layers": lambda precision: library("layers"),
}
WITH_A_MODULE: tuple[KernelName, ...] = ("eager", "channels_last")  # a function of the user's own can train it
MAX_BATCH = 256  # largest batch of the measurement; a full batch of thousands would take too long
SECONDS = 0.12  # duration of one measurement of one choice
REPEATS = 5  # measurements of each choice
ENOUGH = 0.97  # share of the best rate with which a smaller pool or fewer threads are preferred


def resolve(
    config: TrainingConfig,
    problem: Problem,
    passes_per_round: int,
    gpus: float | None = None,
    own_training: bool = False,
) -> TrainingConfig:
    """Return the configuration with a choice for ``kernel: auto``, ``threads: null`` and ``device: auto``.

    Args:
        config: the user's section; a kernel and threads that it names stay.
        problem: what is learned.
        passes_per_round: sample passes of a round, over all devices, edge iterations and local iterations.
        gpus: the number of GPUs that actors may use, on any node; None: those that torch finds in this process.
        own_training: whether a function of the user's own trains the module (`hflray.training.rules.own`).

    Raises:
        HflrayError: the configuration names `native`, which cannot be built here, or `cuda`, and there is no GPU, or a
            kernel or a device with which no function of the user's own can train.
    """
    if own_training:
        config = _for_own_training(config)
    if config.device != "cpu":
        config = config.model_copy(update=_on_gpu(config, gpus))
    if config.kernel == "layers" and not replaceable(build(problem)):
        raise HflrayError(NO_LAYERS)
    if config.kernel in COMPILED:
        if config.kernel == "fused_bf16" and config.precision != "bf16":
            raise HflrayError(
                f"training.kernel: 'fused_bf16' computes in bf16, and training.precision is {config.precision!r}; set "
                "it to bf16, or training.kernel to auto"
            )
        if config.kernel not in suitable(problem, config.precision):
            more = f" and {', '.join(FUSIBLE)} of few layers" if config.kernel != "native" else ""
            raise HflrayError(
                f"training.kernel: {config.kernel!r} knows the paper's networks{more} with cross-entropy, and "
                f"model.name is {problem.model.name!r}; set it to auto"
            )
        COMPILED[config.kernel](config.precision)  # a failure here has a plain message; in an actor it would not
    if config.kernel != "auto" and config.threads is not None:
        return config
    choices = tuple(name for name in suitable(problem, config.precision) if not own_training or name in WITH_A_MODULE)
    fixed = choices[-1] if own_training else fixed_kernel(problem, config.precision)
    kernel: KernelName = fixed if config.kernel == "auto" else config.kernel
    threads = config.threads or 1
    if config.autotune and passes_per_round >= WORTH_MEASURING and kernel not in ("compiled", "batched"):
        kernels: Sequence[KernelName] = choices if config.kernel == "auto" else (kernel,)
        counts = [1, len(available_cpus())] if config.threads is None else [config.threads]
        batch = min(config.batch_size, MAX_BATCH)
        kernel, threads = choose(kernels, sorted(set(counts)), problem, batch, config.precision)
    return config.model_copy(update={"kernel": kernel, "threads": threads})


def fixed_kernel(problem: Problem | None = None, precision: Precision = "float32") -> KernelName:
    """Return the kernel that is used without a measurement; without a problem, for the paper's network.

    That is ``fused`` where it serves and can be built here (in two seconds, once), or else ``native``,
    ``channels_last`` for images, or ``eager``.
    """
    choices: tuple[KernelName, ...] = (WITHOUT_COMPILER, "native", "fused", "fused_bf16")
    if problem is not None:
        choices = suitable(problem, precision)
    elif precision != "bf16":
        choices = choices[:-1]
    for name in reversed(choices):
        try:
            COMPILED.get(name, str)(precision)
        except HflrayError as error:
            log.info("not %s: %s", name, error)
        else:
            return name
    raise AssertionError("eager needs nothing")  # pragma: no cover


def _for_own_training(config: TrainingConfig) -> TrainingConfig:
    """Return the settings with which a function of the user's own can train the module."""
    for name, accepted in (("kernel", ("auto", *WITH_A_MODULE)), ("device", ("auto", "cpu"))):
        if (value := getattr(config, name)) not in accepted:
            raise HflrayError(
                f"training.{name}: got {value!r} with a function of your own as training.rule, which trains a module "
                f"of PyTorch; accepted with it: {', '.join(accepted)}; set it to {accepted[0]}"
            )
    return config.model_copy(update={"device": "cpu"})


def _on_gpu(config: TrainingConfig, gpus: float | None) -> dict[str, str]:
    """Return the settings that replace ``device: cuda`` or ``device: auto``."""
    if not (torch.cuda.is_available() if gpus is None else gpus > 0):
        if config.precision == "tf32":
            raise HflrayError(
                "training.precision: 'tf32' is for GPUs, and there is no CUDA device here; set it to float32 or bf16"
            )
        if config.device == "auto":
            return {"device": "cpu"}
        reason = "torch finds no CUDA device here" if gpus is None else "Ray has no GPU for it"
        raise HflrayError(f"training.device: 'cuda', but {reason}; set it to cpu or auto")
    if config.kernel not in ("auto", "batched"):
        raise HflrayError(
            f"training.kernel: {config.kernel!r} is for CPUs, and training.device is {config.device!r}; accepted with "
            "a GPU: auto or batched"
        )
    return {"device": "cuda", "kernel": "batched"}


def choose(
    kernels: Sequence[KernelName],
    threads: Sequence[int],
    problem: Problem,
    batch_size: int,
    precision: Precision,
) -> tuple[KernelName, int]:
    """Return the kernel and the number of threads that train most samples per CPU, by a new or a saved measurement.

    The rates are per CPU because each CPU gets an actor: two threads must be twice as fast to be better than two
    actors. The kernels are compared at the first number of `threads`; the best kernel is then measured at the others.

    Raises:
        HflrayError: no kernel trains the network; the message is one line, with the reason of each kernel.
    """
    subject = {
        "measured": "kernel",
        "kernels": list(kernels),
        "threads": list(threads),
        "model": [*problem.measured_as, batch_size, precision],
    }

    def measure() -> dict[str, float]:
        before = torch.get_num_threads()
        candidates: dict[KernelName, Kernel] = {}
        failures: dict[str, str] = {}
        rates: dict[str, list[float]] = {}
        try:
            torch.set_num_threads(threads[0])
            for name in kernels:
                try:
                    candidates[name] = sample_kernel(name, problem, batch_size, precision)
                except Exception as error:  # a network of the user's own may raise any type
                    failures[name] = one_line(error) if isinstance(error, HflrayError) else reason(error)
                    log.info("not measured: %s: %s", name, failures[name])
            if not candidates:
                raise HflrayError(_none_trains(problem, batch_size, failures))
            for _ in range(REPEATS):  # the kernels take turns, so that other work on this machine slows all of them
                for name, kernel in candidates.items():
                    rate = samples_per_second(kernel, batch_size, SECONDS) / threads[0]
                    rates.setdefault(f"{name}/{threads[0]}", []).append(rate)
            best = max(candidates, key=lambda name: statistics.median(rates[f"{name}/{threads[0]}"]))
            for count in threads[1:]:
                torch.set_num_threads(count)
                repeats: list[float] = []
                rates[f"{best}/{count}"] = repeats
                # Threads wait for each other. Where other processes hold a CPU, one step can take seconds.
                while len(repeats) < REPEATS and min(repeats, default=math.inf) * 2 > rates[f"{best}/{threads[0]}"][0]:
                    repeats.append(samples_per_second(candidates[best], batch_size, SECONDS) / count)
        finally:
            torch.set_num_threads(before)
        return {choice: statistics.median(repeats) for choice, repeats in rates.items()}

    rates = remembered(subject, measure)
    limit = ENOUGH * max(rates.values())
    choices = sorted((count, -rates[f"{name}/{count}"], name) for name, count in _pairs(kernels, threads, rates))
    return next((name, count) for count, rate, name in choices if -rate >= limit)


def _none_trains(problem: Problem, batch_size: int, failures: dict[str, str]) -> str:
    reasons = "; ".join(f"{name}: {text}" for name, text in failures.items())
    shape = ", ".join(map(str, problem.input_shape))
    return (
        f"training.kernel: no kernel trains '{spoken(problem.model.name)}' on a batch of {batch_size} random inputs of "
        f"the shape ({shape}) ({reasons}); correct the network, or set training.autotune to false, with which nothing "
        "is measured"
    )


def _pairs(
    kernels: Sequence[KernelName], threads: Sequence[int], rates: dict[str, float]
) -> list[tuple[KernelName, int]]:
    """Return the pairs of a kernel and a number of threads that have a rate."""
    return [(name, count) for name in kernels for count in threads if f"{name}/{count}" in rates]


def sample_kernel(name: KernelName, problem: Problem, batch_size: int, precision: Precision) -> Kernel:
    """Return a kernel with random data of the right shape, because the values do not matter for its speed."""
    quiet_heap()
    rng = np.random.default_rng(0)
    module = build(problem)
    kernel = build_kernel(name, module, problem, 0.01, batch_size, precision)
    kernel.load(init_vector(module, rng) if is_papers(problem) else to_vector(module))
    inputs, targets = problem.random_samples(4 * batch_size, rng)
    kernel.hold(torch.from_numpy(inputs), torch.from_numpy(targets))
    kernel.step(np.arange(batch_size))
    return kernel


def samples_per_second(kernel: Kernel, batch_size: int, seconds: float) -> float:
    """Return the samples per second that the kernel trains, measured for `seconds`."""
    orders = np.arange(4 * batch_size).reshape(4, batch_size)
    kernel.step(orders[0])
    steps, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not steps:
        kernel.step(orders[steps % 4])
        steps += 1
    return steps * batch_size / elapsed


def remembered(subject: dict[str, Any], measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Return the rates of `subject` on this machine with these libraries, from their file or by `measure`.

    A new measurement is saved in the file.
    """
    key = subject | {
        "cpu": cpu_model(),
        "cpus": len(available_cpus()),
        "versions": [__version__, torch.__version__, np.__version__, compiler() or ""],
    }
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    path = cache_folder("autotune") / f"{name}.json"
    try:
        saved: dict[str, float] = checked(read_json(path))["rates"]
        if isinstance(saved, dict) and all(isinstance(rate, float) for rate in saved.values()):
            return saved
    except (OSError, ValueError, KeyError):
        pass  # there is no file, or it is damaged
    start = time.perf_counter()
    rates = measure()
    log.info("measured in %.1f s (samples/s, kept in %s): %s", time.perf_counter() - start, path, rates)
    with suppress(OSError):  # a full disk costs another measurement next time, and not this run
        write(path, json.dumps(stamped({"rates": rates, "of": key}), indent=1))
    return rates
