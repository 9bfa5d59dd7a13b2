"""Bandit scheduling by upper confidence bounds: devices that have been fast are chosen again, and others are tried.

Source: the algorithm CS-UCB of W. Xia, T. Q. S. Quek, K. Guo, W. Wen, H. H. Yang, H. Zhu: "Multi-armed bandit-based
client scheduling for federated learning", IEEE Transactions on Wireless Communications 19 (2020). It knows no channel
and no frequency, only the delays that it has observed (`hflray.experiment.record.RoundRecord.device_delay_s`). Here a
device's reward in a round is ``1 - delay / slowest``, with the largest delay observed so far, so that it lies between 0
and 1.

CS-UCB is for balanced data of one distribution and devices that always answer. For others the authors give CS-UCB-Q
(``variant: cs_ucb_q``), in which each device n is to train in a share c_n of the rounds. Its virtual queue is
``Q_n ← max(Q_n + c_n - b_n, 0)`` after a round, with b_n = 1 if it was scheduled, and c_n before the first round. A
round takes the available devices of the largest ``(1 - β) · min(1, bound) + β · Q_n``, where the bound of an untried
device is 1.

The optimal allocation lets the devices of an edge finish together, so that such a delay scores the edge rather than the
device. docs/explanation/schedulers.md says how much of it is the device's own, with and without
``allocation.method: equal``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hflray.config.options import between, one_of
from hflray.scheduling.base import Scheduler, highest, option
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


@dataclass(kw_only=True, eq=False, repr=False)
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

    exploration: float = option(2.0, between, 0)
    variant: str = option("cs_ucb", one_of, ("cs_ucb", "cs_ucb_q"))
    queue_weight: float = option(0.5, between, 0, 1)
    fairness: float = option(0.5, between, 0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_queues = self.variant == "cs_ucb_q"
        self.share, self.queue, self.total_delay_s = np.zeros((3, self.num_devices))  # c_n, Q_n and s
        self.times, self.slowest_s = np.zeros(self.num_devices, dtype=np.intp), 0.0
        self.state_names = ("times", "total_delay_s", "slowest_s", *(("share", "queue") if self.has_queues else ()))

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        candidates = np.flatnonzero(context.available)
        times, total_s = self.times[candidates], self.total_delay_s[candidates]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.nan_to_num(1.0 - total_s / times / self.slowest_s, nan=0.0)
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
        """Add the delays of the round as they happened, of several turns of a device the mean.

        A device that vanished, or whose edge failed, so that it has no delay, has the reward 0 for this time. One that
        is under way is credited later: what asynchronous edges scheduled before may end in this round.
        """
        happened = record.timeline
        has_delay = np.isfinite(happened.device_delay_s)
        devices, place = np.unique(happened.devices[has_delay], return_inverse=True)
        delay_s = np.bincount(place, happened.device_delay_s[has_delay]) / np.bincount(place)
        self.slowest_s = max(self.slowest_s, float(delay_s.max(initial=0.0)))
        is_over = happened.vanished | (happened.turn is None)  # else it may be under way
        lost = np.setdiff1d(happened.devices[~has_delay & is_over], devices)
        devices, delay_s = np.append(devices, lost), np.append(delay_s, np.full(len(lost), self.slowest_s))
        self.times[devices] += 1
        self.total_delay_s[devices] += delay_s
        if self.has_queues:
            took_part = np.bincount(devices, minlength=self.num_devices)
            self.queue = np.maximum(self.queue + self.share - took_part, 0.0)
