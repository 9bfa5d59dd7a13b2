"""One SGD step of the mini model without autograd: its convolution in C (`mini.c`), its linear layer in torch.

One input channel fills no vector of a CPU, so that a general library spends most of a step on the convolution, its
pooling and its ReLU. The C code does them in one pass. The convolution's channels are padded to a vector with zeros,
and the padding stays zero because its activations are 0, and hence its gradients.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hflray.models import MiniCnn
from hflray.training.c_code import Resident, library, pointer

LANES = 16  # as in mini.c
SIDE = 2  # of the convolution's kernel


class MiniKernel(Resident):
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
        self._prepare()

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
