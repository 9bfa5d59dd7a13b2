"""The kernels that compute a gradient step: one interface, several implementations, the same mathematics.

`hflray.training.kernel_choice` chooses one. The choice changes low bits, so it is part of the job that all backends
share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.losses import Loss, find_loss
from hflray.models import MiniCnn, build, is_papers, kept_at_home, trained, travelling
from hflray.models.problem import Problem
from hflray.training.fused import FusedKernel, is_fusible
from hflray.training.layers import replace_layers, replaceable
from hflray.training.mini import MiniKernel

KernelName = Literal["eager", "channels_last", "fused", "fused_bf16", "layers", "batched"]  # the last on GPUs
Precision = Literal["float32", "bf16", "tf32"]  # tf32: the batched kernel on GPUs only


# Beside the paper's; an `mlp` of many layers is left to torch.
FUSIBLE = ("mlp", "mlp_200_200", "logistic", "cnn_6_16", "cnn_20_50", "lenet")
LAYERED = ("gru", "resnet8")  # our networks with layers that `layers` knows; unless their options say otherwise
IMAGES_DIM = 4  # of a batch of images (n, channels, height, width)


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
    names += ["fused"] if is_papers(problem) else []
    # Only our own networks are built for this. One of the user's may be large or fail.
    fusible = (is_papers(problem) or problem.model.name in FUSIBLE) and is_fusible(build(problem))
    names += ["fused"] if fusible and "fused" not in names else []
    names += ["fused_bf16"] if fusible and precision == "bf16" else []
    return tuple(names)


class Kernel(Protocol):
    """A resident model that makes gradient steps."""

    def load(self, vector: FloatVector) -> None:
        """Load the parameters, (P,)."""

    def vector(self) -> FloatVector:
        """Return a copy of the parameters, (P,)."""

    def hold(self, x: Tensor, y: Tensor) -> None:
        """Hold a device's samples: normalised inputs (n, …) float32, or tokens int64, and targets (n,)."""

    def step(self, batch: NDArray[np.int64]) -> None:
        """Make one SGD step on the mean loss of the samples at the positions `batch`."""

    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs (n, num_outputs) for normalised inputs."""

    def weights(self) -> list[Tensor]:
        """Return the resident trained tensors, (1, …); see `hflray.training.differences.Resident`."""

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """Return vectors of trained numbers, (n, P), as tensors of the shapes of `weights`, (n, …)."""

    def memory(self) -> list[Tensor]:
        """Return the memory of `weights`; see `hflray.training.differences.Resident`."""


class ModuleKernel:
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
        self._travelling = travelling(module)
        self._home = [(buffer, buffer.clone()) for buffer in kept_at_home(module)]
        sizes = [tensor.numel() for tensor in self._travelling]
        self._flat = torch.empty(sum(sizes))
        self._parts = [
            part.view(tensor.shape)
            for part, tensor in zip(torch.split(self._flat, sizes), self._travelling, strict=True)
        ]
        self._loss, self._rate, self._bf16 = loss, learning_rate, bf16

    def load(self, vector: FloatVector) -> None:
        """See `Kernel.load`."""
        self._flat.numpy()[:] = vector
        with torch.no_grad():
            torch._foreach_copy_(self._travelling, self._parts)
            for buffer, first in self._home:
                buffer.copy_(first)

    def vector(self) -> FloatVector:
        """See `Kernel.vector`."""
        with torch.no_grad():
            torch._foreach_copy_(self._parts, self._travelling)
        return self._flat.numpy().copy()

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

    def weights(self) -> list[Tensor]:
        """See `Kernel.weights`."""
        return [parameter.detach().unsqueeze(0) for parameter in self._parameters]

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """See `Kernel.arranged`."""
        return split_like(vectors, [parameter.shape for parameter in self._parameters])

    def memory(self) -> list[Tensor]:
        """See `Kernel.memory`. A network of the user's may have other types, or parameters that share memory."""
        memory = [parameter.detach() for parameter in self._parameters]
        starts = {each.untyped_storage().data_ptr() for each in memory}
        whole = all(each.dtype == torch.float32 and each.untyped_storage().nbytes() == each.nbytes for each in memory)
        return memory if whole and len(starts) == len(memory) else []

    def train_by(
        self, train: Callable[..., Any], batches: list[NDArray[np.int64]], *arguments: Any, **options: Any
    ) -> None:
        """Let a function of the user's own train the module; see `hflray.training.rules.own`."""
        positions = (torch.from_numpy(batch) for batch in batches)
        self._module.train()
        with self._precision():
            pairs = ((self._x[index], self._y[index]) for index in positions)
            train(self._module, pairs, self._loss, *arguments, **options)

    def _arranged(self, x: Tensor) -> Tensor:
        return x.contiguous(memory_format=self._format) if x.dim() == IMAGES_DIM else x.contiguous()

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast("cpu", torch.bfloat16) if self._bf16 else nullcontext()


def split_like(vectors: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return vectors, (n, P), as tensors (n, *shape) of these shapes."""
    parts = torch.split(vectors, [shape.numel() for shape in shapes], dim=1)
    return [part.reshape(len(part), *shape) for part, shape in zip(parts, shapes, strict=True)]


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
