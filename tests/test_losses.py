"""hflray.losses: the losses by name, and the count of right answers."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import ConfigError
from hflray.losses import count_correct, find_loss


def test_cross_entropy_has_torchs_bits_with_every_reduction() -> None:
    scores, targets = torch.randn(7, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1, 2, 0])
    loss = find_loss("cross_entropy")
    for reduction in ("mean", "none", "sum"):
        expected = torch.nn.functional.cross_entropy(scores, targets, reduction=reduction)
        torch.testing.assert_close(loss(scores, targets, reduction=reduction), expected, rtol=0, atol=0)


def test_right_answers_are_counted() -> None:
    scores = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    assert count_correct(scores, torch.tensor([0, 1, 0])) == 2


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(ConfigError, match="loss: got 'hinge'; accepted: cross_entropy"):
        find_loss("hinge")
