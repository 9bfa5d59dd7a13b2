"""``gru``: a recurrent network that reads a window of tokens and predicts the next one (Cho et al. 2014).

An embedding, a gated recurrent unit and one linear layer on its last state: the usual small model of characters, as in
LEAF's Shakespeare task (Caldas et al. 2018), with a GRU in place of an LSTM.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hflray.errors import DataError


class Gru(nn.Module):
    """An embedding, a GRU and a linear layer.

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
