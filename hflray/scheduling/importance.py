"""Active federated learning: devices are drawn more often the more their samples lose under the model.

Source: J. Goetz, K. Malik, D. Bui, S. Moon, H. Liu, A. Kumar: "Active federated learning", 2019 (arXiv:1909.12641),
with its values α₁ = 0.75, α₂ = 0.01 and α₃ = 0.1. The value of a device is √D_n times the mean loss of its samples,
kept from the round in which it last trained; a device that never did is as valuable as the most valuable one.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hflray.scheduling.base import Scheduler, check_option
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import weighted_draw
from hflray.support.arrays import IntArray


class Importance(Scheduler):
    """Draws devices with probabilities that grow with the value of their samples.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        dropped: α₁, the share of the available devices, the least valuable ones, that is not drawn by value.
        sharpness: α₂; the probability is in proportion to exp(α₂ · value).
        uniform: α₃, the share of the H devices that is drawn uniformly among all others.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __init__(
        self,
        *,
        num_devices: int,
        num_scheduled: int,
        clusters: ArrayLike | None = None,
        dropped: float = 0.75,
        sharpness: float = 0.01,
        uniform: float = 0.1,
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.dropped = check_option("dropped", dropped, 0, 1)
        self.sharpness = check_option("sharpness", sharpness, 0)
        self.uniform = check_option("uniform", uniform, 0, 1)

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates, rng = np.flatnonzero(context.available), context.rng
        count = min(self.num_scheduled, len(candidates))
        value = np.sqrt(context.fleet.samples[candidates]) * context.last_loss[candidates]
        value = np.where(np.isnan(value), np.nanmax(value, initial=0.0), value)
        by_value = count - int(self.uniform * count)
        num_valuable = max(by_value, len(candidates) - int(self.dropped * len(candidates)))
        valuable = np.lexsort((rng.random(len(candidates)), -value))[:num_valuable]
        weights = np.exp(self.sharpness * (value[valuable] - value.max(initial=0.0)))
        drawn = weighted_draw(weights, candidates[valuable], by_value, rng)
        undrawn = np.setdiff1d(candidates, drawn)
        return np.sort(np.concatenate([drawn, rng.choice(undrawn, count - by_value, replace=False)])).astype(np.intp)
