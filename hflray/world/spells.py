"""Spells: members of a group that are up and down in turn, each time for an exponential time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.world.draws import Draws
from hflray.world.part import Part


class Spells(Part):
    """Alternating exponential spells, stationary from the start.

    A member is up at the start with probability up_s / (up_s + down_s). Its spells are functions of the seed, the
    member and the spell's number, so that whether it is up at a moment does not depend on when one looks.

    Args:
        seed: the experiment's root seed.
        name: the name of the stream.
        count: the number of members.
        up_s: mean duration of a spell of being up, s.
        down_s: mean duration of a spell of being down, s.

    Attributes:
        up: whether each member is up, (count,).
        number: the number of each member's spell, from 0, (count,).
        end_s: when the spell ends, (count,), s since the start of the first round.
    """

    state_arrays: ClassVar[tuple[str, ...]] = ("up", "number", "end_s")

    def __init__(self, seed: int, name: str, count: int, up_s: float, down_s: float) -> None:
        self._draws, self._means_s = Draws(seed, name), (down_s, up_s)
        members = np.arange(count)
        self.up: BoolArray = Draws(seed, f"{name}/first").uniform(members) < up_s / (up_s + down_s)
        self.number: IntArray = np.zeros(count, dtype=np.intp)
        self.end_s: FloatArray = self._duration_s(members, self.number, self.up)  # the rest of a spell is exponential

    def _duration_s(self, members: IntArray, number: IntArray, up: BoolArray) -> FloatArray:
        down_s, up_s = self._means_s
        return np.where(up, up_s, down_s) * self._draws.exponential(members, number)

    def next_off_s(self, clock_s: float) -> FloatArray:
        """Return when each member that is up goes down, (count,), s since the start of the first round."""
        return self.end_s

    def advance(self, clock_s: float) -> None:
        """End the spells that end until `clock_s`, and begin the next ones."""
        while (over := np.flatnonzero(self.end_s <= clock_s)).size:
            self.up[over] = ~self.up[over]
            self.number[over] += 1
            self.end_s[over] += self._duration_s(over, self.number[over], self.up[over])
