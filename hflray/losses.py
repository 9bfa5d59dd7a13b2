"""The losses, and how well a model does on the test set: one table for training, scoring and evaluation.

A loss is a function of outputs and targets like torch's own: `reduction` is ``mean`` (a scalar, for a gradient step),
``none`` (a loss of each sample) or ``sum`` (a scalar). A user's function without this parameter returns the mean loss
of the samples that it is given, as a scalar.

The main metric of each kind of problem is computed from sums over fixed shards of the test set, which are added exactly
(`math.fsum`). It therefore has the same bits for any number of actors.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from hflray import metrics, registry
from hflray.config import Kind
from hflray.errors import ConfigError
from hflray.support.references import reason, spoken

Sums = tuple[float, ...]  # sums over a shard, see `shard_sums`
METRIC_OF: dict[Kind, str] = {
    "classification": metrics.ACCURACY,
    "regression": metrics.R2,
    "next_token": metrics.TOKEN_ACCURACY,
}


class Loss(Protocol):
    """A function of the network's outputs (n, …) and the targets (n, …) of n samples."""

    def __call__(self, scores: Tensor, targets: Tensor, /, *, reduction: str = "mean") -> Tensor:
        """Return the loss: a scalar, or (n,) with the reduction ``none``."""


cross_entropy: Loss = functional.cross_entropy


def mse(outputs: Tensor, targets: Tensor, *, reduction: str = "mean") -> Tensor:
    """Return the squared errors of outputs (n, 1), or (n,), and targets (n,)."""
    return functional.mse_loss(predictions(outputs, targets), targets, reduction=reduction)


def predictions(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs of a regression, (n, 1), in the shape of the targets, (n,); other outputs are not changed."""
    return outputs[..., 0] if targets.is_floating_point() and outputs.dim() == targets.dim() + 1 else outputs


def find_loss(name: str) -> Loss:
    """Return the loss of this name or reference.

    Raises:
        ConfigError: the name is unknown, or the reference leads to no loss.
    """
    if name == "cross_entropy":
        return cross_entropy
    if name == "mse":
        return mse
    return _reduced(registry.resolve("loss", name))


def _reduced(function: Callable[..., Tensor]) -> Loss:
    """Return a user's loss as a `Loss`."""
    if "reduction" in inspect.signature(function).parameters:
        return lambda outputs, targets, reduction="mean": function(
            predictions(outputs, targets), targets, reduction=reduction
        )

    def of_a_sample(output: Tensor, target: Tensor) -> Tensor:
        return function(output[None], target[None])

    def loss(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        values = predictions(outputs, targets)
        if reduction == "mean":
            return function(values, targets)
        losses: Tensor = torch.func.vmap(of_a_sample)(values, targets)
        return losses if reduction == "none" else losses.sum()

    return loss


def check_loss(name: str, kind: Kind, num_outputs: int) -> None:
    """Try a loss on two samples, and on eight whether it is the mean of their own losses.

    Raises:
        ConfigError: it fails, does not return a finite scalar, has no gradient, or is no such mean. The message is one
            line.
    """
    outputs = torch.full((2, num_outputs), 0.5, requires_grad=True)
    targets = torch.zeros(2) if kind == "regression" else torch.zeros(2, dtype=torch.int64)
    eight = 0.1 + 0.8 * torch.rand((8, num_outputs), generator=torch.Generator().manual_seed(0))
    ends = torch.linspace(0, 1 if kind == "regression" else num_outputs - 1, 8).to(targets.dtype)
    of_eight: dict[str, Tensor] = {}
    refused, loss = f"training.loss: {spoken(name)}", find_loss(name)
    fix = "accepted: a function of outputs (n, …) and targets (n,) that returns their mean loss"
    for reduction, shape in (("mean", ()), ("none", (2,)), ("sum", ())):
        how = "" if reduction == "mean" else f" with the reduction {reduction}"
        try:
            value: Any = loss(outputs, targets, reduction=reduction)
            of_eight[reduction] = loss(eight, ends, reduction=reduction)
        except Exception as error:  # a user's function may raise any type, and torch.func.vmap too
            failed = f"{refused} fails on {num_outputs} outputs of a {kind}{how} ({reason(error)})"
            raise ConfigError(f"{failed}; {fix}") from error
        if not isinstance(value, Tensor) or tuple(value.shape) != shape:
            returned = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ConfigError(f"{refused} returns {returned} for two samples{how}; {fix}, of the shape {shape}")
        if reduction == "mean" and not math.isfinite(number := float(value.detach())):
            raise ConfigError(f"{refused} returns {number} for outputs of 0.5 and targets of 0; {fix}, a finite number")
        if reduction == "mean" and not value.requires_grad:
            raise ConfigError(f"{refused} has no gradient; {fix}, computed by torch from the outputs")
    mean = of_eight["mean"].double()
    for other in (of_eight["none"].double().mean(), of_eight["sum"].double() / 8):
        if not torch.allclose(mean, other, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise ConfigError(
                f"{refused} returns {mean:.6g} for eight samples, and {other:.6g} as the mean of the losses that it "
                f"returns for each; {fix}, in which all samples count alike; leave out weights of classes and what is "
                "computed from the mean"
            )


def count_correct(scores: Tensor, targets: Tensor) -> int:
    """Return how many of the samples have their largest score at the class that is their target."""
    return int((scores.argmax(1) == targets).sum())


def shard_sums(kind: Kind, outputs: Tensor, targets: Tensor, loss: Loss) -> Sums:
    """Return the sums over a shard of the test set from which `summarise` computes the main metric and the loss.

    Returns:
        For classes and tokens, the number of right answers and the sum of the losses; for a regression, the squared
        errors, the losses, the targets and their squares, each summed in double precision.
    """
    total = float(loss(outputs, targets, reduction="sum"))
    if kind != "regression":
        return count_correct(outputs, targets), total
    values, y = predictions(outputs, targets).double(), targets.double()
    return float(((values - y) ** 2).sum()), total, float(y.sum()), float((y**2).sum())


def summarise(shards: Sequence[Sums], samples: int, kind: Kind = "classification") -> tuple[float, float]:
    """Return the main metric and the mean loss of a test set of `samples` from its shards' sums.

    The main metric is the share of right answers, or R² = 1 − Σ (y − ŷ)² / Σ (y − ȳ)² for a regression.
    """
    loss = math.fsum(shard[1] for shard in shards) / samples
    if kind != "regression":
        return sum(shard[0] for shard in shards) / samples, loss
    errors, _, total, squares = (math.fsum(column) for column in zip(*shards, strict=True))
    return 1.0 - errors / (squares - total**2 / samples), loss
