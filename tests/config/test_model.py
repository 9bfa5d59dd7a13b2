"""hflray.config.model: the section of the network."""

from __future__ import annotations

import pytest

from hflray.config import load_config
from hflray.errors import ConfigError


def test_the_papers_network_is_the_default() -> None:
    assert load_config().model.model_dump() == {"name": "paper_cnn", "options": {}}
    assert load_config().scheduling.auxiliary is None
    assert load_config().training.buffers == "average"


def test_names_are_checked_and_torchvisions_are_left_to_it() -> None:
    overrides = ["model={name: mlp, options: {hidden: [8]}}", "scheduling.auxiliary=logistic"]
    config = load_config(overrides=overrides)
    assert (config.model.options, config.scheduling.auxiliary) == ({"hidden": [8]}, "logistic")
    assert load_config(overrides=["model.name=torchvision:resnet18"]).model.name == "torchvision:resnet18"
    with pytest.raises(ConfigError, match=r"model.name: got 'reznet8'; unknown model .*did you mean 'resnet8'"):
        load_config(overrides=["model.name=reznet8"])
    with pytest.raises(ConfigError, match=r"scheduling.auxiliary: got 'full'; unknown model"):
        load_config(overrides=["scheduling.auxiliary=full"])
