"""The two networks of the paper, and their initial weights.

`HflCnn` is the model that is learned (paper, section VI: two 5×5 convolutions of 15 and 28 channels, 2×2 max pooling,
two linear layers). `MiniCnn` is IKC's auxiliary model ξ (paper, sections IV-B and VI). The paper gives no hidden width
or activation. Our widths return its Table I sizes, 448 KB and 882 KB (docs/design.md, D4).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from hflray.errors import DataError

MIN_IMAGE_SIZE = 16  # two 5×5 convolutions and poolings reduce 16×16 to 1×1, and 15×15 to nothing
MAX_PARAMETERS = 250_000_000  # 1 GB of weights
MINI_INPUT_SHAPE = (1, 10, 10)

Vector = NDArray[np.float32]


def image(input_shape: tuple[int, ...], name: str) -> tuple[int, int, int]:
    """Return an image's channels, height and width.

    Raises:
        DataError: the inputs are no images; `name` is the network that needs them.
    """
    if len(input_shape) != 3:
        raise DataError(
            f"model.name: '{name}' reads images (channels, height, width), and an input of these data has the shape "
            f"{list(input_shape)}; set model.name to logistic, mlp or gru"
        )
    channels, height, width = input_shape
    return channels, height, width


def _pool_relu(features: Tensor) -> Tensor:
    # ReLU is monotone, so pooling first gives the same numbers with a quarter of the activations.
    return functional.relu(functional.max_pool2d(features, 2))


def _pooled(size: int) -> int:
    """Return the side length after an unpadded 5×5 convolution and 2×2 pooling."""
    return (size - 4) // 2


class HflCnn(nn.Module):
    """The HFL model w, which maps images (batch, C, H, W), normalised floats, to logits (batch, num_outputs).

    Args:
        input_shape: (C, H, W), H and W at least 16.
        num_outputs: number of logits, one for each class.
        hidden: width between the linear layers; None: 226 for one channel (447.9 KB on 1×28×28) and 301 otherwise
            (881.6 KB on 3×32×32).

    Raises:
        DataError: the images are smaller than 16×16, or so large that the model has too many parameters.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, hidden: int | None = None) -> None:
        super().__init__()
        channels, height, width = image(input_shape, "paper_cnn")
        if min(height, width) < MIN_IMAGE_SIZE:
            raise DataError(
                f"data.name: the images are {height}×{width}, and the HFL model's two 5×5 convolutions accept "
                f"{MIN_IMAGE_SIZE}×{MIN_IMAGE_SIZE} and up; enlarge the images in the .npz (digits, for example, "
                "is enlarged to 28×28)"
            )
        if hidden is None:
            hidden = 226 if channels == 1 else 301
        inputs = 28 * _pooled(_pooled(height)) * _pooled(_pooled(width))
        if inputs * hidden > MAX_PARAMETERS:
            raise DataError(
                f"data.name: the images are {height}×{width}, so that the HFL model would have {inputs * hidden:,} "
                f"parameters; accepted: at most {MAX_PARAMETERS:,}; shrink the images in the .npz"
            )
        self.conv1 = nn.Conv2d(channels, 15, 5)
        self.conv2 = nn.Conv2d(15, 28, 5)
        self.linear1 = nn.Linear(inputs, hidden)
        self.linear2 = nn.Linear(hidden, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, (batch, num_outputs)."""
        features = _pool_relu(self.conv2(_pool_relu(self.conv1(images))))
        logits: Tensor = self.linear2(functional.relu(self.linear1(features.flatten(1))))
        return logits


class MiniCnn(nn.Module):
    """The mini model ξ, which maps `hflray.data.preprocess`'s (batch, 1, 10, 10) to logits (batch, num_outputs).

    It has one 2×2 convolution of 15 channels, 2×2 max pooling and ReLU, and one linear layer: 9.7 KB for ten classes.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int) -> None:
        super().__init__()
        if input_shape != MINI_INPUT_SHAPE:
            raise DataError(
                f"model: 'mini' reads inputs of the shape 1×10×10, and these have {'×'.join(map(str, input_shape))}; "
                "choose another network"
            )
        self.conv = nn.Conv2d(1, 15, 2)
        self.linear = nn.Linear(15 * 4 * 4, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, (batch, num_outputs)."""
        logits: Tensor = self.linear(_pool_relu(self.conv(images)).flatten(1))
        return logits


def init_vector(module: nn.Module, rng: np.random.Generator) -> Vector:
    """Draw initial weights from He et al.'s normal distribution of standard deviation √(2 / fan-in), and zero biases.

    NumPy draws them in the order of ``module.parameters()``, so that equal generators give equal bits and torch's
    global state is neither read nor changed.

    Returns:
        (P,) float32.
    """
    parts = []
    for parameter in module.parameters():
        shape = tuple(parameter.shape)
        if len(shape) > 1:  # a weight: (out, in, ...) in torch's layout, so the fan-in is all but the first dimension
            std = math.sqrt(2.0 / math.prod(shape[1:]))
            parts.append((rng.standard_normal(math.prod(shape)) * std).astype(np.float32))
        else:
            parts.append(np.zeros(shape, np.float32))
    return np.concatenate([part.ravel() for part in parts])
