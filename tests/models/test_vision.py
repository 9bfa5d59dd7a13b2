"""hflray.models.vision: classifiers of torchvision by name."""

from __future__ import annotations

import pytest
import torch

from hflray.errors import ConfigError, DataError
from hflray.models import build
from hflray.models.problem import ModelSpec, Problem


def test_a_network_of_torchvision_gets_the_outputs_of_the_data() -> None:
    module = build(Problem((3, 32, 32), 7, model=ModelSpec("torchvision:squeezenet1_1")))
    assert module.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    module = build(Problem((3, 32, 32), 7, model=ModelSpec.of("torchvision:squeezenet1_1", {"dropout": 0.125})))
    assert [layer.p for layer in module.modules() if isinstance(layer, torch.nn.Dropout)] == [0.125]


@pytest.mark.parametrize(
    "name, options, shape, error, message",
    [
        ("torchvision:squeezenet1_1", {}, (1, 28, 28), DataError, "reads images of 3 channels, and these have 1"),
        ("torchvision:squeezenet1_1", {"foo": 1}, (3, 32, 32), ConfigError, "unexpected keyword argument 'foo'"),
        ("torchvision:squeezenet9", {}, (3, 32, 32), ConfigError, "torchvision has no 'squeezenet9'; did you mean"),
        ("torchvision:resnet18", {}, (30,), DataError, "reads images"),
    ],
)
def test_what_does_not_fit_is_named(name, options, shape, error, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        build(Problem(shape, 10, model=ModelSpec.of(name, options)))
