"""What kernels have in common, and the C code of some: built for this CPU when it is first needed."""

from __future__ import annotations

import ctypes
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.errors import HflrayError
from hflray.support.native import load_library


@functools.cache
def library(name: str) -> ctypes.CDLL:
    """Build the C code ``NAME.c`` of this folder for this CPU, unless the cache folder has the library, and load it.

    Raises:
        HflrayError: there is no compiler, or it fails.
    """
    try:
        return load_library(Path(__file__).with_name(f"{name}.c"))
    except HflrayError as error:
        raise HflrayError(
            f"training.kernel: {name!r} {error} on every machine that trains, or set training.kernel to channels_last"
        ) from None


class Kernel(ABC):
    """A resident model that makes gradient steps; the base class of kernels.

    A kernel hands `_prepare` views of its resident weights, one for each tensor of the network that travels, in its
    shape; the first `trained` of them are those of parameters.
    """

    def _prepare(self, views: Sequence[Tensor], trained: int | None = None) -> None:
        self._views, self._trained = list(views), views[:trained]
        sizes = [view.numel() for view in views]
        self._flat = torch.empty(sum(sizes))
        parts = torch.split(self._flat, sizes)
        self._parts = [part.view(view.shape) for part, view in zip(parts, views, strict=True)]

    def load(self, vector: FloatVector) -> None:
        """Load the parameters, (P,)."""
        self._flat.numpy()[:] = vector  # torch would warn of arrays from Ray's object store, which are read-only
        with torch.no_grad():
            torch._foreach_copy_(self._views, self._parts)

    def vector(self) -> FloatVector:
        """Return a copy of the parameters, (P,)."""
        with torch.no_grad():
            torch._foreach_copy_(self._parts, self._views)
        return self._flat.numpy().copy()

    @abstractmethod
    def hold(self, x: Tensor, y: Tensor) -> None:
        """Hold a device's samples: normalised inputs (n, …) float32, or tokens int64, and targets (n,)."""

    @abstractmethod
    def step(self, batch: NDArray[np.int64]) -> None:
        """Make one SGD step on the mean loss of the samples at the positions `batch`."""

    @abstractmethod
    def logits(self, x: Tensor) -> Tensor:
        """Return the outputs (n, num_outputs) for normalised inputs."""

    def weights(self) -> list[Tensor]:
        """Return the resident trained tensors, (1, …); see `hflray.training.differences.ResidentWeights`."""
        return [view.detach().unsqueeze(0) for view in self._trained]

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """Return vectors of trained numbers, (n, P), as tensors of the shapes of `weights`, (n, …)."""
        return split_like(vectors, [view.shape for view in self._trained])

    @abstractmethod
    def memory(self) -> list[Tensor]:
        """Return the memory of `weights`; see `hflray.training.differences.ResidentWeights`."""


class NativeKernel(Kernel):
    """A kernel that holds the weights in the layout of its C code, and checks what that does not check.

    It sets the shape of its inputs and the number of its classes.
    """

    _input: tuple[int, ...]
    _classes: int

    def hold(self, x: Tensor, y: Tensor) -> None:
        """See `Kernel.hold`."""
        self._check(x)
        if len(x) != len(y):  # torch would check this
            raise HflrayError(f"{len(x)} images with {len(y)} labels")
        if int(y.min()) < 0 or int(y.max()) >= self._classes:
            raise HflrayError(f"labels from {int(y.min())} to {int(y.max())}; the model has {self._classes} classes")
        self._x, self._y = x.contiguous(), y.contiguous()

    def _check(self, x: Tensor) -> None:
        """Raise HflrayError for inputs that the network does not take."""
        if tuple(x.shape[1:]) != self._input:
            raise HflrayError(f"images of {tuple(x.shape)}; the model takes {self._input}")


def split_like(vectors: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Return vectors, (n, P), as tensors (n, *shape) of these shapes."""
    parts = torch.split(vectors, [shape.numel() for shape in shapes], dim=1)
    return [part.reshape(len(part), *shape) for part, shape in zip(parts, shapes, strict=True)]


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's numbers, as C code takes it."""
    return ctypes.c_void_p(tensor.data_ptr())
