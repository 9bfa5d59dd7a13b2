"""hflray.models.cnn: the convolutional networks of other papers."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import ConfigError, DataError
from hflray.models import build
from hflray.models.problem import ModelSpec, Problem


@pytest.mark.parametrize(
    "name, shape, count",
    [
        # first convolution + second + each linear layer, weights and biases
        ("cnn_6_16", (1, 28, 28), 156 + 2_416 + 30_840 + 10_164 + 850),
        ("cnn_6_16", (3, 32, 32), 456 + 2_416 + 48_120 + 10_164 + 850),
        ("cnn_20_50", (1, 28, 28), 520 + 25_050 + 400_500 + 5_010),
        ("cnn_20_50", (3, 32, 32), 1_520 + 25_050 + 625_500 + 5_010),
        ("lenet", (1, 28, 28), 260 + 5_020 + 16_050 + 510),
        ("lenet", (3, 32, 32), 760 + 5_020 + 25_050 + 510),
    ],
)
def test_parameters_and_shapes(name: str, shape: tuple[int, ...], count: int) -> None:
    module = build(Problem(shape, 10, model=ModelSpec(name)))
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert module.eval()(torch.zeros(3, *shape)).shape == (3, 10)


def test_lenet_drops_out_channels_and_numbers_in_training_only() -> None:
    module = build(Problem((1, 28, 28), 10, model=ModelSpec("lenet")))
    images = torch.rand(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    assert not torch.equal(module.train()(images), module(images))
    assert torch.equal(module.eval()(images), module(images))
    names = [type(layer).__name__ for layer in module.layers]
    assert names[3:6] == ["Conv2d", "Dropout2d", "MaxPool2d"]
    assert names[-2:] == ["Dropout", "Linear"]
    without = build(Problem((1, 28, 28), 10, model=ModelSpec.of("lenet", {"dropout": 0.0})))
    assert not any("Dropout" in type(layer).__name__ for layer in without.layers)


@pytest.mark.parametrize(
    "name, options, shape, error, message",
    [
        ("cnn_6_16", {}, (30,), DataError, "'cnn_6_16' reads images"),
        ("lenet", {}, (1, 15, 28), DataError, "images are 15×28, and the two 5×5 convolutions of 'lenet' accept 16×16"),
        ("lenet", {"dropout": 1}, (1, 28, 28), ConfigError, "dropout: got 1; accepted"),
        ("cnn_20_50", {"hidden": 0}, (1, 28, 28), ConfigError, "hidden: got 0; accepted"),
        ("cnn_6_16", {"hidden": 3}, (1, 28, 28), ConfigError, "unknown option 'hidden'"),
    ],
)
def test_what_does_not_fit_is_named(name, options, shape, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        build(Problem(shape, 10, model=ModelSpec.of(name, options)))
