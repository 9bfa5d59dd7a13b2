"""Availability: which devices answer when a round is planned.

A device that answers stays for the round; `hflray.world.faults.Dropout` lets devices vanish during one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hflray.config.options import between, positive
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray
from hflray.support.contract import Contract
from hflray.world.draws import Draws
from hflray.world.part import Part, Spells
from hflray.world.trace import Switches, Trace

DAY_S = 86_400.0
OPTIONS = "world.availability.options"
NOBODY = "otherwise nobody is ever available"


class Availability(Part, ABC):
    """Which devices answer. A subclass defines `available`, and its state if it has any.

    Args:
        num_devices: N.
        seed: the experiment's root seed, for `hflray.world.draws.Draws`.

    Examples:
        >>> import numpy as np
        >>> from hflray.world.availability import Availability
        >>> class InTurns(Availability):
        ...     def available(self, round_index, clock_s):
        ...         return np.arange(self.num_devices) % 2 == round_index % 2
        >>> InTurns(num_devices=4, seed=0).available(1, clock_s=0.0).tolist()
        [False, True, False, True]
    """

    def __init__(self, *, num_devices: int, seed: int) -> None:
        self.num_devices = num_devices
        self.draws = Draws(seed, "availability")

    @abstractmethod
    def available(self, round_index: int, clock_s: float) -> BoolArray:
        """Return whether each device answers, (N,), when a round is planned; this does not change the state.

        Args:
            round_index: i, from 1.
            clock_s: the moment of planning, to which `advance` has moved the state.
        """


class Always(Availability):
    """Every device answers always."""

    def available(self, round_index: int, clock_s: float) -> BoolArray:
        """Return True for every device, (N,)."""
        return np.ones(self.num_devices, dtype=bool)


class Bernoulli(Availability):
    """Each device answers with the same probability in each round, whatever it did before.

    Args:
        num_devices, seed: see `Availability`.
        probability: probability of answering, above 0 and up to 1.
    """

    def __init__(self, *, num_devices: int, seed: int, probability: float) -> None:
        super().__init__(num_devices=num_devices, seed=seed)
        self.probability = positive(f"{OPTIONS}.probability", probability, 1.0, NOBODY)

    def available(self, round_index: int, clock_s: float) -> BoolArray:
        """Return whether each device answers, (N,)."""
        drawn = self.draws.uniform(round_index, np.arange(self.num_devices))
        return np.asarray(drawn < self.probability)


class _Switched(Availability):
    """Devices that are there and away in turn, as the members of `group` are up and down."""

    group: Spells | Switches

    def advance(self, clock_s: float) -> None:
        """Move the group on."""
        self.group.advance(clock_s)

    def available(self, round_index: int, clock_s: float) -> BoolArray:
        """Return whether each device is there, (N,)."""
        return self.group.up.copy()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the group."""
        return self.group.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the group. Raises ConfigError: it is of another world or trace, or damaged."""
        self.group.load_state_dict(state)


class Markov(_Switched):
    """Each device is there and away in turn, each time for an exponential time.

    The share of time that a device is there is mean_on_s / (mean_on_s + mean_off_s), from the start on.

    Args:
        num_devices, seed: see `Availability`.
        mean_on_s: mean time for which a device stays, s.
        mean_off_s: mean time for which it is away, s.
    """

    def __init__(self, *, num_devices: int, seed: int, mean_on_s: float, mean_off_s: float) -> None:
        super().__init__(num_devices=num_devices, seed=seed)
        on_s, off_s = positive(f"{OPTIONS}.mean_on_s", mean_on_s), positive(f"{OPTIONS}.mean_off_s", mean_off_s)
        self.group = Spells(seed, "availability/spells", num_devices, on_s, off_s)


class AvailabilityTrace(_Switched):
    """Each device is there and away as a trace says, with columns ``time_s,device,available``.

    A device is there until its first line, and always if it has none.

    Args:
        num_devices, seed: see `Availability`.
        path: the CSV file, see `hflray.world.trace`.
        repeat_s: the trace begins anew after this time, s; None: its last lines hold for ever.
        names: what the fleet calls its devices; None: 0, 1 and so on.

    Raises:
        ConfigError: the file is wrong, or nobody is there at its end, for ever.
    """

    def __init__(
        self, *, num_devices: int, seed: int, path: str, repeat_s: float | None = None,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(num_devices=num_devices, seed=seed)
        setting = f"{OPTIONS}.path"
        trace = Trace.read(setting, path, "device", num_devices, {"available": True}, names)
        last_s = float(trace.time_s[-1])
        if repeat_s is not None and positive(f"{OPTIONS}.repeat_s", repeat_s) <= last_s:
            raise ConfigError(
                f"{OPTIONS}.repeat_s: got {repeat_s:.15g}; accepted: more than {last_s:.15g}, the last time of {path}; "
                "raise it"
            )
        self.group = switches = Switches(trace, "available", num_devices, repeat_s)
        comes_back = repeat_s is not None and (switches.up.any() or trace.values["available"].any())
        if switches.ends_off().all() and not comes_back:
            raise ConfigError(
                f"{setting}: {path} leaves every device away for ever after its last line, so nobody is available; set "
                "repeat_s, or add a line"
            )


class Diurnal(Availability):
    """Each device answers with a probability that follows the time of its day, such as that of charging phones.

    The probability is mean + amplitude · sin(2π (t / period_s + x)), clipped to 0 and 1. The phase x of a device is
    uniform between 0 and `spread`: with 0 all devices live in one time zone, with 1 they live all around the world.

    Args:
        num_devices, seed: see `Availability`.
        mean: mean probability of answering, above 0 and up to 1.
        amplitude: difference between the highest and the mean probability, from 0 to 1.
        period_s: length of the day, s.
        spread: largest difference of two devices' phases as a share of the day, from 0 to 1.
    """

    def __init__(
        self,
        *,
        num_devices: int,
        seed: int,
        mean: float = 0.5,
        amplitude: float = 0.4,
        period_s: float = DAY_S,
        spread: float = 0.0,
    ) -> None:
        super().__init__(num_devices=num_devices, seed=seed)
        self.mean = positive(f"{OPTIONS}.mean", mean, 1.0, NOBODY)
        self.amplitude = between(f"{OPTIONS}.amplitude", amplitude, 0.0, 1.0)
        self.period_s = positive(f"{OPTIONS}.period_s", period_s)
        spread = between(f"{OPTIONS}.spread", spread, 0.0, 1.0)
        self.phase = spread * Draws(seed, "availability/phase").uniform(np.arange(num_devices))

    def available(self, round_index: int, clock_s: float) -> BoolArray:
        """Return whether each device answers, (N,)."""
        probability = self.mean + self.amplitude * np.sin(2 * np.pi * (clock_s / self.period_s + self.phase))
        return np.asarray(self.draws.uniform(round_index, np.arange(self.num_devices)) < probability)


def checked_answers(availability: Availability, name: str, round_index: int, clock_s: float, count: int) -> BoolArray:
    """Return which of N = `count` devices answer, (N,). Raises ConfigError: the part returned something else."""
    accepted = f"a boolean for each of {count} devices, of shape ({count},), and no indices"
    contract = Contract.of("world.availability.name", name, accepted, "mend its method available")
    return contract.array(availability.available(round_index, clock_s), (count,), "b")
