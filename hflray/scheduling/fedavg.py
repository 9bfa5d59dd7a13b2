"""FedAvg scheduling (McMahan et al., 2017), a uniform draw of H of N devices: the first benchmark of section VI."""

from __future__ import annotations

import numpy as np

from hflray.arrays import IntArray
from hflray.scheduling.base import Scheduler


class FedAvg(Scheduler):
    """A scheduler that draws devices uniformly without replacement in each round; it has no clusters and no state."""

    def schedule(self, rng: np.random.Generator) -> IntArray:
        """Return the next round's devices: (H,) sorted, unique indices."""
        return np.sort(rng.choice(self.num_devices, self.num_scheduled, replace=False)).astype(np.intp)
