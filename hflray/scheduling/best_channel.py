"""Best-channel scheduling: the devices with the strongest link to any edge.

Source: the policy "best channel" of M. M. Amiri, D. Gündüz, S. R. Kulkarni, H. V. Poor: "Convergence of update aware
device scheduling for federated learning at the wireless edge", IEEE Transactions on Wireless Communications 20 (2021).
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.scheduling.base import Scheduler
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import best_edges, highest
from hflray.support.arrays import IntArray


class BestChannel(Scheduler):
    """Schedules the available devices whose best gain is the largest. Without fading these are always the same."""

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        gain = context.fleet.gain_of(candidates, best_edges(context)[candidates])
        return np.sort(highest(gain, candidates, self.num_scheduled, context.rng))
