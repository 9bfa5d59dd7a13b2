"""hflray.models.resnet: eight layers with weights, three residual blocks, two norms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hflray.errors import ConfigError, DataError
from hflray.models import build, num_parameters
from hflray.models.problem import ModelSpec, Problem


def resnet(**options: object) -> nn.Module:
    return build(Problem((3, 32, 32), 10, model=ModelSpec.of("resnet8", options)))


def test_its_size_is_that_of_the_papers_network_of_six_n_plus_two_layers() -> None:
    """He et al.: 3×3 convolutions of 16, 32 and 64 channels, and 1×1 convolutions on two shortcuts."""
    convolutions = 9 * (3 * 16 + 2 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 16 * 32 + 32 * 64
    norms = 2 * (3 * 16 + 3 * 32 + 3 * 64)
    assert num_parameters(resnet()) == convolutions + norms + 64 * 10 + 10
    layers = [name for name, layer in resnet().named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    on_the_path = [name for name in layers if "shortcut" not in name]
    assert len(on_the_path) == 8


def test_a_block_adds_its_input() -> None:
    block = resnet().blocks[0]
    with torch.no_grad():
        block.norm2.weight.zero_()  # the residual is then the norm's bias, which is zero
    features = torch.rand(2, 16, 4, 4)
    torch.testing.assert_close(block(features), features)


def test_the_image_halves_twice_and_any_size_is_read() -> None:
    module = resnet()
    assert module.blocks(torch.zeros(1, 16, 32, 32)).shape == (1, 64, 8, 8)
    assert module(torch.zeros(2, 3, 20, 28)).shape == (2, 10)


def test_wrong_options_and_inputs_are_named() -> None:
    with pytest.raises(ConfigError, match="norm: got 'layer'; accepted: group or batch"):
        resnet(norm="layer")
    with pytest.raises(ConfigError, match="width: got 12; accepted: a multiple of 8"):
        resnet(width=12)
    with pytest.raises(DataError, match="'resnet8' reads images"):
        build(Problem((30,), 2, model=ModelSpec("resnet8")))
