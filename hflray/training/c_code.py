"""The C code of training: built for this CPU when it is first needed, and the weights and addresses that it takes."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

import torch
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


class Resident:
    """The part of a kernel that holds the weights in the layout of its C code; see `hflray.training.kernels.Kernel`.

    A kernel sets `_shapes`, those of the module's parameters, and `_views`, for each of them the part of the resident
    weights that holds it, in its shape. It sets the shape of its inputs and the number of its classes, and calls
    `_prepare`.
    """

    _shapes: list[torch.Size]
    _views: list[Tensor]
    _input: tuple[int, ...]
    _classes: int

    def _prepare(self) -> None:
        self._flat = torch.empty(sum(shape.numel() for shape in self._shapes))

    def load(self, vector: FloatVector) -> None:
        """See `Kernel.load`."""
        self._flat.numpy()[:] = vector  # torch would warn of arrays from Ray's object store, which are read-only
        for view, part in self._parts():
            view.copy_(part.view(view.shape))

    def vector(self) -> FloatVector:
        """See `Kernel.vector`."""
        for view, part in self._parts():
            part.view(view.shape).copy_(view)
        return self._flat.numpy().copy()

    def _parts(self) -> Iterator[tuple[Tensor, Tensor]]:
        parts = torch.split(self._flat, [shape.numel() for shape in self._shapes])
        return zip(self._views, parts, strict=True)

    def weights(self) -> list[Tensor]:
        """See `Kernel.weights`."""
        return [view.unsqueeze(0) for view in self._views]

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """See `Kernel.arranged`."""
        parts = torch.split(vectors, [shape.numel() for shape in self._shapes], dim=1)
        return [part.reshape(-1, *view.shape) for part, view in zip(parts, self._views, strict=True)]

    def hold(self, x: Tensor, y: Tensor) -> None:
        """See `Kernel.hold`."""
        self._check(x)
        if len(x) != len(y):  # the C code does not check this; torch would
            raise HflrayError(f"{len(x)} images with {len(y)} labels")
        if int(y.min()) < 0 or int(y.max()) >= self._classes:
            raise HflrayError(f"labels from {int(y.min())} to {int(y.max())}; the model has {self._classes} classes")
        self._x, self._y = x.contiguous(), y.contiguous()

    def _check(self, x: Tensor) -> None:
        """Raise HflrayError for inputs that the network does not take, which the C code does not check."""
        if tuple(x.shape[1:]) != self._input:
            raise HflrayError(f"images of {tuple(x.shape)}; the model takes {self._input}")


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's numbers, as C code takes it."""
    return ctypes.c_void_p(tensor.data_ptr())
