"""Bandit scheduling by upper confidence bounds: devices that have been fast are chosen again, and others are tried.

Source: the algorithm CS-UCB of W. Xia, T. Q. S. Quek, K. Guo, W. Wen, H. H. Yang, H. Zhu: "Multi-armed bandit-based
client scheduling for federated learning", IEEE Transactions on Wireless Communications 19 (2020). It knows no channel
and no frequency, only the delays that it has observed. Here a device's reward in a round is ``1 - delay / slowest``,
with the largest delay observed so far, so that it lies between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hflray.arrays import IntArray
from hflray.scheduling.base import Scheduler, check_option
from hflray.scheduling.context import RoundContext
from hflray.scheduling.ranking import highest


class UCB(Scheduler):
    """Schedules the devices of the largest mean reward plus ``√(exploration · ln i / times)``; untried ones go first.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        exploration: weight of the confidence bound, 0 or more; 2 is that of UCB1 (Auer et al., 2002).
    """

    looks_back: ClassVar[bool] = False

    def __init__(
        self, *, num_devices: int, num_scheduled: int, clusters: ArrayLike | None = None, exploration: float = 2.0
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.exploration = check_option("exploration", exploration, 0)
        self.times = np.zeros(num_devices, dtype=np.intp)
        self.total_delay_s = np.zeros(num_devices)
        self.slowest_s = 0.0

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        times, total_s = self.times[candidates], self.total_delay_s[candidates]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = 1.0 - total_s / times / self.slowest_s
            bound = mean + np.sqrt(self.exploration * np.log(context.round) / times)
        scores = np.where(times == 0, np.inf, bound)
        return np.sort(highest(scores, candidates, self.num_scheduled, context.rng))

    def observe(self, record: Any) -> None:
        """Add the delays of the round: computing and upload in an edge iteration."""
        delay_s = record.cost.iteration_delay_s
        self.times[record.devices] += 1
        self.total_delay_s[record.devices] += delay_s
        self.slowest_s = max(self.slowest_s, float(delay_s.max(initial=0.0)))

    def state_dict(self) -> dict[str, Any]:
        """Return the base state and what was observed."""
        return super().state_dict() | {
            "times": self.times.tolist(),
            "total_delay_s": self.total_delay_s.tolist(),
            "slowest_s": self.slowest_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError if it is another scheduler's, N's or H's."""
        super().load_state_dict(state)
        self.times = np.array(state["times"], dtype=np.intp)
        self.total_delay_s = np.array(state["total_delay_s"], dtype=np.float64)
        self.slowest_s = float(state["slowest_s"])
