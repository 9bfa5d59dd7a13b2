"""One SGD step of the paper's models without autograd: C where torch is slow, torch elsewhere.

A step through torch (channels-last, Zen 4, batch 64) spends a third of its time in the first layer, its pooling and
its ReLU: one input channel fills no vector, the full-size convolution is written and read again, and its gradient is
mostly zeros. `native.c` does each of these in one pass. Torch (oneDNN) computes the second convolution and the linear
layers, which it runs near the machine's matmul speed. The weights are kept in the layout that the step needs. The
first layer's channels are padded to a vector with zeros, and the padding stays zero because its activations are 0, and
hence its gradients.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.errors import HflrayError
from hflray.models import HflCnn, MiniCnn
from hflray.support.native import load_library

LANES = 16  # as in native.c
FIRST_KERNELS = (2, 5)  # the first convolution's kernel sizes that native.c supports
CHANNELS_LAST = torch.channels_last


@functools.cache
def library(kernel: str = "native") -> ctypes.CDLL:
    """Build the C code of `kernel` for this CPU, unless the cache folder has the library already, and load it.

    Raises:
        HflrayError: there is no compiler, or it fails.
    """
    try:
        return load_library(Path(__file__).with_name(f"{kernel}.c"))
    except HflrayError as error:
        raise HflrayError(
            f"training.kernel: {kernel!r} {error} on every machine that trains, or set training.kernel to channels_last"
        ) from None


def pointer(tensor: Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's numbers, as C code takes it."""
    return ctypes.c_void_p(tensor.data_ptr())


class NativeKernel:
    """The native kernel; see `hflray.training.kernels.Kernel`.

    Args:
        module: an `HflCnn` or `MiniCnn`; only the sizes of its layers are read.
        image_shape: (C, H, W) of the input images.
        learning_rate: β.
        bf16: whether the second and further convolutions compute in bfloat16; weights stay float32.
    """

    def __init__(
        self, module: torch.nn.Module, image_shape: tuple[int, ...], learning_rate: float, bf16: bool = False
    ) -> None:
        if not isinstance(module, HflCnn | MiniCnn):
            raise HflrayError(f"training.kernel: native knows no {type(module).__name__}; set it to channels_last")
        self._c, self._rate, self._type = library(), learning_rate, torch.bfloat16 if bf16 else torch.float32
        first, *convs = [layer for layer in module.children() if isinstance(layer, torch.nn.Conv2d)]
        linears = [layer for layer in module.children() if isinstance(layer, torch.nn.Linear)]
        size = first.kernel_size[0]
        if first.out_channels > LANES or size not in FIRST_KERNELS:
            raise HflrayError("training.kernel: native is built for another first layer; set it to channels_last")
        self._input, self._channels, self._size = image_shape, first.out_channels, size
        self._forward = getattr(self._c, f"first_forward_{size}")
        self._backward = getattr(self._c, f"first_backward_{size}")
        self._pooled = ((image_shape[1] - size + 1) // 2, (image_shape[2] - size + 1) // 2)

        self._shapes = [parameter.shape for parameter in module.parameters()]
        # The resident weights, and for each a view in the shape of the module's parameter.
        self._first = torch.zeros(image_shape[0], size, size, LANES)
        self._first_bias = torch.zeros(LANES)
        self._views = [self._first.permute(3, 0, 1, 2)[: self._channels], self._first_bias[: self._channels]]
        channels, (height, width) = LANES, self._pooled
        self._convs: list[tuple[Tensor, Tensor]] = []
        real = self._channels
        for layer in convs:
            side = layer.kernel_size[0]
            weight = torch.zeros(layer.out_channels, channels, side, side).to(memory_format=CHANNELS_LAST)
            bias = torch.zeros(layer.out_channels)
            self._convs.append((weight, bias))
            self._views += [weight[:, :real], bias]
            channels = real = layer.out_channels
            height, width = (height - side + 1) // 2, (width - side + 1) // 2
        self._linears: list[tuple[Tensor, Tensor]] = []
        for index, linear in enumerate(linears):
            inputs = height * width * channels if index == 0 else linear.in_features
            weight, bias = torch.zeros(linear.out_features, inputs), torch.zeros(linear.out_features)
            self._linears.append((weight, bias))
            # Torch flattens features as (c, h, w), while they are stored as (h, w, c) here.
            in_order = weight.view(-1, height, width, channels).permute(0, 3, 1, 2)[:, :real] if index == 0 else weight
            self._views += [in_order, bias]
        self._classes = linears[-1].out_features
        self._flat = torch.empty(sum(shape.numel() for shape in self._shapes))

    def load(self, vector: FloatVector) -> None:
        """See `Kernel.load`."""
        self._flat.numpy()[:] = vector  # torch would warn of arrays from Ray's object store, which are read-only
        for view, part in self._parts(self._flat):
            view.copy_(part.view(view.shape))

    def vector(self) -> FloatVector:
        """See `Kernel.vector`."""
        for view, part in self._parts(self._flat):
            part.view(view.shape).copy_(view)
        return self._flat.numpy().copy()

    def _parts(self, flat: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        start = 0
        for view, shape in zip(self._views, self._shapes, strict=True):
            yield view, flat[start : start + shape.numel()]
            start += shape.numel()

    def weights(self) -> list[Tensor]:
        """See `Kernel.weights`."""
        return [view.unsqueeze(0) for view in self._views]

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """See `Kernel.arranged`."""
        parts = torch.split(vectors, [shape.numel() for shape in self._shapes], dim=1)
        return [part.reshape(-1, *view.shape) for part, view in zip(parts, self._views, strict=True)]

    def memory(self) -> list[Tensor]:
        """See `Kernel.memory`."""
        pairs = [(self._first, self._first_bias), *self._convs, *self._linears]
        return [tensor for pair in pairs for tensor in pair]

    def hold(self, x: Tensor, y: Tensor) -> None:
        """See `Kernel.hold`."""
        # The C code does not check these; torch would.
        if tuple(x.shape[1:]) != self._input or len(x) != len(y):
            raise HflrayError(f"images of {tuple(x.shape)} with {len(y)} labels; the model takes {self._input}")
        if int(y.min()) < 0 or int(y.max()) >= self._classes:
            raise HflrayError(f"labels from {int(y.min())} to {int(y.max())}; the model has {self._classes} classes")
        self._x, self._y = x.contiguous(), y.contiguous()

    def step(self, batch: NDArray[np.int64]) -> None:
        """See `Kernel.step`."""
        positions = torch.from_numpy(batch)
        features, winners, inputs, activations = self._run(self._x, positions)
        gradient = activations.pop()  # the logits
        count, classes = gradient.shape
        self._c.cross_entropy_backward(pointer(gradient), pointer(self._y), pointer(positions), count, classes)
        for (weight, bias), activation in zip(self._linears[::-1], activations[::-1], strict=True):
            below = gradient @ weight
            weight.addmm_(gradient.t(), activation, alpha=-self._rate)
            bias.add_(gradient.sum(0), alpha=-self._rate)
            gradient = below
            # In the last turn these are the features. Their ReLU is in `winners` already, so this changes nothing.
            self._c.relu_backward(pointer(gradient), pointer(activation), ctypes.c_int64(gradient.numel()))
        gradient = gradient.view(count, *features).permute(0, 3, 1, 2)
        mask = [True, True, True]
        for (weight, bias), x, winner, shape in zip(
            self._convs[::-1], inputs[::-1], winners[:0:-1], self._full[::-1], strict=True
        ):
            full = torch.empty(count, *shape)
            self._c.pool_backward(pointer(gradient), pointer(winner), pointer(full), count, *shape)
            gradient, of_weight, of_bias = torch.ops.aten.convolution_backward(
                full.permute(0, 3, 1, 2).to(self._type), x, weight.to(self._type), [len(bias)],
                [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask,
            )  # fmt: skip
            gradient = gradient.float().contiguous(memory_format=CHANNELS_LAST)
            weight.add_(of_weight, alpha=-self._rate)
            bias.add_(of_bias, alpha=-self._rate)
        of_first, of_bias = torch.empty_like(self._first), torch.empty_like(self._first_bias)
        self._backward(
            *map(pointer, (self._x, positions, gradient, winners[0], of_first, of_bias)), count, *self._input,
        )  # fmt: skip
        self._first.add_(of_first, alpha=-self._rate)
        self._first_bias.add_(of_bias, alpha=-self._rate)

    def logits(self, x: Tensor) -> Tensor:
        """See `Kernel.logits`."""
        if tuple(x.shape[1:]) != self._input:
            raise HflrayError(f"images of {tuple(x.shape)}; the model takes {self._input}")
        return self._run(x.contiguous(), torch.arange(len(x)))[3][-1]

    def _run(
        self, images: Tensor, positions: Tensor
    ) -> tuple[tuple[int, int, int], list[Tensor], list[Tensor], list[Tensor]]:
        """Run the forward pass.

        Returns:
            The last features' shape (h, w, c), the winners of each pooling, the inputs of the convolutions, and the
            inputs of the linear layers followed by the logits.
        """
        count, (height, width) = len(positions), self._pooled
        x = torch.empty(count, height, width, LANES)
        winner = torch.empty(count, height, width, LANES, dtype=torch.int32)
        self._forward(
            *map(pointer, (images, positions, self._first, self._first_bias, x, winner)), count, *self._input,
        )  # fmt: skip
        winners, inputs = [winner], []
        self._full: list[tuple[int, int, int]] = []
        for weight, bias in self._convs:
            inputs.append(x.permute(0, 3, 1, 2).to(self._type))
            full = torch.conv2d(inputs[-1], weight.to(self._type), bias.to(self._type))
            full = full.float().permute(0, 2, 3, 1).contiguous()
            _, height, width, channels = shape = full.shape
            self._full.append((height, width, channels))
            x, winner = (
                torch.empty(count, height // 2, width // 2, channels, dtype=t) for t in (x.dtype, winner.dtype)
            )
            self._c.pool_forward(pointer(full), pointer(x), pointer(winner), *shape)
            winners.append(winner)
        activations = [x.view(count, -1)]
        for index, (weight, bias) in enumerate(self._linears):
            activations.append(torch.addmm(bias, activations[-1], weight.t()))
            if index < len(self._linears) - 1:
                activations[-1].relu_()
        return (x.shape[1], x.shape[2], x.shape[3]), winners, inputs, activations
