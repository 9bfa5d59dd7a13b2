"""The tensors of devices that the batched kernel trains at once; see `hflray.training.batched`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hflray.training.kernels import split_like

NO_SAMPLE = -1  # marks padding in a batch


class Group:
    """The tensors on which a group of devices makes its steps. A CUDA graph needs the same tensors in every step.

    Attributes:
        parameters: the devices' parameters by name, (count, *shape) each.
        pick: the samples of each device in this step, (count, width); `NO_SAMPLE` marks padding.
        replay: a function that makes a step from the captured graph; None before the capture.
    """

    def __init__(self, shapes: Mapping[str, torch.Size], count: int, width: int, device: torch.device) -> None:
        self.parameters = {name: torch.zeros(count, *shape, device=device) for name, shape in shapes.items()}
        self.pick = torch.full((count, width), NO_SAMPLE, dtype=torch.int64, device=device)
        self.replay: Callable[[], None] | None = None

    def load(self, vectors: Tensor) -> None:
        """Copy `vectors`, (n, P), into the parameters of the first n devices, and set the others to zero."""
        sizes = [values[0].numel() for values in self.parameters.values()]
        for values, part in zip(self.parameters.values(), torch.split(vectors, sizes, dim=1), strict=True):
            values[: len(part)] = part.view(len(part), *values.shape[1:])
            values[len(part) :] = 0

    def weights(self, count: int) -> list[Tensor]:
        """Return the parameters of the first `count` devices, (count, *shape) each, without a copy."""
        return [values[:count] for values in self.parameters.values()]

    def vectors(self, count: int) -> Tensor:
        """Return the parameters of the first `count` devices, (count, P)."""
        return torch.cat([values[:count].reshape(count, -1) for values in self.parameters.values()], dim=1)


class Residents:
    """The first devices of a group, as `hflray.training.differences` needs them."""

    def __init__(self, group: Group, count: int) -> None:
        self._group, self._count = group, count

    def weights(self) -> list[Tensor]:
        """See `hflray.training.differences.Resident`."""
        return self._group.weights(self._count)

    def arranged(self, vectors: Tensor) -> list[Tensor]:
        """See `hflray.training.differences.Resident`."""
        return split_like(vectors, [values.shape[1:] for values in self._group.parameters.values()])

    def memory(self) -> list[Tensor]:
        """See `hflray.training.differences.Resident`. Torch steps all devices at once, on a GPU too."""
        return []


def rounded_up(count: int) -> int:
    """Round `count` up to 1 to 16, 18, 20, … 32, 36, …: at most an eighth more, so that similar shapes become equal."""
    quantum = 1 << max(0, (count - 1).bit_length() - 4)
    return -(-count // quantum) * quantum
