"""FedAvg scheduling (McMahan et al., 2017), a uniform draw of H of N devices: the first benchmark of section VI."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.scheduling.base import Scheduler, rng_and_available
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


class FedAvg(Scheduler):
    """A scheduler that draws devices uniformly without replacement in each round; it has no clusters and no state."""

    looks_back: ClassVar[bool] = False

    def schedule(self, context: RoundContext | np.random.Generator) -> IntArray:
        """Return the next round's devices: sorted, unique indices, min(H, number of available devices) of them."""
        rng, available = rng_and_available(context, self.num_devices)
        candidates = np.flatnonzero(available)
        drawn = rng.choice(candidates, min(self.num_scheduled, len(candidates)), replace=False)
        return np.sort(drawn).astype(np.intp)
