"""The base class of the world's parts that change with time, how one is tried, and members that are up and down."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.contract import Contract
from hflray.world.draws import Draws


class Part:
    """A part of the world. It is at the start of the first round when it is made."""

    state_arrays: tuple[str, ...] = ()
    """The names of the attributes that are the part's state; each is a NumPy array."""

    def advance(self, clock_s: float) -> None:
        """Move on to a later moment, in seconds since the start of the first round."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as NumPy arrays by name."""
        return {name: np.array(getattr(self, name)) for name in self.state_arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ConfigError: an array is missing, or has another shape than this part's.
        """
        for name in self.state_arrays:
            present = np.asarray(getattr(self, name))
            saved = np.asarray(state.get(name, ()))
            if name not in state or saved.shape != present.shape:
                raise ConfigError(
                    f"state: {name} of {type(self).__name__} has shape {saved.shape}, this one has {present.shape}; "
                    "the state is of another world or damaged, use an earlier checkpoint"
                )
            setattr(self, name, saved.astype(present.dtype))


def try_part(setting: str, name: str, part: Part, later_s: float, look: Callable[[Any], object]) -> None:
    """Look at a copy of a part now and after a time, s, and at one whose state was saved and restored.

    Raises:
        ConfigError: `look` refuses it, or its state is no arrays by name.
    """
    look(tried := copy.deepcopy(part))
    tried.advance(later_s)
    look(tried)
    contract = Contract.of(setting, name, "a dict of NumPy arrays or numbers by name", "mend its method state_dict")
    again = copy.deepcopy(part)
    again.load_state_dict(contract.arrays(tried.state_dict()))
    look(again)


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

    state_arrays = ("up", "number", "end_s")

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
