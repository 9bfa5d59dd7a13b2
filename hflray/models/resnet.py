"""``resnet8``: a small residual network for images (He et al. 2016, section 4.2, n = 1).

A 3×3 convolution of 16 channels is followed by three residual blocks of 16, 32 and 64 channels, of which the second
and third halve the image, by the mean over the image, and by one linear layer: eight layers with weights on the path
that is not a shortcut. The shortcuts of the second and third block are 1×1 convolutions (option B of the paper).

GroupNorm is the default: BatchNorm's statistics are those of a device's own classes, and on data that are not
identically distributed they harm the averaged model (Hsieh et al. 2020, "The Non-IID Data Quagmire").
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

from hflray.config.options import one_of
from hflray.errors import ConfigError
from hflray.models.paper import image

GROUPS = 8  # of GroupNorm; 16 channels then have groups of two
Norm = Literal["group", "batch"]


def _norm(channels: int, norm: Norm) -> nn.Module:
    return nn.GroupNorm(min(GROUPS, channels), channels) if norm == "group" else nn.BatchNorm2d(channels)


class Block(nn.Module):
    """A residual block of two 3×3 convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(outputs, norm)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(outputs, norm)
        same = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), _norm(outputs, norm))
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the features after the block."""
        inner = functional.relu(self.norm1(self.conv1(features)))
        inner = self.norm2(self.conv2(inner))
        return functional.relu(inner + self.shortcut(features))


class ResNet8(nn.Module):
    """The residual network of eight layers; see the module's text.

    Args:
        input_shape: (channels, height, width) of an image.
        num_outputs: the number of outputs.
        norm: ``group`` (GroupNorm) or ``batch`` (BatchNorm).
        width: the channels of the first layers, a multiple of 8.

    Raises:
        ConfigError: an option is out of its range.
        DataError: the inputs are no images.
    """

    def __init__(self, input_shape: tuple[int, ...], num_outputs: int, norm: Norm = "group", width: int = 16) -> None:
        super().__init__()
        one_of("model.options.norm", norm, ("group", "batch"))
        if width < 1 or width % GROUPS:
            raise ConfigError(f"model.options.width: got {width}; accepted: a multiple of {GROUPS}; correct it")
        channels, _, _ = image(input_shape, "resnet8")
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = _norm(width, norm)
        self.blocks = nn.Sequential(
            Block(width, width, 1, norm), Block(width, 2 * width, 2, norm), Block(2 * width, 4 * width, 2, norm)
        )
        self.linear = nn.Linear(4 * width, num_outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs, (batch, num_outputs)."""
        features = self.blocks(functional.relu(self.norm(self.conv(images))))
        outputs: Tensor = self.linear(features.mean((2, 3)))
        return outputs
