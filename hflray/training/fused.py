"""One SGD step of the paper's HFL model in one call of C; `fused.c` has the arithmetic and the reasons.

The step visits a pooled convolution's gradient only where it is not zero, multiplies at the CPU's full vector width,
and writes no full-size convolution. The weights stay in the layout that the step needs; the padding of that layout is
zero, and it stays zero because its activations, and hence its gradients, are zero.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.errors import HflrayError
from hflray.models import HflCnn
from hflray.training.native import library

LANES = 16  # as in fused.c
EVALUATED = 256  # images whose activations exist at the same time during an evaluation
WEIGHTS = ("first", "first_bias", "second", "second_bias", "third", "third_bias", "fourth", "fourth_bias")


def fused_library(bf16: bool) -> ctypes.CDLL:
    """Return the compiled code of the kernel.

    Raises:
        HflrayError: there is no C compiler, or `bf16` is set and this CPU has no AVX512-BF16.
    """
    code = library("fused")
    if bf16 and not code.fused_has_bf16():
        raise HflrayError(
            "training.kernel: 'fused' computes in bf16 on CPUs with AVX512-BF16, and this one has none; set "
            "training.kernel to native, or training.precision to float32"
        )
    code.fused_bytes.restype = ctypes.c_size_t
    return code


class Network(ctypes.Structure):
    """The structure `Network` of fused.c: sizes, and the addresses of the resident weights."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("cin", "h", "w", "features", "hidden", "classes", "bf16")),
        ("rate", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in WEIGHTS),
    )


class FusedKernel:
    """The fused kernel; see `hflray.training.kernels.Kernel`.

    Args:
        module: an `HflCnn`; only the sizes of its layers are read.
        image_shape: (C, H, W) of the input images.
        learning_rate: β.
        bf16: whether the convolutions' forward passes compute in bfloat16. Everything else stays float32.

    Raises:
        HflrayError: another model, or bf16 on a CPU without AVX512-BF16.
    """

    def __init__(
        self, module: torch.nn.Module, image_shape: tuple[int, ...], learning_rate: float, bf16: bool = False
    ) -> None:
        if not isinstance(module, HflCnn):
            raise HflrayError(f"training.kernel: fused knows no {type(module).__name__}; set it to channels_last")
        self._c = fused_library(bf16)
        self._input = image_shape
        channels, height, width = image_shape
        first, second = module.conv1.out_channels, module.conv2.out_channels
        features, hidden = module.linear1.in_features, module.linear1.out_features
        self._classes = module.linear2.out_features
        height, width = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        self._shapes = [parameter.shape for parameter in module.parameters()]
        self._weights = {
            "first": torch.zeros(channels, 5, 5, LANES),
            "first_bias": torch.zeros(LANES),
            "second": torch.zeros(second, 5, 5, LANES),
            "second_bias": torch.zeros(_padded(second)),
            "third": torch.zeros(hidden, _padded(features)),
            "third_bias": torch.zeros(_padded(hidden)),
            "fourth": torch.zeros(self._classes, _padded(hidden)),
            "fourth_bias": torch.zeros(_padded(self._classes)),
        }
        w = self._weights
        # For each of the module's parameters, the part of the resident weights that holds it, in its order.
        self._views = [
            w["first"].permute(3, 0, 1, 2)[:first],
            w["first_bias"][:first],
            w["second"].permute(0, 3, 1, 2)[:, :first],
            w["second_bias"][:second],
            # Torch flattens features as (c, h, w), while they are stored as (h, w, c) here.
            w["third"][:, :features].view(hidden, height, width, second).permute(0, 3, 1, 2),
            w["third_bias"][:hidden],
            w["fourth"][:, :hidden],
            w["fourth_bias"][: self._classes],
        ]
        sizes = (*image_shape, features, hidden, self._classes, int(bf16))
        self._network = Network(*sizes, learning_rate, *(weight.data_ptr() for weight in w.values()))
        self._flat = torch.empty(sum(shape.numel() for shape in self._shapes))
        self._workspace = torch.empty(0, dtype=torch.uint8)

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

    def step(self, batch: NDArray[np.int64]) -> None:
        """See `Kernel.step`."""
        positions = np.ascontiguousarray(batch)
        if positions.min() < 0 or positions.max() >= len(self._x):
            raise HflrayError(f"positions from {positions.min()} to {positions.max()} of {len(self._x)} images")
        self._c.fused_step(
            ctypes.byref(self._network), _address(self._x), _address(self._y), ctypes.c_void_p(positions.ctypes.data),
            len(positions), self._buffers(len(positions)),
        )  # fmt: skip

    def logits(self, x: Tensor) -> Tensor:
        """See `Kernel.logits`."""
        self._check(x)
        x, out = x.contiguous(), torch.empty(len(x), self._classes)
        positions = torch.arange(len(x))
        for part, logits in zip(torch.split(positions, EVALUATED), torch.split(out, EVALUATED), strict=True):
            self._c.fused_logits(
                ctypes.byref(self._network), _address(x), _address(part), len(part), self._buffers(len(part)),
                _address(logits),
            )  # fmt: skip
        return out

    def _check(self, x: Tensor) -> None:
        if tuple(x.shape[1:]) != self._input:
            raise HflrayError(f"images of {tuple(x.shape)}; the model takes {self._input}")

    def _buffers(self, count: int) -> ctypes.c_void_p:
        """Return the address of a workspace for `count` images."""
        size = self._c.fused_bytes(ctypes.byref(self._network), count)
        if len(self._workspace) < size:
            self._workspace = torch.empty(size, dtype=torch.uint8)
        return _address(self._workspace)


def _padded(count: int) -> int:
    return -(-count // LANES) * LANES


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
