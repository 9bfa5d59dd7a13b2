"""``torchvision:NAME``: a classifier of torchvision by its name, with the outputs of the problem and random weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from hflray.data.download import import_torchvision
from hflray.errors import ConfigError, DataError, nearest
from hflray.models.paper import image
from hflray.support.text import one_line

PREFIX = "torchvision:"


def torchvision_model(architecture: str, input_shape: tuple[int, ...], num_outputs: int, **options: Any) -> nn.Module:
    """Build a network of torchvision.

    Args:
        architecture: the name after ``torchvision:``.
        input_shape: (channels, height, width) of an image.
        num_outputs: the number of outputs.
        options: arguments of torchvision's constructor.

    Raises:
        ConfigError: torchvision has no such network, or it takes no such option.
        DataError: the network reads another number of channels.
    """
    channels, _, _ = image(input_shape, PREFIX + architecture)
    models = import_torchvision().models
    names: list[str] = models.list_models(module=models)
    if architecture not in names:
        raise ConfigError(
            f"model.name: torchvision has no '{architecture}'{nearest(architecture, names)}; accepted: a name of "
            "torchvision.models.list_models(module=torchvision.models); correct it"
        )
    try:
        module: nn.Module = models.get_model(architecture, weights=None, num_classes=num_outputs, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"model.options: torchvision's {one_line(str(error))}; remove the option") from error
    first = next((layer for layer in module.modules() if isinstance(layer, nn.Conv2d)), None)
    if first is not None and first.in_channels != channels:
        raise DataError(
            f"model.name: '{PREFIX}{architecture}' reads images of {first.in_channels} channels, and these have "
            f"{channels}; choose another data set, or write a network of your own"
        )
    return module
