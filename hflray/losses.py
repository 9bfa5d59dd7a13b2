"""The losses, and how many samples are right: one table for training, scoring and evaluation.

A loss is a function of scores and targets like torch's own: `reduction` is ``mean`` (a scalar, for a gradient step),
``none`` (a loss of each sample) or ``sum`` (a scalar).
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from torch.nn import functional

from hflray.errors import ConfigError


class Loss(Protocol):
    """A function of the network's outputs (n, …) and the targets (n, …) of n samples."""

    def __call__(self, scores: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Return the loss: a scalar, or (n,) with the reduction ``none``."""


LOSSES: dict[str, Loss] = {"cross_entropy": functional.cross_entropy}


def find_loss(name: str) -> Loss:
    """Return the loss of this name.

    Raises:
        ConfigError: the name is unknown.
    """
    if name not in LOSSES:
        raise ConfigError(f"loss: got {name!r}; accepted: {', '.join(LOSSES)}; correct it")
    return LOSSES[name]


def count_correct(scores: Tensor, targets: Tensor) -> int:
    """Return how many of the samples have their largest score at the class that is their target."""
    return int((scores.argmax(1) == targets).sum())
