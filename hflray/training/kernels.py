"""The kernels that compute a gradient step: one interface, several implementations, the same mathematics; and a choice.

A kernel changes low bits. Therefore the choice by network, device, precision and size of a round, where the
configuration leaves it open, becomes part of the configuration, and of every checkpoint, before round 1. It is `fused`,
the fastest kernel of every CPU that was measured, for the networks that it knows, and `fused_bf16` in bf16; `layers`
for `gru` and `resnet8`, and in large rounds for every network with layers that it knows; else `channels_last` for
images and `eager`. Without a C compiler it is `channels_last` or `eager` as well. On a GPU it is `batched`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.config import TrainingConfig
from hflray.errors import HflrayError
from hflray.losses import Loss, find_loss
from hflray.models import MINI, build, is_papers
from hflray.models.paper import MiniCnn
from hflray.models.problem import Problem
from hflray.models.vector import kept_at_home, trained, travelling
from hflray.training.fused import FusedKernel, MiniKernel, fused_library, is_fusible
from hflray.training.kernel_base import Kernel, library
from hflray.training.layers import NO_LAYERS, replace_layers, replaceable

log = logging.getLogger(__name__)

KernelName = Literal["eager", "channels_last", "fused", "fused_bf16", "layers", "batched"]  # the last on GPUs
Precision = Literal["float32", "bf16", "tf32"]  # tf32: the batched kernel on GPUs only


# Beside the paper's; an `mlp` of many layers is left to torch.
FUSIBLE = ("mlp", "mlp_200_200", "logistic", "cnn_6_16", "cnn_20_50", "lenet")
LAYERED = ("gru", "resnet8")  # our networks with layers that `layers` knows; unless their options say otherwise
IN_C: tuple[KernelName, ...] = ("fused", "fused_bf16", "layers")
WITH_A_MODULE: tuple[KernelName, ...] = ("eager", "channels_last")  # a function of the user's own can train it
IMAGES_DIM = 4  # of a batch of images (n, channels, height, width)
LARGE = 100_000  # sample passes of a round that takes some ten seconds on one CPU


def suitable(problem: Problem, precision: Precision = "float32") -> tuple[KernelName, ...]:
    """Return the kernels that may train a network on a CPU; the last one that can be built is chosen.

    `fused` knows some networks with cross-entropy; `fused_bf16` is for that precision; `channels_last` is a layout of
    images; `layers` fails to be built where a network has no layer that it knows.
    """
    name = problem.model.name
    names: list[KernelName] = ["eager"]
    names += ["channels_last"] if len(problem.input_shape) == IMAGES_DIM - 1 else []
    if name in LAYERED:
        names += ["layers"] if replaceable(build(problem)) else []
    elif not is_papers(problem) and name not in FUSIBLE:
        names.insert(0, "layers")
    if problem.loss != "cross_entropy":
        return tuple(names)
    # Only our own networks are built for this. One of the user's may be large or fail.
    fusible = (is_papers(problem) or name in FUSIBLE) and is_fusible(build(problem))
    names += ["fused"] if fusible or is_papers(problem) else []
    names += ["fused_bf16"] if fusible and precision == "bf16" else []
    return tuple(names)


class ModuleKernel(Kernel):
    """A kernel that uses torch's autograd: eager, channels-last, or with layers in C.

    Raises:
        HflrayError: `layers` is set, and there is no C compiler, or no layer that the C code knows.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        loss: Loss,
        learning_rate: float,
        channels_last: bool = False,
        bf16: bool = False,
        layers: bool = False,
    ) -> None:
        if layers:
            replace_layers(module)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        # The call is ignored because torch's stubs have no overload for a memory format that is a variable.
        self._module: torch.nn.Module = module.to(memory_format=self._format)  # type: ignore[call-overload]
        self._parameters: tuple[Tensor, ...] = tuple(trained(module))
        self._prepare(travelling(module), len(self._parameters))
        self._home = [(buffer, buffer.clone()) for buffer in kept_at_home(module)]
        self._loss, self._rate, self._bf16 = loss, learning_rate, bf16

    def load(self, vector: FloatVector) -> None:
        """See `Kernel.load`. What does not travel begins anew."""
        super().load(vector)
        with torch.no_grad():
            for buffer, first in self._home:
                buffer.copy_(first)

    def hold(self, x: Tensor, y: Tensor) -> None:
        """See `Kernel.hold`."""
        self._x, self._y = self._arranged(x), y

    def step(self, batch: NDArray[np.int64]) -> None:
        """See `Kernel.step`."""
        positions = torch.from_numpy(batch)
        if not self._module.training:
            self._module.train()
        with self._precision():
            scores = self._module(self._x[positions])
        loss = self._loss(scores.float(), self._y[positions])
        parameters = self._parameters
        gradients: tuple[Tensor, ...] = torch.autograd.grad(loss, parameters, allow_unused=True)
        if any(gradient is None for gradient in gradients):  # a parameter that this batch does not use
            pairs = zip(parameters, gradients, strict=True)
            parameters, gradients = zip(*(pair for pair in pairs if pair[1] is not None), strict=True)
        with torch.no_grad():
            torch._foreach_add_(parameters, gradients, alpha=-self._rate)

    def logits(self, x: Tensor) -> Tensor:
        """See `Kernel.logits`."""
        if self._module.training:
            self._module.eval()
        with torch.no_grad(), self._precision():
            scores: Tensor = self._module(self._arranged(x))
            return scores.float()

    def memory(self) -> list[Tensor]:
        """See `Kernel.memory`. A network of the user's may have other types, or parameters that share memory."""
        memory = [parameter.detach() for parameter in self._parameters]
        starts = {tensor.untyped_storage().data_ptr() for tensor in memory}
        whole = all(t.dtype == torch.float32 and t.untyped_storage().nbytes() == t.nbytes for t in memory)
        return memory if whole and len(starts) == len(memory) else []

    def train_by(
        self, train: Callable[..., Any], batches: list[NDArray[np.int64]], *arguments: Any, **options: Any
    ) -> None:
        """Let a function of the user's own train the module; see `hflray.training.rules.own`."""
        positions = (torch.from_numpy(batch) for batch in batches)
        self._module.train()
        self._module.zero_grad(set_to_none=True)  # of the device before
        # Autocast would keep the copies in bfloat16 of parameters that the function changes.
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16, cache_enabled=False):
            pairs = ((self._x[index], self._y[index]) for index in positions)
            train(self._module, pairs, self._loss, *arguments, **options)

    def _arranged(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self._format) if x.dim() == IMAGES_DIM else x.contiguous()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()


def build_kernel(
    name: KernelName, module: torch.nn.Module, problem: Problem, learning_rate: float, precision: Precision
) -> Kernel:
    """Return the kernel `name` around `module`. The kernel owns and changes the module."""
    bf16 = precision == "bf16"
    if name in ("fused", "fused_bf16"):
        if isinstance(module, MiniCnn):
            return MiniKernel(module, problem.input_shape, learning_rate)
        return FusedKernel(module, problem.input_shape, learning_rate, bf16, name == "fused_bf16")
    return ModuleKernel(module, find_loss(problem.loss), learning_rate, name != "eager", bf16, name == "layers")


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
    kernel: KernelName
    if config.kernel != "auto":
        kernel = config.kernel
        _check_named(kernel, problem, config.precision)
    elif own_training:
        kernel = [name for name in suitable(problem) if name in WITH_A_MODULE][-1]
    else:
        is_large = passes_per_round >= LARGE and "layers" in suitable(problem, config.precision)
        has_layers = is_large and replaceable(build(problem)) and _is_built("layers", problem)
        kernel = "layers" if has_layers else fixed_kernel(problem, config.precision)
    return config.model_copy(update={"kernel": kernel, "threads": config.threads or 1})


def fixed_kernel(problem: Problem, precision: Precision = "float32") -> KernelName:
    """Return the kernel of a round that is not large: the last of `suitable` that can be built here.

    To build one takes two seconds, once.
    """
    return next(name for name in reversed(suitable(problem, precision)) if _is_built(name, problem, precision))


def _is_built(name: KernelName, problem: Problem, precision: Precision = "float32") -> bool:
    try:
        build_code(name, problem, precision)
    except HflrayError as error:
        log.info("not %s: %s", name, error)
        return False
    return True


def build_code(name: KernelName, problem: Problem, precision: Precision) -> None:
    """Build the C code of a kernel, if it has some. Raises HflrayError: it cannot be built here."""
    if name == "layers":
        library("layers")
    elif name == "fused" and problem.model.name == MINI.name:  # in float32 in every precision
        library("mini")
    elif name in ("fused", "fused_bf16"):
        fused_library(name == "fused" and precision == "bf16")


def _check_named(name: KernelName, problem: Problem, precision: Precision) -> None:
    """Raise HflrayError for a kernel that cannot train the network here; in an actor it would have no plain message."""
    if name == "layers" and not replaceable(build(problem)):
        raise HflrayError(NO_LAYERS)
    if name == "fused_bf16" and precision != "bf16":
        raise HflrayError(
            f"training.kernel: 'fused_bf16' computes in bf16, and training.precision is {precision!r}; set it to bf16, "
            "or training.kernel to auto"
        )
    if name in IN_C and name not in suitable(problem, precision):
        raise HflrayError(
            f"training.kernel: {name!r} knows the paper's networks and {', '.join(FUSIBLE)} of few layers with "
            f"cross-entropy, and model.name is {problem.model.name!r}; set it to auto"
        )
    build_code(name, problem, precision)


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
