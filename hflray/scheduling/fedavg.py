"""FedAvg scheduling (McMahan et al., 2017): H of N devices, uniformly. The paper's first benchmark in section VI."""

from __future__ import annotations

import numpy as np

from hflray.scheduling.base import IntArray, Scheduler


class FedAvg(Scheduler):
    """Uniform without replacement within a round, independent between rounds; needs no clusters and keeps no state."""

    def schedule(self, rng: np.random.Generator) -> IntArray:
        """Return the next round's devices: (H,) sorted, unique indices."""
        return np.sort(rng.choice(self.num_devices, self.num_scheduled, replace=False)).astype(np.intp)
