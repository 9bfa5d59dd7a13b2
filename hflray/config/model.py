"""The section of the network that is learned."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hflray.config.base import Named, Section


class ModelConfig(Section):
    """The network, by name or reference, and the options of its constructor."""

    name: Annotated[str, Named("model")] = Field(
        "paper_cnn",
        description="paper_cnn | mlp | mlp_200_200 | logistic | cnn_6_16 | cnn_20_50 | lenet | resnet8 | gru | "
        "torchvision:NAME, such as resnet18",
    )
    options: dict[str, Any] = Field({}, description="further arguments of the network")
