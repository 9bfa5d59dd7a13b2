"""A poll: some devices say what the current global model loses on their samples, and the round is billed for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from hflray.arrays import BoolArray, FloatArray, IntArray
from hflray.cost import PollCost, forward_pass, poll_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet


class Poll:
    """The polls of one round, and their bill.

    Args:
        fleet: the devices.
        available: whether a device answers, (N,).
        measure: returns the mean loss of the current global model on the samples of some devices, (n,).

    Attributes:
        cost: the bill of all polls so far. Polls follow each other, so their delays add up.
        spent_j: what each device has spent on them, (N,), J.
    """

    def __init__(self, fleet: Fleet, available: BoolArray, measure: Callable[[IntArray], FloatArray]) -> None:
        self._fleet, self._available, self._measure = fleet, available, measure
        self.cost = PollCost(0.0, 0.0)
        self.spent_j = np.zeros(len(available))

    def __call__(self, candidates: ArrayLike) -> FloatArray:
        """Return the mean loss of each of some devices, (n,), and add the bill.

        Raises:
            ConfigError: a device does not exist, is not available, or is named twice.
        """
        devices = np.asarray(candidates)
        if not devices.size:
            return np.zeros(0)
        number = len(self._available)
        if devices.ndim != 1 or devices.dtype.kind not in "iu" or devices.min() < 0 or devices.max() >= number:
            raise ConfigError(
                f"poll_loss: got {devices.dtype} of shape {devices.shape}; accepted: indices of devices, 0 to "
                f"{number - 1}; mend the scheduler"
            )
        absent = devices[~self._available[devices]]
        if absent.size or len(np.unique(devices)) != len(devices):
            reason = f"device {absent[0]} is not available" if absent.size else "a device is named twice"
            raise ConfigError(
                f"poll_loss: {reason}; accepted: different devices of context.available; mend the scheduler"
            )
        devices = devices.astype(np.intp)
        self.cost = self.cost + poll_cost(self._fleet, devices)
        self.spent_j[devices] += forward_pass(self._fleet, devices)[1]
        return self._measure(devices)
