"""Power-of-choice: of some candidates, the devices on whose samples the current global model loses most.

Source: Y. J. Cho, J. Wang, G. Joshi: "Client selection in federated learning: convergence analysis and power-of-choice
selection strategies", 2020 (arXiv:2010.01243); "Towards understanding biased client selection in federated learning",
AISTATS 2022. A candidate is drawn without replacement with a probability in proportion to its samples, p_n = D_n / D.
Of the d candidates, the H with the highest mean loss train. The candidates' forward pass is billed.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hflray.scheduling.base import Scheduler, check_option
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import highest, weighted_draw
from hflray.support.arrays import IntArray


class PowerOfChoice(Scheduler):
    """Polls d available devices, and schedules the H of the highest loss.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        candidates: d; None: 2 H. Of d ≤ H candidates nobody is passed over, so nobody is polled, and H devices are
            drawn by their samples.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"poll"})
    looks_back: ClassVar[bool] = False

    def __init__(
        self, *, num_devices: int, num_scheduled: int, clusters: ArrayLike | None = None, candidates: int | None = None
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.candidates = (
            2 * num_scheduled if candidates is None else int(check_option("candidates", candidates, 1, whole=True))
        )

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        available, rng = np.flatnonzero(context.available), context.rng
        drawn = np.sort(
            weighted_draw(context.fleet.samples[available], available, max(self.candidates, self.num_scheduled), rng)
        )
        if len(drawn) <= self.num_scheduled:
            return drawn
        return np.sort(highest(context.poll_loss(drawn), drawn, self.num_scheduled, rng))
