"""Coverage scheduling: the set of devices whose samples cover the classes best, chosen greedily.

The value of a set S is ``Σ_c √(Σ_{n∈S} d_{n,c})``, with the d_{n,c} samples of class c at device n divided by
1 + (the rounds in which it has counted). It is submodular, so the greedy set has at least 1 - 1/e of the best value
(Nemhauser, Wolsey, Fisher, 1978).

Source: the concave-over-modular functions of H. Lin, J. Bilmes: "A class of submodular functions for document
summarization", ACL 2011; R. Balakrishnan et al.: "Diverse client selection for federated learning via submodular
maximization", ICLR 2022, choose clients by another submodular function, of their gradients.
"""

from __future__ import annotations

import numpy as np

from hflray.scheduling.base import Scheduler
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


class Coverage(Scheduler):
    """Schedules the devices that cover the classes best; devices that have counted more often weigh less."""

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = context.rng.permutation(np.flatnonzero(context.available))  # so that chance decides ties
        counts = context.class_counts[candidates] / (1.0 + context.participation[candidates, None])
        covered = np.zeros(counts.shape[1])
        chosen = np.zeros(len(candidates), dtype=bool)
        for _ in range(min(self.num_scheduled, len(candidates))):
            value = np.sqrt(covered + counts).sum(axis=1)
            best = int(np.where(chosen, -np.inf, value).argmax())
            chosen[best] = True
            covered += counts[best]
        return np.sort(candidates[chosen]).astype(np.intp)
