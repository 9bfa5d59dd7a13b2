"""Layers of a user's network in C, behind torch's autograd: GRUs and group normalisation. See `layers.c`.

`replace_layers` changes how layers compute, and not their parameters. Torch computes layers and inputs that the C code
does not know. A GRU computes in float32 also where the precision is bf16; it is faster than torch's in bfloat16.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.autograd.graph import increment_version
from torch.nn import functional

from hflray.errors import HflrayError
from hflray.training.kernel_base import library, pointer

FLOATS = torch.float32, torch.bfloat16
LANES, MOST_CHANNELS = 16, 2048  # as in layers.c; channels and hidden numbers are multiples of the first
NO_LAYERS = (
    "training.kernel: 'layers' computes GRUs and group normalisation whose width is a multiple of 16, and the network "
    "has none; set it to auto"
)
SEQUENCES_DIM, IMAGES_DIM = 3, 4  # of a batch


def _longs(*numbers: int) -> tuple[ctypes.c_long, ...]:
    return tuple(map(ctypes.c_long, numbers))


class _Gru(Function):
    """One GRU over (time, batch, inputs) from the states (batch, hidden); returns those after each token."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: Tensor, *weights: Tensor) -> Tensor:
        of_input, of_state, *biases = (weight.contiguous() for weight in weights)
        (time, batch, inputs), hidden = x.shape, of_state.shape[1]
        code = library("layers")
        lanes = code.lanes()
        states, gates = x.new_empty(time + 1, batch, hidden), x.new_empty(time, batch, 4, hidden)
        states[0] = first
        by_lane = of_state.view(3, hidden // lanes, lanes, hidden).permute(1, 3, 0, 2).contiguous()
        arrays = (x, of_input.t().contiguous(), by_lane, *biases, states, gates, x.new_empty(batch, 3, hidden))
        code.gru_forward(*map(pointer, arrays), *_longs(time, batch, inputs, hidden))
        ctx.save_for_backward(x, of_input, of_state, states, gates)
        return states[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_states: Tensor) -> tuple[Tensor | None, ...]:
        x, of_input, of_state, states, gates = ctx.saved_tensors
        (time, batch, inputs), hidden = x.shape, of_state.shape[1]
        padding = -inputs % LANES
        x, of_input = functional.pad(x, (0, padding)), functional.pad(of_input, (0, padding))
        # Torch's order of the gates is reset, keep, fresh, and the gradients begin with fresh.
        of_input, of_states = of_input.roll(hidden, 0), of_states.contiguous()
        carry, of_x, weights = x.new_zeros(batch, hidden), torch.zeros_like(x), torch.zeros_like(of_input)
        state_weights, biases = torch.zeros_like(of_state), x.new_zeros(4 * hidden)
        arrays = (x, of_input, of_state, states, gates, of_states, carry, of_x, weights, state_weights, biases)
        library("layers").gru_backward(*map(pointer, arrays), *_longs(time, batch, x.shape[2], hidden))
        increment_version(gates)  # they are gradients now, so that another backward pass must fail
        of_bias = biases[: 3 * hidden].roll(-hidden)
        return of_x[..., :inputs], carry, weights.roll(-hidden, 0)[:, :inputs], state_weights, of_bias, biases[hidden:]


class _GroupNorm(Function):
    """Group normalisation of channels-last images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, epsilon: float) -> Tensor:
        n, channels, height, width = x.shape
        y, stats = torch.empty_like(x), weight.new_empty(n, 2, groups)
        half = int(x.dtype == torch.bfloat16)
        sizes = ctypes.c_float(epsilon), *_longs(n, height * width, channels, groups, half)
        library("layers").norm_forward(pointer(x), pointer(weight), pointer(bias), pointer(y), pointer(stats), *sizes)
        ctx.save_for_backward(x, weight, stats)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, stats = ctx.saved_tensors
        n, channels, height, width = x.shape
        of_x, of_weight, of_bias = torch.empty_like(x), torch.zeros_like(weight), torch.zeros_like(weight)
        of_y = of_y.contiguous(memory_format=torch.channels_last)
        sizes = _longs(n, height * width, channels, stats.shape[2], int(x.dtype == torch.bfloat16))
        pointers = map(pointer, (x, of_y, weight, stats, of_x, of_weight, of_bias))
        library("layers").norm_backward(*pointers, *sizes)
        return of_x, of_weight, of_bias, None, None


def _gru(layer: nn.GRU, plain: Callable[..., Any], x: Any, hx: Tensor | None = None) -> Any:
    if not isinstance(x, Tensor) or x.dim() != SEQUENCES_DIM or x.dtype not in FLOATS or 0 in x.shape:
        return plain(x, hx)
    expected = layer.num_layers, x.shape[0 if layer.batch_first else 1], layer.hidden_size
    if x.shape[2] != layer.input_size or (hx is not None and hx.shape != expected):
        return plain(x, hx)  # it refuses them
    with torch.autocast("cpu", enabled=False):
        x = (x.transpose(0, 1) if layer.batch_first else x).float().contiguous()
        first = x.new_zeros(expected) if hx is None else hx.float()
        last = []
        for weights, start in zip(layer.all_weights, first, strict=True):
            x = _Gru.apply(x, start, *weights)  # type: ignore[no-untyped-call]
            last.append(x[-1])
        return x.transpose(0, 1) if layer.batch_first else x, torch.stack(last)


def _group_norm(layer: nn.GroupNorm, plain: Callable[..., Any], x: Tensor) -> Any:
    reads = x.dtype == torch.float32 or (x.dtype == torch.bfloat16 and library("layers").has_bf16())
    fits = x.dim() == IMAGES_DIM and x.shape[1] == layer.num_channels
    if not reads or not fits or not x.is_contiguous(memory_format=torch.channels_last):
        return plain(x)
    return _GroupNorm.apply(x, layer.weight, layer.bias, layer.num_groups, layer.eps)  # type: ignore[no-untyped-call]


def replaceable(module: nn.Module) -> dict[nn.Module, Callable[..., Any]]:
    """Return the layers of a network that the C code knows, each with the function that takes the place of its own."""
    functions: dict[nn.Module, Callable[..., Any]] = {}
    for layer in module.modules():
        if type(layer) is nn.GRU and layer.bias and not (layer.bidirectional or layer.dropout):
            functions |= {layer: _gru} if layer.hidden_size % LANES == 0 else {}
        elif type(layer) is nn.GroupNorm and layer.affine and layer.num_channels <= MOST_CHANNELS:
            functions |= {layer: _group_norm} if layer.num_channels % LANES == 0 else {}
    return functions


def replace_layers(module: nn.Module) -> None:
    """Let C code compute the layers of `module` that it knows.

    Raises:
        HflrayError: it knows none, or there is no C compiler.
    """
    functions = replaceable(module)
    if not functions:
        raise HflrayError(NO_LAYERS)
    library("layers")
    for layer, function in functions.items():
        layer.forward = partial(function, layer, layer.forward)
