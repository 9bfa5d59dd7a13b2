"""Round-robin scheduling: the devices in turn. It is the fairest choice, and the baseline of Yang et al.

Source: H. H. Yang, Z. Liu, T. Q. S. Quek, H. V. Poor: "Scheduling policies for federated learning in wireless
networks", IEEE Transactions on Communications 68 (2020).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hflray.scheduling.base import Scheduler
from hflray.scheduling.context import RoundContext
from hflray.support.arrays import IntArray


class RoundRobin(Scheduler):
    """Schedules the next H devices that answer, from the device after the last one that was scheduled."""

    looks_back: ClassVar[bool] = False

    position = 0

    def schedule(self, context: RoundContext) -> IntArray:
        """Return the round's devices, sorted."""
        turn = (self.position + np.arange(self.num_devices)) % self.num_devices
        chosen = turn[context.available[turn]][: self.num_scheduled]
        if len(chosen):
            self.position = int(chosen[-1] + 1) % self.num_devices
        return np.sort(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return the base state and the first device of the next round."""
        return super().state_dict() | {"position": self.position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError if it is another scheduler's, N's or H's."""
        super().load_state_dict(state)
        self.position = int(state["position"])
