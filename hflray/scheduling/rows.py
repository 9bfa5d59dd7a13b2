"""What a learned scheduler knows of each device before a round: one row of numbers, each about 0 to 1 or around 0.

| column | meaning |
|---|---|
| 0 | ln of its seconds in an edge iteration known in advance, less the mean over the devices, / 3 |
| 1 | ln of its joules in it, less the mean, / 3 |
| 2 | its samples / the fleet's mean, less 1 |
| 3 | rounds in which it took part / rounds so far; 0 in the first round |
| 4 | rounds since it took part last (since the start, if it never did) / 10, at most 1 |
| 5 | accuracy so far / target |
| 6… | its samples of each class / all its samples |
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import nominal_iteration

OWN = 6  # columns before those of the classes


def device_rows(context: RoundContext, num_scheduled: int, progress: float) -> NDArray[np.float32]:
    """Return the rows of all devices, (N, 6 + C).

    Args:
        context: the round.
        num_scheduled: H.
        progress: accuracy so far / target.
    """
    delay_s, energy_j = nominal_iteration(context, num_scheduled)
    samples, rounds = context.fleet.samples, context.round - 1
    rows = np.empty((len(samples), OWN + context.class_counts.shape[1]), dtype=np.float32)
    for column, values in enumerate((np.log(delay_s), np.log(energy_j))):
        rows[:, column] = (values - values.mean()) / 3.0
    rows[:, 2] = samples / samples.mean() - 1.0
    rows[:, 3] = context.participation / max(1, rounds)
    rows[:, 4] = np.minimum(1.0, (rounds - context.last_round) / 10.0)
    rows[:, 5] = progress
    rows[:, OWN:] = np.asarray(context.class_counts) / samples[:, None]
    return rows
