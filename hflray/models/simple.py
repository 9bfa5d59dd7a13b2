"""Small networks without convolutions.

For inputs of any shape there are networks of linear layers: ``logistic`` (one layer), ``mlp`` (a multilayer
perceptron), and ``mlp_200_200``, the perceptron that MTGC's authors train on Fashion-MNIST (arXiv 2409.18448).
``gru`` is a recurrent network for windows of tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from hflray.errors import ConfigError, DataError


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


class Gru(nn.Module):
    """A recurrent network that reads a window of tokens and predicts the next one (Cho et al. 2014).

    An embedding, a gated recurrent unit and one linear layer on its last state: the usual small model of characters, as
    in LEAF's Shakespeare task (Caldas et al. 2018), with a GRU in place of an LSTM.

    Args:
        input_shape: (tokens of a window,).
        num_outputs: the size of the vocabulary, which is that of the inputs too.
        embedding: numbers for each token.
        hidden: numbers of the state.
        layers: GRUs on top of each other.

    Raises:
        DataError: the inputs are no windows of tokens.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_outputs: int,
        embedding: int = 32,
        hidden: int = 128,
        layers: int = 1,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise DataError(
                f"model.name: 'gru' reads windows of tokens, and an input of these data has the shape "
                f"{list(input_shape)}; set model.name to paper_cnn, resnet8, mlp or logistic"
            )
        self.embedding = nn.Embedding(num_outputs, embedding)
        self.gru = nn.GRU(embedding, hidden, layers, batch_first=True)
        self.linear = nn.Linear(hidden, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the token after each window (batch, time) of integers, (batch, num_outputs).

        Raises:
            DataError: the inputs are not integers.
        """
        if tokens.dtype not in (torch.int32, torch.int64):
            raise DataError(
                "model.name: 'gru' reads integers, and these inputs are not; set model.name to mlp or logistic, "
                "or give a data set of the kind next_token"
            )
        states, _ = self.gru(self.embedding(tokens))
        scores: Tensor = self.linear(states[:, -1])
        return scores
