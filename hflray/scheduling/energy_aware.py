"""Energy-aware scheduling by drift plus penalty: a device that has spent more than its budget waits until it has not.

Each device has a virtual queue q, which grows by the joules that it spends in a round and shrinks by its budget. A
round takes the devices of the largest ``V · D_n / D̄ - q_n · e_n``, with the joules e_n of a round as known in advance.
A large V prefers devices with many samples, and a small one keeps to the budgets sooner. Averaged over the rounds, the
queues keep each device's energy at its budget if that is possible (Neely, 2010).

Source: the policy OCEAN of J. Xu, H. Wang: "Client selection and bandwidth allocation in wireless federated learning
networks: a long-term perspective", IEEE Transactions on Wireless Communications 20 (2021). OCEAN also allocates the
bandwidth together with the choice, so that the number of devices follows from it; gives later rounds more weight; and
empties its queues at the start of each frame of rounds. This class does none of these: H is given, the bandwidth is
allocated afterwards, all rounds weigh the same, and the queues last. Its joules contain computing, and it weighs
devices by their samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hflray.config.options import between
from hflray.scheduling.base import Scheduler, highest, option
from hflray.scheduling.context import RoundContext, nominal_iteration
from hflray.support.arrays import IntArray


@dataclass(kw_only=True, eq=False, repr=False)
class EnergyAware(Scheduler):
    """Schedules devices so that each keeps to an energy budget in the long run.

    Args:
        num_devices: N.
        num_scheduled: H.
        clusters: ignored.
        budget_j: joules that a device may spend per round on average; None: the mean over the devices of what a round
            costs them, times H / N, which is what equal turns would cost the average device.
        samples_weight: V, J²: the weight of a device's samples against its queue; 0 or more.
    """

    looks_back: ClassVar[bool] = False
    state_names = ("queue_j", "budget_j")

    budget_j: float | None = option(None, between, 0)
    samples_weight: float = option(1.0, between, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue_j = np.zeros(self.num_devices)

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        _, iteration_j = nominal_iteration(context, self.num_scheduled)
        round_j = iteration_j * context.work.edge_iterations
        if self.budget_j is None:
            self.budget_j = float(round_j.mean()) * self.num_scheduled / self.num_devices
        samples = context.fleet.samples
        scores = self.samples_weight * samples / samples.mean() - self.queue_j * round_j
        candidates = np.flatnonzero(context.available)
        return np.sort(highest(scores[candidates], candidates, self.num_scheduled, context.rng))

    def observe(self, record: Any) -> None:
        """Add what each device has spent to its queue, and subtract the budget of every device."""
        if self.budget_j is None:  # nobody has been available yet
            return
        happened = getattr(record, "timeline", None)  # it has devices of earlier plans too; a played round has none
        if happened is None:
            self.queue_j[record.devices] += record.spent_j()
        else:
            np.add.at(self.queue_j, happened.devices, happened.spent_j)
        self.queue_j = np.maximum(self.queue_j - self.budget_j, 0.0)
