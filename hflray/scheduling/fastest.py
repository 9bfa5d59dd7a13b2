"""Fastest-device scheduling: the devices whose edge iteration is the shortest by what is known of them.

Source: the greedy choice behind FedCS, T. Nishio, R. Yonetani: "Client selection for federated learning with
heterogeneous resources in mobile edge", IEEE ICC 2019, with H devices in place of a deadline.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.scheduling.base import Scheduler
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import highest, nominal_iteration
from hflray.support.arrays import IntArray


class Fastest(Scheduler):
    """Schedules the available devices of the shortest nominal edge iteration (`nominal_iteration`)."""

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        delay_s, _ = nominal_iteration(context, self.num_scheduled)
        return np.sort(highest(-delay_s[candidates], candidates, self.num_scheduled, context.rng))
