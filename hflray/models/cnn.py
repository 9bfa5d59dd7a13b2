"""Convolutional networks of other papers: two 5×5 convolutions with ReLU and 2×2 max pooling, then linear layers.

* ``cnn_6_16``: NIID-Bench (Li et al. 2022), also in Flower's run of it: 6 and 16 channels, dense 120 and 84.
* ``cnn_20_50``: Async-HFL (arXiv 2301.06646): 20 and 50 channels. The dense width of 500 is our choice.
* ``lenet``: HierFAVG (arXiv 1905.06641), as its authors' code builds it under this name: 10 and 20 channels, dense 50,
  and dropout of half after the second convolution (whole channels) and after the dense layer.
"""

from __future__ import annotations

from torch import Tensor, nn

from hflray.config.options import whole
from hflray.errors import ConfigError, DataError
from hflray.models.paper import MIN_IMAGE_SIZE, image


class Cnn(nn.Module):
    """Two unpadded 5×5 convolutions, each followed by 2×2 max pooling and ReLU, then linear layers with ReLU between.

    Args:
        input_shape: (channels, height, width) of an image, of 16×16 and more.
        num_outputs: the number of outputs.
        channels: the channels of the two convolutions.
        dense: the widths of the hidden linear layers.
        dropout: the probability with which, in training, a channel of the second convolution and a number of the last
            hidden layer are set to zero.
        name: the network's name for messages.

    Raises:
        ConfigError: the probability is not in [0, 1).
        DataError: the inputs are no images, or smaller than 16×16.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        channels: tuple[int, int],
        dense: tuple[int, ...],
        dropout: float = 0.0,
        name: str = "cnn",
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"model.options.dropout: got {dropout}; accepted: a number from 0 to below 1; correct it")
        inputs, height, width = image(input_shape, name)
        if min(height, width) < MIN_IMAGE_SIZE:
            raise DataError(
                f"data.name: the images are {height}×{width}, and the two 5×5 convolutions of '{name}' accept "
                f"{MIN_IMAGE_SIZE}×{MIN_IMAGE_SIZE} and up; enlarge the images in the .npz"
            )
        first, second = channels
        layers: list[nn.Module] = [nn.Conv2d(inputs, first, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(first, second, 5)]
        layers += [nn.Dropout2d(dropout)] if dropout else []
        layers += [nn.MaxPool2d(2), nn.ReLU(), nn.Flatten()]
        before = second * (((height - 4) // 2 - 4) // 2) * (((width - 4) // 2 - 4) // 2)
        for after in dense:
            layers += [nn.Linear(before, after), nn.ReLU()]
            before = after
        layers += [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(*layers, nn.Linear(before, num_outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs, (batch, num_outputs)."""
        outputs: Tensor = self.layers(images)
        return outputs


def cnn_6_16(input_shape: tuple[int, ...], num_outputs: int) -> Cnn:
    """Return NIID-Bench's network: 44,426 parameters for 1×28×28 and 62,006 for 3×32×32, with ten classes."""
    return Cnn(input_shape, num_outputs, (6, 16), (120, 84), name="cnn_6_16")


def cnn_20_50(input_shape: tuple[int, ...], num_outputs: int, hidden: int = 500) -> Cnn:
    """Return Async-HFL's network: 431,080 parameters for 1×28×28 and ten classes.

    Raises:
        ConfigError: `hidden`, the width of the dense layer, is not an integer above 0.
    """
    return Cnn(input_shape, num_outputs, (20, 50), (whole("model.options.hidden", hidden, 1),), name="cnn_20_50")


def lenet(input_shape: tuple[int, ...], num_outputs: int, dropout: float = 0.5) -> Cnn:
    """Return HierFAVG's network: 21,840 parameters for 1×28×28 and ten classes."""
    return Cnn(input_shape, num_outputs, (10, 20), (50,), dropout, "lenet")
