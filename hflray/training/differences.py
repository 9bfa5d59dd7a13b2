"""The steps of a local rule, made from the plain steps of a kernel by differences.

A kernel makes a step of SGD in place, w⁺ = w − β·g, and no kernel knows of rules. With d = w⁺ − w, a step of a rule is:
d is scaled if the learning rate has fallen, clipped to an L2 norm of β·clip, and reduced by β·decay·w; then
v ← ρ·v + d − β·c(w) and w ← w + v, where c is the rule's correction. Momentum is reset at each reception.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hflray.support.arrays import BoolArray, FloatArray
from hflray.training.method import Method
from hflray.training.rules.base import Memory, Received, Vector, corrects


class Resident(Protocol):
    """The weights on which steps are made. The first dimension of all tensors is that of the devices, n."""

    def weights(self) -> list[Tensor]:
        """Return the trained tensors, (n, …), which share memory with the resident ones."""

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """Return vectors, (n, P), as tensors of the shapes of `weights`."""


class Differences:
    """Makes the steps of some devices in one edge iteration. Momentum begins at zero.

    Args:
        method: what a step does beside the gradient.
        rate: β, the learning rate with which the kernel makes its steps.
        resident: the weights, which hold what the devices received.
        received: what each device received, n of them.
        memories: what each device keeps.
        rates: the learning rate of each step of each device, (n, K); K is that of the device with most steps.
    """

    def __init__(
        self,
        method: Method,
        rate: float,
        resident: Resident,
        received: Sequence[Received],
        memories: Sequence[Memory],
        rates: FloatArray,
    ) -> None:
        self._method, self._rule, self._weights = method, method.parts().rule, resident.weights()
        device = self._weights[0].device
        self._rates = torch.from_numpy(np.ascontiguousarray(rates, dtype=np.float32)).to(device)
        self._base, self._velocity = rate, [torch.zeros_like(weight) for weight in self._weights]
        self._corrects = corrects(self._rule)
        if self._corrects:

            def arranged(vectors: list[Vector]) -> list[Tensor]:
                return resident.arranged(torch.from_numpy(np.stack(vectors).astype(np.float32)).to(device))

            names = received[0].vectors
            self._received = arranged([each.model for each in received])
            self._vectors = {name: arranged([each.vectors[name] for each in received]) for name in names}
            self._memory = {name: arranged([memory[name] for memory in memories]) for name in self._rule.memory}

    def step(self, make: Callable[[], None], index: int, active: BoolArray | None = None) -> None:
        """Make one step.

        Args:
            make: makes the kernel's step.
            index: k, the number of the step, from 0.
            active: whether each device has a batch in this step, (n,); None: all have. The weights and the momentum of
                the others stay.
        """
        method, before = self._method, [weight.clone() for weight in self._weights]
        make()
        with torch.no_grad():
            rate = self._rates[:, index]
            changes = [weight - was for weight, was in zip(self._weights, before, strict=True)]
            if method.decay.factor != 1.0:
                changes = [_along(rate / self._base, change) * change for change in changes]
            if method.clip is not None:
                squares = torch.stack([change.flatten(1).square().sum(1) for change in changes])
                factor = (rate * method.clip / squares.sum(0).sqrt()).clamp(max=1.0)  # infinite for no change at all
                changes = [_along(factor, change) * change for change in changes]
            if method.weight_decay:
                scaled = rate * method.weight_decay
                changes = [change - _along(scaled, was) * was for change, was in zip(changes, before, strict=True)]
            if self._corrects:
                changes = [
                    change - _along(rate, was) * self._correction(i, was)
                    for i, (change, was) in enumerate(zip(changes, before, strict=True))
                ]
            if method.momentum:
                changes = [
                    method.momentum * last + change for last, change in zip(self._velocity, changes, strict=True)
                ]
            moves = None if active is None or active.all() else torch.from_numpy(active).to(rate.device)
            for i, (weight, was, change) in enumerate(zip(self._weights, before, changes, strict=True)):
                moved = was + change
                if moves is None:
                    weight.copy_(moved)
                    self._velocity[i] = change
                else:
                    weight.copy_(torch.where(_along(moves, was), moved, was))
                    self._velocity[i] = torch.where(_along(moves, was), change, self._velocity[i])

    def _correction(self, index: int, weights: Tensor) -> Tensor:
        vectors = {name: tensors[index] for name, tensors in self._vectors.items()}
        memory = {name: tensors[index] for name, tensors in self._memory.items()}
        corrected: Tensor | None = self._rule.correction(weights, self._received[index], vectors, memory)
        return torch.zeros_like(weights) if corrected is None else corrected


def _along(numbers: Tensor, like: Tensor) -> Tensor:
    """Return a number for each device, (n,), in a shape that multiplies tensors (n, …)."""
    return numbers.view(-1, *[1] * (like.dim() - 1))
