"""The steps of a local rule, made from the plain steps of a kernel by differences.

A kernel makes a step of SGD in place, w⁺ = w − β·g, and no kernel knows of rules. With d = w⁺ − w, a step of a rule is:
d is scaled if the learning rate has fallen, clipped to an L2 norm of β·clip, and reduced by β·decay·w; then
v ← ρ·v + d − β·c(w) and w ← w + v, where c is the rule's correction. Momentum is reset at each reception.

On a CPU, C code makes the steps of one device in one pass over its weights, with the same bits; see `differences.c`.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hflray.errors import HflrayError
from hflray.support.arrays import BoolArray, FloatArray
from hflray.support.contract import Contract, described
from hflray.support.native import load_library
from hflray.training.method import Method
from hflray.training.rules.base import Memory, Received, Vector, corrects, further, of_correction


class ResidentWeights(Protocol):
    """The weights on which steps are made. The first dimension of all tensors is that of the devices, n."""

    def weights(self) -> list[Tensor]:
        """Return the trained tensors, (n, …), which share memory with the resident ones."""

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """Return vectors, (n, P), as tensors of the shapes of `weights`."""

    def memory(self) -> list[Tensor]:
        """Return for each of `weights` the dense float32 tensor of a CPU that holds it.

        What it holds beside the weights is 0 and stays 0. The list is empty if there is no such memory.
        """


CLEARLY = 0.999  # a squared norm below this part of its bound does not reach it; `differences.c` errs by less


class _Memory(ctypes.Structure):
    """The structure `Memory` of differences.c."""

    _fields_ = (
        ("count", ctypes.c_long),
        *((name, ctypes.c_void_p) for name in ("weights", "before", "correction", "velocity")),
    )


class _Step(ctypes.Structure):
    """The structure `Step` of differences.c."""

    _fields_ = (*((name, ctypes.c_float) for name in ("fall", "decay", "momentum")), ("decays", ctypes.c_int))


@functools.cache
def _code() -> ctypes.CDLL | None:
    """Return the C code; None if this machine cannot build it."""
    try:
        code = load_library(Path(__file__).with_name("differences.c"), "-ffp-contract=off")
    except HflrayError:
        return None
    code.differences_squares.restype = ctypes.c_double
    return code


class Differences:
    """Makes the steps of some devices in one edge iteration. Momentum begins at zero.

    Args:
        method: what a step does beside the gradient.
        rate: β, the learning rate with which the kernel makes its steps.
        resident: the weights, which hold what the devices received.
        received: what each device received, n of them.
        memories: what each device keeps.
        rates: the learning rate of each step of each device, (n, K); K is that of the device with most steps.
        shapes: the shape of each trained tensor in the network, which a kernel may keep in another; None: that of the
            resident weights.
    """

    def __init__(
        self,
        method: Method,
        rate: float,
        resident: ResidentWeights,
        received: Sequence[Received],
        memories: Sequence[Memory],
        rates: FloatArray,
        shapes: Sequence[torch.Size] | None = None,
    ) -> None:
        self._method, self._rule, self._weights = method, method.parts().rule, resident.weights()
        device = self._weights[0].device
        self._base, self._rates_here = rate, np.ascontiguousarray(rates, dtype=np.float32)
        self._rates = torch.from_numpy(self._rates_here).to(device)
        self._corrects, self._constant = corrects(self._rule), of_correction(self._rule, "constant")
        self._stacked = of_correction(self._rule, "stacked")
        self._code = _code() if len(received) == 1 else None
        dense = resident.memory() if self._code is not None else []
        self._memory = [tensor.as_strided((tensor.numel(),), (1,)) for tensor in dense]
        self._before_memory, self._before = self._like_weights()
        self._holds_before = False  # whether C code has already copied the weights there
        self._velocity_memory, self._velocity = self._like_weights() if method.momentum else ([], [])
        self._scaled_memory, self._scaled = self._like_weights() if self._corrects else ([], [])
        parts = zip_longest(self._memory, self._before_memory, self._scaled_memory, self._velocity_memory)
        rows = [_Memory(part[0].numel(), *(None if t is None else t.data_ptr() for t in part)) for part in parts]
        self._array = (_Memory * len(rows))(*rows)
        if self._corrects:
            self._corrected_at: int | None = None  # the step whose corrections are in `_scaled`
            self._flat, names = of_correction(self._rule, "flat"), further(self._rule.correction)
            self._shapes = shapes or [weight.shape[1:] for weight in self._weights]
            self._further = [{name: getattr(start, name) for name in names} for start in received]

            def arranged(vectors: list[Vector]) -> list[Tensor]:
                tensors = resident.arranged(torch.from_numpy(np.stack(vectors).astype(np.float32)).to(device))
                if not self._memory or self._constant:
                    return tensors
                # Tensors that lie alike in memory are combined faster.
                alike = self._like_weights()[1]
                torch._foreach_copy_(alike, tensors)
                return alike

            self._received = arranged([start.model for start in received])
            self._vectors = {
                name: arranged([start.vectors[name] for start in received]) for name in received[0].vectors
            }
            self._kept = {name: arranged([memory[name] for memory in memories]) for name in self._rule.memory}

    def _like_weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return memory of zeros, and tensors that lie in it as the weights lie in theirs."""
        if not self._memory:
            return [], [torch.zeros_like(weight) for weight in self._weights]
        memory = [torch.zeros(tensor.numel()) for tensor in self._memory]
        pairs = zip(memory, self._memory, self._weights, strict=True)
        return memory, [
            new.as_strided(weight.shape, weight.stride(), weight.storage_offset() - old.storage_offset())
            for new, old, weight in pairs
        ]

    def step(self, make: Callable[[], None], index: int, active: BoolArray | None = None) -> None:
        """Make one step.

        Args:
            make: makes the kernel's step.
            index: k, the number of the step, from 0.
            active: whether each device has a batch in this step, (n,); None: all have. The weights and the momentum of
                the others stay.
        """
        if not self._holds_before:
            with torch.no_grad():
                torch._foreach_copy_(self._before_memory or self._before, self._memory or self._weights)
        make()
        with torch.no_grad():
            if self._corrects:
                self._correct(index)
            self._holds_before = self._moves_in_code(index)
            if not self._holds_before:
                self._move(index, active)

    def _moves_in_code(self, index: int) -> bool:
        """Let C code make the step, unless there is none or clipping may need the norm to the last bit."""
        method, rate = self._method, self._rates_here[0, index]
        if self._code is None or not self._memory:
            return False
        fall = 1.0 if method.decay.factor == 1.0 else float(rate / np.float32(self._base))
        if method.clip is not None:
            squares = fall**2 * self._code.differences_squares(self._array, len(self._array))
            if not squares < CLEARLY * (float(rate) * method.clip) ** 2:
                return False
        decay = float(rate * np.float32(method.weight_decay))
        step = _Step(fall, decay, method.momentum, bool(method.weight_decay))
        self._code.differences_move(self._array, len(self._array), ctypes.byref(step))
        return True

    def _move(self, index: int, active: BoolArray | None) -> None:
        """Make the step with torch."""
        method, rate = self._method, self._rates[:, index]
        # The weights hold their own change until the end, so that a step allocates little.
        changes = self._weights
        torch._foreach_sub_(changes, self._before)
        if method.decay.factor != 1.0:
            self._scale(rate / self._base)
        if method.clip is not None:
            norm = torch.stack([(d * d).flatten(1).sum(1) for d in changes]).sum(0).sqrt()
            self._scale((rate * method.clip / norm).clamp(max=1.0))  # infinite for no change at all
        if method.weight_decay:
            scaled = rate * method.weight_decay
            for d, was in zip(changes, self._before, strict=True):
                d.sub_(_along(scaled, was) * was)
        if self._corrects:
            torch._foreach_sub_(changes, self._scaled)
        if method.momentum:
            for d, velocity in zip(changes, self._velocity, strict=True):
                d.add_(velocity * method.momentum)
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

    def _correct(self, index: int) -> None:
        """Compute β·c(w) of each tensor in step `index`, unless it is that of an earlier step."""
        rates, last = self._rates_here, self._corrected_at
        if not self._constant or last is None or not np.array_equal(rates[:, index], rates[:, last]):
            self._corrected_at, rate = index, self._rates[:, index]
            corrections = self._stacked_corrections() if self._stacked else self._own_corrections(index)
            for was, scaled, correction in zip(self._before, self._scaled, corrections, strict=True):
                torch.mul(_along(rate, was), correction, out=scaled)

    def _stacked_corrections(self) -> Iterator[Tensor]:
        """Yield the correction of each tensor of all devices at once, (n, …)."""
        for i, was in enumerate(self._before):
            vectors = {name: tensors[i] for name, tensors in self._vectors.items()}
            memory = {name: tensors[i] for name, tensors in self._kept.items()}
            corrected: Tensor | None = self._rule.correction(was, self._received[i], vectors, memory)
            yield torch.zeros_like(was) if corrected is None else corrected

    def _own_corrections(self, index: int) -> list[Tensor]:
        """Return the correction of each tensor, (n, …), by a rule that knows of one device only.

        Raises:
            ConfigError: it has another shape, or (in the first step) it is not finite.
        """
        corrections = []
        for row, more in enumerate(self._further):
            weights, received = self._of_device(row, self._before), self._of_device(row, self._received)
            vectors = {name: self._of_device(row, tensors) for name, tensors in self._vectors.items()}
            memory = {name: self._of_device(row, tensors) for name, tensors in self._kept.items()}
            made = [
                self._checked(
                    self._rule.correction(
                        weight,
                        received[i],
                        {name: tensors[i] for name, tensors in vectors.items()},
                        {name: tensors[i] for name, tensors in memory.items()},
                        **more,
                    ),
                    weight,
                    checks=index == 0,
                )
                for i, weight in enumerate(weights)
            ]
            parts = torch.split(made[0], [was[row].numel() for was in self._before]) if self._flat else made
            corrections.append([part.reshape(was[row].shape) for part, was in zip(parts, self._before, strict=True)])
        return [torch.stack(tensors) for tensors in zip(*corrections, strict=True)]

    def _of_device(self, row: int, tensors: list[Tensor]) -> list[Tensor]:
        """Return tensors of a device as the user's rule sees them."""
        if self._flat:
            return [torch.cat([tensor[row].reshape(-1) for tensor in tensors])]
        return [tensor[row].reshape(shape) for tensor, shape in zip(tensors, self._shapes, strict=True)]

    def _checked(self, corrected: object, weight: Tensor, checks: bool) -> Tensor:
        if corrected is None:
            return torch.zeros_like(weight)
        if isinstance(corrected, Tensor) and corrected.shape == weight.shape and corrected.is_floating_point():
            if not checks or bool(torch.isfinite(corrected).all()):
                return corrected
            got = "a tensor with numbers that are not finite"
        elif isinstance(corrected, Tensor):
            got = f"a tensor of {corrected.dtype} with the shape {tuple(corrected.shape)}"
        else:
            got = described(corrected)
        accepted = f"None, or a tensor of finite floats of the weights' shape {tuple(weight.shape)}"
        raise Contract.of("training.rule.name", self._rule, accepted, "mend its method correction").error(got)


def _along(numbers: Tensor, like: Tensor) -> Tensor:
    """Return a number for each device, (n,), in a shape that multiplies tensors (n, …)."""
    return numbers.view(-1, *[1] * (like.dim() - 1))
