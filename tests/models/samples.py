"""The paper's two networks, and random data of a problem's shapes, which several tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hflray.models import MINI, build
from hflray.models.paper import MINI_INPUT_SHAPE
from hflray.models.problem import Problem


def build_model(kind: str, image_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Return the HFL model (``"hfl"``) for images of a shape, or the mini model (``"mini"``)."""
    mini = Problem(MINI_INPUT_SHAPE, num_classes, model=MINI)
    return build({"hfl": Problem(image_shape, num_classes), "mini": mini}[kind])


def random_samples(problem: Problem, count: int, rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return inputs and targets of the right shapes and types."""
    shape = (count, *problem.input_shape)
    inputs: NDArray[Any]
    if problem.num_tokens is None:
        inputs = rng.standard_normal(shape, dtype=np.float32)
    else:
        inputs = rng.integers(0, problem.num_tokens, shape)
    if problem.kind == "regression":
        return inputs, rng.standard_normal(count, dtype=np.float32)
    return inputs, rng.integers(0, problem.num_outputs, count)
