"""One SGD step of the mini model without autograd: its convolution in C (`mini.c`), its linear layer in torch.

One input channel fills no vector of a CPU, so that a general library spends most of a step on the convolution, its
pooling and its ReLU. The C code does them in one pass. The convolution's channels are padded to a vector with zeros,
and the padding stays zero because its activations are 0, and hence its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.aggregation.fixed_point import FloatVector
from hflray.errors import HflrayError
from hflray.models import MiniCnn
from hflray.training.c_code import library, pointer

LANES = 16  # as in mini.c
SIDE = 2  # of the convolution's kernel


class MiniKernel:
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
        height, width = self._pooled = (image_shape[1] - SIDE + 1) // 2, (image_shape[2] - SIDE + 1) // 2
        self._shapes = [parameter.shape for parameter in module.parameters()]
        self._first, self._first_bias = torch.zeros(image_shape[0], SIDE, SIDE, LANES), torch.zeros(LANES)
        self._weight, self._bias = torch.zeros(self._classes, height * width * LANES), torch.zeros(self._classes)
        # Torch flattens features as (c, h, w), while they are stored as (h, w, c) here.
        in_order = self._weight.view(-1, height, width, LANES).permute(0, 3, 1, 2)[:, :channels]
        # A view of each resident tensor in the shape of the module's parameter.
        self._views = [
            self._first.permute(3, 0, 1, 2)[:channels], self._first_bias[:channels], in_order, self._bias,
        ]  # fmt: skip
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
        return [self._first, self._first_bias, self._weight, self._bias]

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
        if tuple(x.shape[1:]) != self._input:
            raise HflrayError(f"images of {tuple(x.shape)}; the model takes {self._input}")
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
