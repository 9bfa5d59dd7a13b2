"""The world when a round is planned, as far as decisions see it."""

from __future__ import annotations

from dataclasses import dataclass

from hflray.fleet import Fleet
from hflray.support.arrays import BoolArray, FloatArray


@dataclass(frozen=True, eq=False)
class Outlook:
    """The world at the planning of a round.

    Attributes:
        round: i, from 1.
        clock_s: simulated seconds since the start of the first round.
        fleet: the devices, links and edges as far as they are known.
        answers: whether a device answers, (N,).
        available: whether it answers and has enough charge, (N,).
        edges_up: whether an edge works, (M,).
        battery_j: charge of each device, (N,), J; infinity without batteries.
    """

    round: int
    clock_s: float
    fleet: Fleet
    answers: BoolArray
    available: BoolArray
    edges_up: BoolArray
    battery_j: FloatArray

    @property
    def is_empty(self) -> bool:
        """Whether the round is empty, because no device is available or no edge works."""
        return not (self.available.any() and self.edges_up.any())
