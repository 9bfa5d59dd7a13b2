"""The samples of devices as a host trains with them: checked and normalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hflray.errors import HflrayError
from hflray.models.problem import Problem
from hflray.training.job import DeviceData


class Samples:
    """The samples of all devices.

    Args:
        problem: what is learned.
        data: the samples.

    Attributes:
        scale, shift: normalise images to ``x · scale + shift``.
    """

    def __init__(self, problem: Problem, data: DeviceData) -> None:
        self._problem, self._data = problem, data
        # This is (x / 255 - mean) / std as one multiplication and one addition.
        std = np.asarray(data.channel_std, dtype=np.float64).reshape(1, -1, 1, 1)
        mean = np.asarray(data.channel_mean, dtype=np.float64).reshape(1, -1, 1, 1)
        self.scale = torch.from_numpy((1 / (255 * std)).astype(np.float32))
        self.shift = torch.from_numpy((-mean / std).astype(np.float32))

    def normalised(self, inputs: NDArray[Any]) -> torch.Tensor:
        """Return images given as bytes with the training set's mean and deviation, and any other inputs as they are."""
        # Arrays from Ray's object store are read-only and must be copied; inputs picked by index are copies already.
        tensor = torch.from_numpy(inputs if inputs.flags.writeable else inputs.copy())
        if tensor.dtype == torch.uint8:
            return tensor.float().mul_(self.scale).add_(self.shift)
        return tensor if tensor.is_floating_point() else tensor.long()

    def of(self, device: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a device's normalised inputs and its targets."""
        index = self.index(device)
        return self.normalised(self._data.x[index]), torch.from_numpy(self._data.y[index])

    def index(self, device: int) -> NDArray[np.int64]:
        """Return the indices of a device's samples after a check of its labels.

        A GPU would not name the device with an invalid label, and the failed assertion would make the GPU unusable
        for the process.
        """
        index, classes = self._data.samples_of(device), self._problem.num_outputs
        if not len(index):
            raise HflrayError("the device holds no samples; schedule devices that have data")
        labels = self._data.y[index]
        if self._problem.kind != "regression" and (labels.min() < 0 or labels.max() >= classes):
            raise HflrayError(
                f"the device's labels go from {labels.min()} to {labels.max()}; accepted: 0 to {classes - 1}; correct "
                "the data set"
            )
        return index
