"""hflray.losses: the losses by name, and the count of right answers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hflray import registry
from hflray.errors import ConfigError
from hflray.losses import check_loss, count_correct, find_loss, shard_sums, summarise


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
    with pytest.raises(ConfigError, match="loss: unknown loss 'hinge'; known: cross_entropy, mse;"):
        find_loss("hinge")


def test_squared_errors_are_of_the_targets_shape() -> None:
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    loss = find_loss("mse")
    assert loss(outputs, targets, reduction="none").tolist() == [0.0, 4.0, 9.0]
    assert float(loss(outputs, targets)) == pytest.approx(13 / 3)
    assert float(loss(outputs[:, 0], targets, reduction="sum")) == 13.0


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], str]:
    """Register a function as the loss ``own`` and return this name."""

    def add(function: Callable[..., object]) -> str:
        monkeypatch.setitem(registry._ADDED, ("loss", "own"), function)
        return "own"

    return add


def test_a_function_that_returns_a_mean_has_every_reduction(own) -> None:
    loss = find_loss(own(lambda outputs, targets: (outputs - targets).abs().mean()))
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert loss(outputs, targets, reduction="none").tolist() == [0.0, 2.0, 3.0]
    assert float(loss(outputs, targets)) == pytest.approx(5 / 3)
    assert float(loss(outputs, targets, reduction="sum")) == 5.0


def test_a_function_of_torch_is_a_loss(own) -> None:
    name = own(torch.nn.functional.l1_loss)
    outputs, targets = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 0.0, 1.0])
    assert find_loss(name)(outputs, targets, reduction="none").tolist() == [0.0, 2.0, 3.0]
    check_loss(name, "regression", 1)


def test_r2_of_shards_is_that_of_the_whole_test_set() -> None:
    from sklearn.metrics import r2_score

    rng = np.random.default_rng(0)
    y = rng.normal(3, 2, 2500).astype(np.float32)
    predicted = (y + rng.normal(0, 1, 2500)).astype(np.float32)
    shards = [
        shard_sums("regression", torch.from_numpy(predicted[i : i + 1000, None]), torch.from_numpy(y[i : i + 1000]),
                   find_loss("mse"))
        for i in range(0, 2500, 1000)
    ]  # fmt: skip
    score, loss = summarise(shards, 2500, "regression")
    assert score == pytest.approx(r2_score(y.astype(float), predicted.astype(float)), rel=1e-12)
    assert loss == pytest.approx(float(((predicted - y) ** 2).mean()), rel=1e-6)
    assert summarise(shards[::-1], 2500, "regression") == (score, loss)  # exact sums, so the order does not matter
