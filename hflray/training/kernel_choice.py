"""The choice of the kernel, by network, device, precision and size of a round, where the configuration leaves it open.

The kernel changes low bits. Therefore the choice becomes part of the configuration (and of every checkpoint) before
round 1. It is `fused`, the fastest kernel of every CPU that was measured, for the networks that it knows, and
`fused_bf16` in bf16; `layers` for `gru` and `resnet8`, and in large rounds for every network with layers that it knows;
else `channels_last` for images and `eager`. Without a C compiler it is `channels_last` or `eager` as well. On a GPU it
is `batched`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.models import MINI, build
from hflray.models.problem import Problem
from hflray.training.c_code import library
from hflray.training.fused import fused_library
from hflray.training.kernels import FUSIBLE, KernelName, Precision, suitable
from hflray.training.layers import NO_LAYERS, replaceable

log = logging.getLogger(__name__)

LARGE = 100_000  # sample passes of a round that takes some ten seconds on one CPU
# The kernels of C code, and for each the function that builds it or says why it cannot be built for a precision.
IN_C: dict[str, Callable[[Precision], object]] = {
    "fused": lambda precision: fused_library(precision == "bf16"),
    "fused_bf16": lambda precision: fused_library(False),
    "layers": lambda precision: library("layers"),
}
WITH_A_MODULE: tuple[KernelName, ...] = ("eager", "channels_last")  # a function of the user's own can train it


def settled(
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
        HflrayError: the configuration names a kernel that cannot be built here or that does not know the network, or
            `cuda`, and there is no GPU, or a kernel or a device with which no function of the user's own can train.
    """
    if own_training:
        config = _for_own_training(config)
    if config.device != "cpu":
        config = config.model_copy(update=_on_gpu(config, gpus))
    if config.kernel == "layers" and not replaceable(build(problem)):
        raise HflrayError(NO_LAYERS)
    if config.kernel in IN_C:
        if config.kernel == "fused_bf16" and config.precision != "bf16":
            raise HflrayError(
                f"training.kernel: 'fused_bf16' computes in bf16, and training.precision is {config.precision!r}; set "
                "it to bf16, or training.kernel to auto"
            )
        if config.kernel not in suitable(problem, config.precision):
            raise HflrayError(
                f"training.kernel: {config.kernel!r} knows the paper's networks and {', '.join(FUSIBLE)} of few layers "
                f"with cross-entropy, and model.name is {problem.model.name!r}; set it to auto"
            )
        IN_C[config.kernel](config.precision)  # a failure here has a plain message; in an actor it would not
    kernel: KernelName = config.kernel if config.kernel != "auto" else "eager"
    if config.kernel == "auto":
        choices = suitable(problem, config.precision)
        if own_training:
            kernel = [name for name in choices if name in WITH_A_MODULE][-1]
        elif "layers" in choices and passes_per_round >= LARGE and replaceable(build(problem)) and _builds("layers"):
            kernel = "layers"
        else:
            kernel = fixed_kernel(problem, config.precision)
    return config.model_copy(update={"kernel": kernel, "threads": config.threads or 1})


def fixed_kernel(problem: Problem | None = None, precision: Precision = "float32") -> KernelName:
    """Return the kernel of a round that is not large; without a problem, for the paper's network.

    It is the last of `hflray.training.kernels.suitable` that can be built here (in two seconds, once).
    """
    choices: tuple[KernelName, ...] = ("channels_last", "fused", "fused_bf16")
    if problem is not None:
        choices = suitable(problem, precision)
    elif precision != "bf16":
        choices = choices[:-1]
    return next(name for name in reversed(choices) if _builds(name, precision, problem))


def _builds(name: KernelName, precision: Precision = "float32", problem: Problem | None = None) -> bool:
    # The mini model has a step of its own, in float32 in every precision.
    small = name == "fused" and problem is not None and problem.model.name == MINI.name
    try:
        _ = library("mini") if small else IN_C.get(name, str)(precision)
    except HflrayError as error:
        log.info("not %s: %s", name, error)
        return False
    return True


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
