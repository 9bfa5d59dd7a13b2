"""Bandit scheduling by upper confidence bounds: devices that have been fast are chosen again, and others are tried.

Source: the algorithm CS-UCB of W. Xia, T. Q. S. Quek, K. Guo, W. Wen, H. H. Yang, H. Zhu: "Multi-armed bandit-based
client scheduling for federated learning", IEEE Transactions on Wireless Communications 19 (2020). It knows no channel
and no frequency, only the delays that it has observed (`hflray.experiment.record.RoundRecord.device_delay_s`). Here a
device's reward in a round is ``1 - delay / slowest``, with the largest delay observed so far, so that it lies between 0
and 1.

CS-UCB is for balanced data of one distribution and devices that always answer. For others the authors give CS-UCB-Q
(``variant: cs_ucb_q``), in which each device n is to train in a share c_n of the rounds. Its virtual queue is
``Q_n ← max(Q_n + c_n - b_n, 0)`` after a round, with b_n = 1 if it took part, and c_n before the first round. A round
takes the available devices of the largest ``(1 - β) · min(1, bound) + β · Q_n``, where the bound of an untried device
is 1.

The optimal allocation lets the devices of an edge finish together, so that such a delay scores the edge rather than the
device. docs/explanation/schedulers.md says how much of it is the device's own, with and without
``allocation.method: equal``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hflray.config.options import between, one_of
from hflray.scheduling.base import OPTIONS, Scheduler, highest
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


class UCB(Scheduler):
    """Schedules the devices of the largest mean reward plus ``√(exploration · ln i / times)``; untried ones go first.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        exploration: weight of the confidence bound, 0 or more; 2 is that of UCB1 (Auer et al., 2002).
        variant: ``cs_ucb`` or ``cs_ucb_q``.
        queue_weight: β of ``cs_ucb_q``, from 0 to 1.
        fairness: φ of ``cs_ucb_q``, from 0 to 1: the shares are c_n = min(1, φ · H · D_n / Σ D).

    Raises:
        ConfigError: the variant is unknown, or a number is outside what it accepts.
    """

    looks_back: ClassVar[bool] = False

    def __init__(
        self,
        *,
        num_devices: int,
        num_scheduled: int,
        clusters: ArrayLike | None = None,
        exploration: float = 2.0,
        variant: str = "cs_ucb",
        queue_weight: float = 0.5,
        fairness: float = 0.5,
    ) -> None:
        super().__init__(num_devices=num_devices, num_scheduled=num_scheduled, clusters=clusters)
        self.exploration = between(f"{OPTIONS}.exploration", exploration, 0)
        self.has_queues = one_of(f"{OPTIONS}.variant", variant, ("cs_ucb", "cs_ucb_q")) == "cs_ucb_q"
        self.queue_weight = between(f"{OPTIONS}.queue_weight", queue_weight, 0, 1)
        self.fairness = between(f"{OPTIONS}.fairness", fairness, 0, 1)
        self.share, self.queue = np.zeros(num_devices), np.zeros(num_devices)  # c_n and Q_n
        self.times = np.zeros(num_devices, dtype=np.intp)
        self.total_delay_s = np.zeros(num_devices)
        self.slowest_s = 0.0
        self.state_names = ("times", "total_delay_s", "slowest_s", *(("share", "queue") if self.has_queues else ()))

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        times, total_s = self.times[candidates], self.total_delay_s[candidates]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = 1.0 - total_s / times / self.slowest_s
            bound = mean + np.sqrt(self.exploration * np.log(context.round) / times)
        scores = np.where(times == 0, np.inf, bound)
        if self.has_queues:
            if not self.share.any():
                samples = context.fleet.samples
                self.share = np.minimum(1.0, self.fairness * self.num_scheduled * samples / samples.sum())
                self.queue = self.share.copy()
            scores = (1 - self.queue_weight) * np.minimum(1.0, scores) + self.queue_weight * self.queue[candidates]
        return np.sort(highest(scores, candidates, self.num_scheduled, context.rng))

    def observe(self, record: Any) -> None:
        """Add the delays of the round as they happened; a device of which none is known is not credited."""
        delay_s = record.device_delay_s()
        has_delay = np.isfinite(delay_s)
        devices, delay_s = record.devices[has_delay], delay_s[has_delay]
        self.times[devices] += 1
        self.total_delay_s[devices] += delay_s
        self.slowest_s = max(self.slowest_s, float(delay_s.max(initial=0.0)))
        if self.has_queues:
            took_part = np.bincount(devices, minlength=self.num_devices)
            self.queue = np.maximum(self.queue + self.share - took_part, 0.0)
