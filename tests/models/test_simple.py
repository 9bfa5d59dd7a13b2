"""hflray.models.simple: multilayer perceptrons and logistic regression."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import ConfigError
from hflray.models import build
from hflray.models.problem import ModelSpec, Problem


def test_an_mlp_is_linear_layers_with_relu_worked_out_by_hand() -> None:
    module = build(Problem((2, 2), 1, model=ModelSpec.of("mlp", {"hidden": [2]})))
    first, last = module.layers[1], module.layers[3]
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1]]))
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[2.0, 3.0]]))
        last.bias.fill_(0.5)
    inputs = torch.tensor([[[1.0, 2], [3, 4]], [[-1, -2], [-3, -4]]])
    assert module(inputs).tolist() == [[20.5], [30.5]]


def test_logistic_is_one_layer() -> None:
    module = build(Problem((30,), 2, model=ModelSpec("logistic")))
    assert sum(parameter.numel() for parameter in module.parameters()) == 62
    assert module(torch.zeros(5, 30)).shape == (5, 2)


def test_mtgcs_perceptron_has_its_parameters() -> None:
    # 784·200 + 200, 200·200 + 200 and 200·10 + 10
    for shape, count in (((1, 28, 28), 157_000 + 40_200 + 2_010), ((3, 32, 32), 614_600 + 40_200 + 2_010)):
        module = build(Problem(shape, 10, model=ModelSpec("mlp_200_200")))
        assert sum(parameter.numel() for parameter in module.parameters()) == count
        assert module(torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"hidden": [0]}, "hidden: got"),
        ({"dropout": 1.0}, "dropout: got 1.0"),
        ({"hiden": [3]}, "did you mean 'hidden'"),
    ],
)
def test_wrong_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(Problem((4,), 2, model=ModelSpec.of("mlp", options)))


def test_the_data_decide_the_shapes() -> None:
    with pytest.raises(ConfigError, match="num_outputs: the data set decides it"):
        build(Problem((4,), 2, model=ModelSpec.of("mlp", {"num_outputs": 3})))
