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
from hflray.training.rules.base import Memory, Received, Vector, corrects, is_constant


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
        self._base, self._rates_here = rate, np.ascontiguousarray(rates, dtype=np.float32)
        self._rates = torch.from_numpy(self._rates_here).to(device)
        self._before, self._free = ([torch.empty_like(weight) for weight in self._weights] for _ in range(2))
        self._velocity = [torch.zeros_like(weight) for weight in self._weights] if method.momentum else []
        self._corrects, self._constant = corrects(self._rule), is_constant(self._rule)
        if self._corrects:
            self._corrected_at: int | None = None  # the step whose corrections are in `_scaled`
            self._scaled = [torch.empty_like(weight) for weight in self._weights] if self._constant else self._free

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
        method, rate = self._method, self._rates[:, index]
        with torch.no_grad():
            torch._foreach_copy_(self._before, self._weights)
        make()
        with torch.no_grad():
            # The weights hold their own change until the end, so that a step allocates next to nothing.
            changes = self._weights
            torch._foreach_sub_(changes, self._before)
            if method.decay.factor != 1.0:
                self._scale(rate / self._base)
            if method.clip is not None:
                squares = [
                    torch.mul(d, d, out=free).flatten(1).sum(1) for d, free in zip(changes, self._free, strict=True)
                ]
                norm = torch.stack(squares).sum(0).sqrt()
                self._scale((rate * method.clip / norm).clamp(max=1.0))  # infinite for no change at all
            if method.weight_decay:
                scaled = rate * method.weight_decay
                for d, was, free in zip(changes, self._before, self._free, strict=True):
                    d.sub_(torch.mul(_along(scaled, was), was, out=free))
            if self._corrects:
                torch._foreach_sub_(changes, self._corrections(index))
            if method.momentum:
                for d, velocity, free in zip(changes, self._velocity, self._free, strict=True):
                    d.add_(torch.mul(velocity, method.momentum, out=free))
            if active is None or active.all():
                if method.momentum:
                    torch._foreach_copy_(self._velocity, changes)
                torch._foreach_add_(changes, self._before)
                return
            moves = torch.from_numpy(active).to(rate.device)
            for i, (d, was) in enumerate(zip(changes, self._before, strict=True)):
                if method.momentum:
                    self._velocity[i].copy_(torch.where(_along(moves, was), d, self._velocity[i]))
                d.copy_(torch.where(_along(moves, was), d.add_(was), was))

    def _scale(self, factors: Tensor) -> None:
        """Multiply the change of each device by its factor, (n,)."""
        if factors.device.type == "cpu" and bool((factors == 1.0).all()):  # on a GPU the answer takes longer
            return
        for change in self._weights:
            change.mul_(_along(factors, change))

    def _corrections(self, index: int) -> list[Tensor]:
        """Return β·c(w) of each tensor in step `index`, from an earlier step if neither has changed."""
        rates, last = self._rates_here, self._corrected_at
        if not self._constant or last is None or not np.array_equal(rates[:, index], rates[:, last]):
            self._corrected_at, rate = index, self._rates[:, index]
            for i, (was, scaled) in enumerate(zip(self._before, self._scaled, strict=True)):
                torch.mul(_along(rate, was), self._correction(i, was), out=scaled)
        return self._scaled

    def _correction(self, index: int, weights: Tensor) -> Tensor:
        vectors = {name: tensors[index] for name, tensors in self._vectors.items()}
        memory = {name: tensors[index] for name, tensors in self._memory.items()}
        corrected: Tensor | None = self._rule.correction(weights, self._received[index], vectors, memory)
        return torch.zeros_like(weights) if corrected is None else corrected


def _along(numbers: Tensor, like: Tensor) -> Tensor:
    """Return a number for each device, (n,), in a shape that multiplies tensors (n, …)."""
    return numbers.view(-1, *[1] * (like.dim() - 1))
