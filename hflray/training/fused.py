"""One SGD step of a small network in C: `fused.c` makes it in one call, and has the arithmetic and the reasons.

The step visits a pooled convolution's gradient only where it is not zero, multiplies at the CPU's full vector width,
and writes no full-size convolution. The weights stay in the layout that the step needs; the padding of that layout is
zero, and it stays zero because its activations, and hence its gradients, are zero.

The mini model has a step of its own, its convolution in `mini.c` and its linear layer in torch: one input channel fills
no vector of a CPU, so that a general library spends most of a step on the convolution, its pooling and its ReLU.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hflray.errors import HflrayError
from hflray.models.cnn import Cnn
from hflray.models.paper import HflCnn, MiniCnn
from hflray.models.simple import Mlp
from hflray.training.kernel_base import NativeKernel, library, pointer

LANES, PADDED, LAYERS = 16, 32, 8  # as in fused.c: blocks of the convolutions' channels, and the most linear layers
CHANNELS = 64  # of the second convolution at most; fused.c has a bit for each
MINI_SIDE = 2  # of the mini model's convolution
EVALUATED = 256  # images whose activations exist at the same time during an evaluation


def is_fusible(module: nn.Module) -> bool:
    """Return whether the kernel knows a network: the paper's, or an `Mlp` of few layers or `Cnn` of few channels."""
    if not isinstance(module, HflCnn | Mlp | Cnn):
        return False
    convolutions, linears = _layers(module)
    return len(linears) <= LAYERS and all(layer.out_channels <= CHANNELS for layer in convolutions[1:])


def _layers(module: nn.Module) -> tuple[list[nn.Conv2d], list[nn.Linear]]:
    layers = list(module.modules())
    convolutions = [layer for layer in layers if isinstance(layer, nn.Conv2d)]
    return convolutions, [layer for layer in layers if isinstance(layer, nn.Linear)]


def fused_library(instructions: bool) -> ctypes.CDLL:
    """Return the compiled code of the kernel.

    Args:
        instructions: whether it needs those of AVX512-BF16.

    Raises:
        HflrayError: there is no C compiler, or `instructions` is set and this CPU has no AVX512-BF16.
    """
    code = library("fused")
    if instructions and not code.fused_has_bf16():
        raise HflrayError(
            "training.kernel: 'fused' computes in bf16 on CPUs with AVX512-BF16, and this one has none; set "
            "training.kernel to fused_bf16, or training.precision to float32"
        )
    code.fused_bytes.restype = ctypes.c_size_t
    return code


class Network(ctypes.Structure):
    """The structure `Network` of fused.c: sizes, and the addresses of the resident weights."""

    _fields_ = (
        *((name, ctypes.c_int32) for name in ("cin", "h", "w", "first_channels", "second_channels", "bf16", "layers")),
        ("widths", ctypes.c_int32 * (LAYERS + 1)),
        ("rate", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("first", "first_bias", "second", "second_bias")),
        ("weight", ctypes.c_void_p * LAYERS),
        ("bias", ctypes.c_void_p * LAYERS),
        ("mask", ctypes.c_void_p * LAYERS),
    )


class FusedKernel(NativeKernel):
    """The fused kernel; see `hflray.training.kernels.Kernel`.

    Args:
        module: a network that `is_fusible`; only the sizes of its layers are read.
        input_shape: the shape of one input; (C, H, W) for a network with convolutions.
        learning_rate: β.
        bf16: whether the convolutions' forward passes compute in bfloat16.
        backward: with `bf16`, whether all products of the backward passes and of the linear layers do so too. Weights,
            gradients and sums stay float32. Without AVX512-BF16, products take float32 numbers that were rounded.

    Raises:
        HflrayError: another network, or bf16 without `backward` on a CPU without AVX512-BF16.
    """

    def __init__(
        self,
        module: nn.Module,
        input_shape: tuple[int, ...],
        learning_rate: float,
        bf16: bool = False,
        backward: bool = False,
    ) -> None:
        if not is_fusible(module):
            raise HflrayError(f"training.kernel: fused knows no such {type(module).__name__}; set it to auto")
        self._c = fused_library(bf16 and not backward)
        self._input = input_shape
        convolutions, linears = _layers(module)
        network = Network(rate=learning_rate, bf16=int(bf16) * (1 + int(backward)), layers=len(linears))
        network.cin, network.h, network.w = input_shape if convolutions else (1, 1, math.prod(input_shape))
        self._resident: list[Tensor] = []  # the weights whose addresses the C code has
        # For each of the module's parameters, the part of the resident weights that holds it, in its order.
        views: list[Tensor] = []
        last: tuple[int, int, int] | None = None  # the shape (h, w, c) of the last convolution's features
        if convolutions:
            first, second = (layer.out_channels for layer in convolutions)
            network.first_channels, network.second_channels = first, second
            last = (*(((side - 4) // 2 - 4) // 2 for side in input_shape[1:]), second)  # type: ignore[assignment]
            lanes = _padded(first)
            weight, bias = torch.zeros(input_shape[0], 5, 5, lanes), torch.zeros(lanes)
            views += self._hold(network, "first", weight, bias, weight.permute(3, 0, 1, 2)[:first], bias[:first])
            weight, bias = torch.zeros(second, 5, 5, lanes), torch.zeros(_padded(second, PADDED))
            views += self._hold(network, "second", weight, bias, weight.permute(0, 3, 1, 2)[:, :first], bias[:second])
        network.widths[0] = linears[0].in_features
        for index, layer in enumerate(linears):
            inputs, outputs = layer.in_features, layer.out_features
            network.widths[index + 1] = outputs
            weight, bias = torch.zeros(outputs, _padded(inputs)), torch.zeros(_padded(outputs))
            part = weight[:, :inputs]
            if index == 0 and last is not None:
                # Torch flattens features as (c, h, w), while they are stored as (h, w, c) here.
                part = part.view(outputs, *last).permute(0, 3, 1, 2)
            self._resident += [weight, bias]
            views += [part, bias[:outputs]]
            network.weight[index], network.bias[index] = weight.data_ptr(), bias.data_ptr()
        self._classes, self._network, self._drops = linears[-1].out_features, network, _drops(module)
        self._prepare(views)
        self._workspace = torch.empty(0, dtype=torch.uint8)

    def _hold(self, network: Network, name: str, weight: Tensor, bias: Tensor, *views: Tensor) -> tuple[Tensor, ...]:
        """Give a convolution's resident weights to the C code; return which parts of them hold the module's."""
        self._resident += [weight, bias]
        setattr(network, name, weight.data_ptr())
        setattr(network, f"{name}_bias", bias.data_ptr())
        return views

    def memory(self) -> list[Tensor]:
        """See `Kernel.memory`."""
        return self._resident

    def step(self, batch: NDArray[np.int64]) -> None:
        """See `Kernel.step`."""
        positions = np.ascontiguousarray(batch)
        if positions.min() < 0 or positions.max() >= len(self._x):
            raise HflrayError(f"positions from {positions.min()} to {positions.max()} of {len(self._x)} images")
        masks = self._draw(len(positions))
        for (level, *_), mask in zip(self._drops, masks, strict=True):
            self._network.mask[level] = mask.data_ptr()
        self._c.fused_step(
            ctypes.byref(self._network), pointer(self._x), pointer(self._y), ctypes.c_void_p(positions.ctypes.data),
            len(positions), self._buffers(len(positions)),
        )  # fmt: skip

    def _draw(self, count: int) -> list[Tensor]:
        """Return the factors of each dropout, (count, width), drawn from torch's generator as torch's layers do."""
        return [torch.empty(count, width).bernoulli_(1 - p).div_(1 - p) for _, width, p in self._drops]

    def logits(self, x: Tensor) -> Tensor:
        """See `Kernel.logits`."""
        self._check(x)
        x, out = x.contiguous(), torch.empty(len(x), self._classes)
        positions = torch.arange(len(x))
        for part, logits in zip(torch.split(positions, EVALUATED), torch.split(out, EVALUATED), strict=True):
            self._c.fused_logits(
                ctypes.byref(self._network), pointer(x), pointer(part), len(part), self._buffers(len(part)),
                pointer(logits),
            )  # fmt: skip
        return out

    def _buffers(self, count: int) -> ctypes.c_void_p:
        """Return the address of a workspace for `count` images."""
        size = self._c.fused_bytes(ctypes.byref(self._network), count)
        if len(self._workspace) < size:
            self._workspace = torch.empty(size, dtype=torch.uint8)
        return pointer(self._workspace)


def _drops(module: nn.Module) -> list[tuple[int, int, float]]:
    """Return for each dropout the linear layer in front of which it is, its width and its probability, in order."""
    drops, convolutions, linears = [], [], []
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            convolutions.append(layer)
        elif isinstance(layer, nn.Linear):
            linears.append(layer)
        elif isinstance(layer, nn.Dropout2d):
            drops.append((0, convolutions[-1].out_channels, layer.p))
        elif isinstance(layer, nn.Dropout):
            drops.append((len(linears), linears[-1].out_features, layer.p))
    return drops


def _padded(count: int, block: int = LANES) -> int:
    return -(-count // block) * block


class MiniKernel(NativeKernel):
    """The step of the mini model; see `hflray.training.kernels.Kernel`. It computes in float32 in every precision.

    Args:
        module: the model; only the sizes of its layers are read.
        image_shape: (C, H, W) of the input images.
        learning_rate: β.

    Raises:
        HflrayError: there is no C compiler.
    """

    def __init__(self, module: MiniCnn, image_shape: tuple[int, ...], learning_rate: float) -> None:
        self._c, self._rate, self._input = library("mini"), learning_rate, image_shape
        channels, self._classes = module.conv.out_channels, module.linear.out_features
        height, width = self._pooled = (image_shape[1] - MINI_SIDE + 1) // 2, (image_shape[2] - MINI_SIDE + 1) // 2
        self._first, self._first_bias = torch.zeros(image_shape[0], MINI_SIDE, MINI_SIDE, LANES), torch.zeros(LANES)
        self._weight, self._bias = torch.zeros(self._classes, height * width * LANES), torch.zeros(self._classes)
        # Torch flattens features as (c, h, w), while they are stored as (h, w, c) here.
        in_order = self._weight.view(-1, height, width, LANES).permute(0, 3, 1, 2)[:, :channels]
        # A view of each resident tensor in the shape of the module's parameter.
        self._prepare([
            self._first.permute(3, 0, 1, 2)[:channels], self._first_bias[:channels], in_order, self._bias,
        ])  # fmt: skip

    def memory(self) -> list[Tensor]:
        """See `Kernel.memory`."""
        return [self._first, self._first_bias, self._weight, self._bias]

    def step(self, batch: NDArray[np.int64]) -> None:
        """See `Kernel.step`."""
        positions = torch.from_numpy(batch)
        features, winner, gradient = self._run(self._x, positions)  # the gradient begins as the logits
        count, classes = gradient.shape
        self._c.cross_entropy_backward(pointer(gradient), pointer(self._y), pointer(positions), count, classes)
        below = gradient @ self._weight
        self._weight.addmm_(gradient.t(), features, alpha=-self._rate)
        self._bias.add_(gradient.sum(0), alpha=-self._rate)
        of_first, of_bias = torch.empty_like(self._first), torch.empty_like(self._first_bias)
        tensors = (self._x, positions, below, winner, of_first, of_bias)
        self._c.first_backward_2(*map(pointer, tensors), count, *self._input)
        self._first.add_(of_first, alpha=-self._rate)
        self._first_bias.add_(of_bias, alpha=-self._rate)

    def logits(self, x: Tensor) -> Tensor:
        """See `Kernel.logits`."""
        self._check(x)
        return self._run(x.contiguous(), torch.arange(len(x)))[2]

    def _run(self, images: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features, (n, h · w · LANES), the winner of each pooled window, and the logits."""
        count, (height, width) = len(positions), self._pooled
        x = torch.empty(count, height, width, LANES)
        winner = torch.empty(count, height, width, LANES, dtype=torch.int32)
        tensors = (images, positions, self._first, self._first_bias, x, winner)
        self._c.first_forward_2(*map(pointer, tensors), count, *self._input)
        features = x.view(count, -1)
        return features, winner, torch.addmm(self._bias, features, self._weight.t())
