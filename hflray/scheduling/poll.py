"""A poll: some devices say what the current global model loses on their samples, and the round is billed for it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from hflray.cost import PollCost, forward_pass, poll_cost
from hflray.errors import ConfigError
from hflray.fleet import Fleet
from hflray.support.arrays import BoolArray, FloatArray, IntArray


class Poll:
    """The polls of one round, and their bill.

    Args:
        fleet: the devices.
        available: whether a device answers, (N,).
        measure: returns the mean loss of the current global model on the samples of some devices, (n,).

    Attributes:
        cost: the bill of all polls so far. Polls follow each other, so their delays add up.
        devices: the devices of all polls so far, in their order; one that was polled twice is there twice.
    """

    def __init__(self, fleet: Fleet, available: BoolArray, measure: Callable[[IntArray], FloatArray]) -> None:
        self._fleet, self._available, self._measure = fleet, available, measure
        self.cost = PollCost(0.0, 0.0)
        self.devices: IntArray = np.zeros(0, dtype=np.intp)

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
        self.devices = np.concatenate([self.devices, devices])
        return self._measure(devices)

    @property
    def spent_j(self) -> FloatArray:
        """What each device has spent on the polls so far, (N,), J."""
        return poll_spent_j(self._fleet, self.devices)


def poll_spent_j(fleet: Fleet, devices: IntArray) -> FloatArray:
    """Return what each device of a fleet has spent on polls of `devices`, of which each entry is a poll, (N,), J."""
    spent_j = np.zeros(fleet.num_devices)
    np.add.at(spent_j, devices, forward_pass(fleet, devices)[1])
    return spent_j
