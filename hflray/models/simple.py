"""Networks of linear layers for inputs of any shape: ``logistic`` (one layer), ``mlp`` (a multilayer perceptron), and
``mlp_200_200``, the perceptron that MTGC's authors train on Fashion-MNIST (arXiv 2409.18448)."""

from __future__ import annotations

import math

from torch import Tensor, nn

from hflray.errors import ConfigError


class Mlp(nn.Module):
    """A multilayer perceptron: inputs of any shape are flattened, then linear layers with ReLU between them.

    Args:
        input_shape: the shape of one input.
        num_outputs: the number of outputs.
        hidden: the widths of the hidden layers.
        dropout: the probability with which a hidden number is set to zero in training.

    Raises:
        ConfigError: a width is below 1, or the probability is not in [0, 1).
    """

    def __init__(
        self, input_shape: tuple[int, ...], num_outputs: int, hidden: tuple[int, ...] = (128,), dropout: float = 0.0
    ) -> None:
        super().__init__()
        if not all(isinstance(width, int) and width > 0 for width in hidden):
            raise ConfigError(f"model.options.hidden: got {hidden}; accepted: a list of integers above 0; correct it")
        if not 0 <= dropout < 1:
            raise ConfigError(f"model.options.dropout: got {dropout}; accepted: a number from 0 to below 1; correct it")
        layers: list[nn.Module] = [nn.Flatten()]
        width = math.prod(input_shape)
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU()]
            layers += [nn.Dropout(dropout)] if dropout else []
            width = next_width
        self.layers = nn.Sequential(*layers, nn.Linear(width, num_outputs))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs, (batch, num_outputs)."""
        outputs: Tensor = self.layers(inputs)
        return outputs


def logistic(input_shape: tuple[int, ...], num_outputs: int) -> Mlp:
    """Return one linear layer: logistic regression for classes, and linear regression for numbers."""
    return Mlp(input_shape, num_outputs, hidden=())


def mlp_200_200(input_shape: tuple[int, ...], num_outputs: int) -> Mlp:
    """Return MTGC's perceptron with two hidden layers of 200: 199,210 parameters for 1×28×28 and ten classes."""
    return Mlp(input_shape, num_outputs, hidden=(200, 200))
