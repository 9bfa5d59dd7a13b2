"""hflray.models.gru: windows of tokens in, scores of the next token out."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import DataError
from hflray.models import build
from hflray.models.problem import ModelSpec, Problem

WINDOWS = Problem((12,), 7, model=ModelSpec.of("gru", {"hidden": 8, "embedding": 4}))


def test_it_scores_every_token_of_the_vocabulary() -> None:
    module = build(WINDOWS)
    tokens = torch.randint(0, 7, (5, 12), generator=torch.Generator().manual_seed(0))
    assert module(tokens).shape == (5, 7)
    assert sum(p.numel() for p in module.parameters()) == 7 * 4 + 3 * 8 * (4 + 8 + 2) + 8 * 7 + 7


def test_the_whole_window_matters() -> None:
    module, tokens = build(WINDOWS), torch.zeros(1, 12, dtype=torch.int64)
    other = tokens.clone()
    other[0, 0] = 3
    assert not torch.equal(module(tokens), module(other))


def test_inputs_that_are_no_tokens_are_refused() -> None:
    with pytest.raises(DataError, match="'gru' reads windows of tokens"):
        build(Problem((3, 8, 8), 7, model=ModelSpec("gru")))
    with pytest.raises(DataError, match="'gru' reads integers"):
        build(WINDOWS)(torch.zeros(2, 12))
