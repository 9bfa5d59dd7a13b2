"""What is learned: the shapes of the data, the kind of problem, the model and the loss, as one small value.

It is what the training needs to know beside the samples themselves: hosts build their networks from it, and it travels
to every actor. It therefore holds no arrays, and equal problems are equal keys. Where it goes, the texts behind its
references go as well (`hflray.support.references`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Self

from hflray.support import references

if TYPE_CHECKING:
    from hflray.config import ExperimentConfig, Kind
    from hflray.data import Dataset

# The loss of each kind of problem, by its name in `hflray.losses`.
LOSS_OF: dict[Kind, str] = {"classification": "cross_entropy", "regression": "mse", "next_token": "cross_entropy"}


@dataclass(frozen=True)
class ModelSpec:
    """A network by name.

    Attributes:
        name: a name of the registry's kind ``model``.
        options_json: the options of its constructor as JSON with sorted keys, so that the value is hashable.
    """

    name: str = "paper_cnn"
    options_json: str = "{}"

    @classmethod
    def of(cls, name: str, options: Mapping[str, Any] | None = None) -> Self:
        """Return the network `name` with `options`, which are YAML's values: texts, numbers, lists and mappings."""
        return cls(name, json.dumps(dict(options or {}), sort_keys=True))

    @property
    def options(self) -> dict[str, Any]:
        """The options of the constructor."""
        options: dict[str, Any] = json.loads(self.options_json)
        return options


@dataclass(frozen=True)
class Problem:
    """What is learned.

    Attributes:
        input_shape: the shape of one input, such as (channels, height, width) of an image.
        num_outputs: the number of outputs of the network for one input: the classes, the different tokens, or 1 for a
            regression.
        kind: the kind of problem.
        model: the network.
        loss: the name of the loss in `hflray.losses`; empty: the one of the kind.
        buffers: whether the network's floating buffers travel with its weights and are averaged, see
            `hflray.models.vector`.
        num_tokens: the number of different tokens in the inputs, which are then integers; None: they are no tokens.
    """

    input_shape: tuple[int, ...]
    num_outputs: int
    kind: Kind = "classification"
    model: ModelSpec = field(default_factory=ModelSpec)
    loss: str = ""
    buffers: Literal["average", "local"] = "average"
    num_tokens: int | None = None

    def __post_init__(self) -> None:
        if not self.loss:
            object.__setattr__(self, "loss", LOSS_OF[self.kind])

    @classmethod
    def of(cls, dataset: Dataset, config: ExperimentConfig) -> Self:
        """Return the problem that an experiment learns from its data set."""
        model = ModelSpec.of(config.model.name, config.model.options)
        shapes = dataset.input_shape, dataset.num_classes, dataset.kind
        return cls(*shapes, model, config.training.loss or "", config.training.buffers, dataset.num_tokens)

    def __reduce__(self) -> tuple[Any, ...]:
        values = tuple(getattr(self, attribute.name) for attribute in fields(self))
        return _unpickled, (values, references.sources_of([self.model.name, self.loss]))


def _unpickled(values: tuple[Any, ...], sources: tuple[references.Source, ...]) -> Problem:
    """Return a problem whose texts this process holds, because each was adopted when it was unpickled."""
    return Problem(*values)
