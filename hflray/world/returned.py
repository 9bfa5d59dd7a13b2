"""What parts of the world return, checked where it enters: a fading, an availability or a mobility of the user's own.

Each is also tried before anything starts, on a copy, so that a part that is wrong from the first round is refused at
``--dry-run``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hflray.support.arrays import BoolArray, FloatArray
from hflray.support.contract import ABOVE_0, Contract
from hflray.world.availability import Availability
from hflray.world.fading import Fading
from hflray.world.mobility import Mobility, Places
from hflray.world.part import Part

TRIED = 1000  # devices whose factors are drawn in a trial
STATE = "a dict of NumPy arrays or numbers by name"


class CheckedFading(Fading):
    """A law of fading whose factors are checked.

    Args:
        law: the law.
        name: its name or reference.

    Raises:
        ConfigError: it does not return factors above 0; or, in `try_out`, other factors for the same indices.
    """

    def __init__(self, law: Fading, name: str) -> None:
        accepted = "factors on the power gain, finite and above 0 (linear and not in dB), in the shape of the indices"
        self._law, self._contract = law, Contract.of("world.fading.name", name, accepted, "mend its method factor")

    def try_out(self) -> None:
        """Draw some factors twice."""
        indices = (1, np.arange(TRIED)[:, None], 0, np.arange(2))
        if not np.array_equal(self.factor(*indices), self.factor(*indices)):
            raise self._contract.error("other factors for the same indices (they are functions of the indices alone)")

    def factor(self, *indices: ArrayLike) -> FloatArray:
        """See `Fading.factor`."""
        shape = np.broadcast_shapes(*(np.shape(index) for index in indices))
        return self._contract.array(self._law.factor(*indices), shape, "f", ABOVE_0)


def checked_answers(availability: Availability, name: str, round_index: int, clock_s: float, count: int) -> BoolArray:
    """Return which of N = `count` devices answer, (N,). Raises ConfigError: the part returned something else."""
    accepted = f"a boolean for each of {count} devices, of shape ({count},), and no indices"
    contract = Contract.of("world.availability.name", name, accepted, "mend its method available")
    return contract.array(availability.available(round_index, clock_s), (count,), "b")


class CheckedPlaces:
    """Where devices are, checked.

    Args:
        name: the name or reference of the motion.
        count: N.
        area_m: side of the area, m.
    """

    def __init__(self, name: str, count: int, area_m: float) -> None:
        accepted = f"finite coordinates from 0 to {area_m:g} m, the area, as an array of shape ({count}, 2)"
        self._contract = Contract.of("world.mobility.name", name, accepted, "mend what it sets position_m to")
        self._shape, self._area_m, self._slack_m = (count, 2), area_m, 1e-9 * area_m

    def all(self, mobility: Mobility) -> FloatArray | Places:
        """Return the places of all devices, (N, 2), m, or what looks them up."""
        places = mobility.places()
        if isinstance(places, Places) and places.shape == self._shape:
            return places
        return self._contract.array(places, self._shape, "f", -self._slack_m, self._area_m + self._slack_m)

    def at(self, mobility: Mobility, devices: ArrayLike) -> FloatArray:
        """Return the places of some devices, (n, 2), m."""
        shape = (np.size(devices), 2)
        return self._contract.array(
            mobility.at(devices), shape, "f", -self._slack_m, self._area_m + self._slack_m, f" for {shape[0]} devices"
        )


def try_part(setting: str, name: str, part: Part, later_s: float, look: Callable[[Any], object]) -> None:
    """Look at a copy of a part now and after a time, s, and at one whose state was saved and restored.

    Raises:
        ConfigError: `look` refuses it, or its state is no arrays by name.
    """
    look(tried := copy.deepcopy(part))
    tried.advance(later_s)
    look(tried)
    contract = Contract.of(setting, name, STATE, "mend its method state_dict")
    again = copy.deepcopy(part)
    again.load_state_dict(contract.arrays(tried.state_dict()))
    look(again)
