"""Mobility: where devices are at the simulated clock.

Time passes in slots of `slot_s` seconds, and positions are those of the last whole slot. Paths are functions of the
seed, the device and the slot, so that they do not depend on when one looks. The shadowing of moving devices is a field
of their positions (`ShadowField`).
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from hflray.config.options import between, positive
from hflray.errors import ConfigError
from hflray.support.arrays import FloatArray, IntArray
from hflray.support.contract import Contract
from hflray.timeline import part_of
from hflray.world.draws import Draws
from hflray.world.part import Part
from hflray.world.trace import OfTrace, Trace

OPTIONS = "world.mobility.options"
AT_ONCE = 500_000  # random numbers drawn at once
MOST_SLOTS = 10_000_000  # between two moments at which one looks; drawing them takes minutes
MOST_MOVED = 100_000  # devices that all move in each slot; of more, those move that somebody looks at
MEAN_LEG = (2 + math.sqrt(2) + 5 * math.log(1 + math.sqrt(2))) / 15  # mean distance of two points of a unit square
WAVES = 16  # K; the fourth moment is 3 − 1.5/K times the variance squared
MOST_WAVES = 100_000  # largest number of waves that are kept


class Mobility(Part, ABC):
    """Motion of all devices. A subclass defines `move`, and its state besides `position_m` if it has any.

    Args:
        seed: the experiment's root seed, for `hflray.world.draws.Draws`.
        position_m: positions of the devices when the fleet was drawn, (N, 2), m.
        area_m: side of the square area, m.
        slot_s: duration of a slot, s.

    Attributes:
        position_m: positions of the devices, (N, 2), m.

    Examples:
        >>> import numpy as np
        >>> from hflray.world.mobility import Mobility
        >>> class East(Mobility):
        ...     def move(self, first, last):
        ...         self.position_m[:, 0] = (self.position_m[:, 0] + (last - first + 1) * self.slot_s) % self.area_m
        >>> mobility = East(seed=0, position_m=np.zeros((1, 2)), area_m=100.0, slot_s=1.0)
        >>> mobility.advance(7.5)
        >>> mobility.at([0]).tolist()
        [[7.0, 0.0]]
    """

    state_arrays: tuple[str, ...] = ("position_m",)

    def __init__(self, *, seed: int, position_m: FloatArray, area_m: float, slot_s: float) -> None:
        self.seed, self.area_m, self.slot_s = seed, area_m, slot_s
        self.position_m = np.array(position_m, dtype=np.float64)
        self._slot = 0

    def advance(self, clock_s: float) -> None:
        """Move to the last whole slot until `clock_s`.

        Raises:
            ConfigError: this would be more than `MOST_SLOTS` steps.
        """
        ahead_s = clock_s - self._slot * self.slot_s
        if ahead_s > MOST_SLOTS * self.slot_s:
            raise ConfigError(
                f"world.mobility.slot_s: got {self.slot_s:g}; {ahead_s:.3g} s of motion would have more than "
                f"{MOST_SLOTS:,} steps; accepted here: at least {ahead_s / MOST_SLOTS:.2g}; raise it"
            )
        slot = math.floor(clock_s / self.slot_s)
        if slot > self._slot:
            first, self._slot = self._slot + 1, slot
            self.move(first, slot)

    def at(self, devices: ArrayLike) -> FloatArray:
        """Return the positions of some devices, (..., 2), m."""
        return np.asarray(self.position_m[np.asarray(devices)])

    def places(self) -> FloatArray | Places:
        """Return the positions of all devices, (N, 2), m, or what looks them up."""
        return self.position_m

    @abstractmethod
    def move(self, first: int, last: int) -> None:
        """Set `position_m` to that of the end of slot `last`; the slots from `first` on have not been moved yet."""

    def state_dict(self) -> dict[str, Any]:
        """Return the arrays and the slot."""
        return super().state_dict() | {"slot": np.array(self._slot)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`. Raises ConfigError as `Part.load_state_dict` does."""
        super().load_state_dict(state)
        self._slot = int(state["slot"])


class Places:
    """The positions of the devices of a large fleet, (N, 2), m, of which only those are computed that are indexed."""

    def __init__(self, mobility: Mobility) -> None:
        self._mobility, self.shape = mobility, mobility.position_m.shape

    def __getitem__(self, index: Any) -> FloatArray:
        if isinstance(index, np.ndarray) and index.dtype.kind in "iu":
            return self._mobility.at(index)
        return np.asarray(np.asarray(self)[index])

    def __array__(self, dtype: object = None, copy: object = None) -> FloatArray:
        return self._mobility.at(np.arange(self.shape[0]))


class Static(Mobility):
    """Devices stay where the fleet drew them, with the fleet's own links."""

    def move(self, first: int, last: int) -> None:
        """Do nothing."""


class MobilityTrace(OfTrace, Mobility):
    """Devices go straight from one place of a trace to the next, with columns ``time_s,device,x_m,y_m``.

    Until its first line a device is at that line's place, from its last line on it stays, and without lines it is where
    the fleet drew it.

    Args:
        seed, position_m, area_m, slot_s: see `Mobility`.
        path: the CSV file, see `hflray.world.trace`.
        names: what the fleet calls its devices; None: 0, 1 and so on.

    Raises:
        ConfigError: the file is wrong, or a place is outside the area.
    """

    def __init__(
        self, *, seed: int, position_m: FloatArray, area_m: float, slot_s: float, path: str,
        names: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(seed=seed, position_m=position_m, area_m=area_m, slot_s=slot_s)
        setting, axes = f"{OPTIONS}.path", ("x_m", "y_m")
        trace = Trace.read(setting, path, "device", len(self.position_m), dict.fromkeys(axes, False), names)
        for axis in axes:
            outside = np.flatnonzero((trace.values[axis] < 0) | (trace.values[axis] > area_m))
            if outside.size:
                raise ConfigError(
                    f"{setting}: {path}, line {trace.line[outside[0]]}: {axis} is {trace.values[axis][outside[0]]:g}; "
                    f"accepted: 0 to {area_m:g}, the area; raise fleet.area_km, or move the trace"
                )
        order = np.lexsort((trace.time_s, trace.member))
        self._member, self._time_s, self.digest = trace.member[order], trace.time_s[order], trace.digest
        self._place_m = np.stack([trace.values[axis][order] for axis in axes], axis=-1)
        self.move(0, 0)

    def move(self, first: int, last: int) -> None:
        """Place each device of the trace on its way."""
        now_s, members = last * self.slot_s, np.unique(self._member)
        begin, end = (np.searchsorted(self._member, members, side) for side in ("left", "right"))
        passed = np.zeros(len(self.position_m), dtype=np.intp)
        np.add.at(passed, self._member, self._time_s <= now_s)
        before = np.maximum(begin + passed[members] - 1, begin)
        after = np.minimum(begin + passed[members], end - 1)
        done = part_of(now_s - self._time_s[before], self._time_s[after] - self._time_s[before])
        position_m = self.position_m.copy()
        position_m[members] = self._place_m[before] + done[:, None] * (self._place_m[after] - self._place_m[before])
        self.position_m = position_m

    def __deepcopy__(self, memo: object) -> Self:
        """Return a copy that shares the trace."""
        return copy.copy(self)


class RandomWaypoint(Mobility):
    """Each device goes straight to a uniform point of the area, rests there, and goes to the next one.

    Its first leg is drawn from the stationary law, so that the mean speed does not decay and the positions' law does
    not change (Navidi, Camp: "Stationary Distributions for the Random Waypoint Mobility Model", 2004): its ends have a
    density proportional to their distance, its speed v one proportional to 1/v, and the device is anywhere on it. The
    fleet's own positions are therefore replaced, unless they were given (`start_at`).

    Args:
        seed, position_m, area_m, slot_s: see `Mobility`.
        v_min_m_per_s, v_max_m_per_s: ends of the uniform law of a leg's speed, above 0, m/s.
        pause_s: rest at each point, s.
    """

    state_arrays = ("position_m", "leg", "from_m", "to_m", "start_s", "end_s")

    def __init__(
        self,
        *,
        seed: int,
        position_m: FloatArray,
        area_m: float,
        slot_s: float,
        v_min_m_per_s: float,
        v_max_m_per_s: float,
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(seed=seed, position_m=position_m, area_m=area_m, slot_s=slot_s)
        low = positive(f"{OPTIONS}.v_min_m_per_s", v_min_m_per_s)
        high = positive(f"{OPTIONS}.v_max_m_per_s", v_max_m_per_s)
        if high < low:
            raise ConfigError(
                f"{OPTIONS}.v_max_m_per_s: got {v_max_m_per_s!r} with v_min_m_per_s = {v_min_m_per_s!r}; accepted: at "
                "least v_min_m_per_s; raise it"
            )
        self._speeds, self.pause_s = (low, high), between(f"{OPTIONS}.pause_s", pause_s, 0.0)
        self._waypoint, self._speed = Draws(seed, "mobility/waypoint"), Draws(seed, "mobility/speed")
        devices, first = np.arange(len(self.position_m)), Draws(seed, "mobility/first")
        self.leg: IntArray = np.zeros(len(devices), dtype=np.intp)

        self.from_m, self.to_m = self._stationary_ends(devices)
        leg_m = np.linalg.norm(self.to_m - self.from_m, axis=1)
        speed = low * (high / low) ** first.uniform(devices, 0)  # density proportional to 1/v
        along = first.uniform(devices, 1)
        mean_leg_s = MEAN_LEG * area_m * (math.log(high / low) / (high - low) if high > low else 1 / low)
        resting = first.uniform(devices, 2) < self.pause_s / (self.pause_s + mean_leg_s)
        # A device that rests has arrived, and the rest of its pause is uniform.
        self.to_m[resting] = area_m * self._uniform_points(devices[resting], -1)
        self.from_m[resting], leg_m[resting] = self.to_m[resting], 0.0
        self.start_s = np.where(resting, 0.0, -along * leg_m / speed)
        self.end_s = self.start_s + leg_m / speed
        self.end_s[resting] -= along[resting] * self.pause_s
        self.start_s[resting] = self.end_s[resting]
        self._place(0.0)

    def move(self, first: int, last: int) -> None:
        """Begin the legs that begin until the slot's end, and place each device on its leg."""
        now_s = last * self.slot_s
        while (over := np.flatnonzero(self.end_s + self.pause_s <= now_s)).size:
            self.leg[over] += 1
            self.from_m[over] = self.to_m[over]
            self._begin_legs(over, self.end_s[over] + self.pause_s)
        self._place(now_s)

    def start_at(self, position_m: FloatArray) -> None:
        """Let each device begin at a place, (N, 2), m, with a leg to a point; the law is not stationary then."""
        self.from_m = np.array(position_m)
        self._begin_legs(np.arange(len(position_m)), np.zeros(len(position_m)))
        self._place(0.0)

    def _begin_legs(self, devices: IntArray, start_s: FloatArray) -> None:
        """Let devices begin the legs of their numbers from where they are, (n,) each."""
        low, high = self._speeds
        self.to_m[devices] = self.area_m * self._uniform_points(devices, self.leg[devices])
        speed = low + (high - low) * self._speed.uniform(devices, self.leg[devices])
        self.start_s[devices] = start_s
        leg_m = np.linalg.norm(self.to_m[devices] - self.from_m[devices], axis=1)
        self.end_s[devices] = start_s + leg_m / speed

    def _place(self, now_s: float) -> None:
        done = part_of(now_s - self.start_s, self.end_s - self.start_s)
        self.position_m = self.from_m + done[:, None] * (self.to_m - self.from_m)

    def _uniform_points(self, devices: IntArray, leg: IntArray | int) -> FloatArray:
        """Return points of the unit square, (n, 2); the leg -1 is that of a first rest."""
        return np.stack([self._waypoint.uniform(devices, np.asarray(leg) + 1, axis) for axis in (0, 1)], axis=-1)

    def _stationary_ends(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the devices' first legs, (N, 2) each, m, by rejection."""
        draws, left, attempt = Draws(self.seed, "mobility/ends"), devices, 0
        ends = np.empty((len(devices), 4))
        while len(left):
            points = draws.uniform(left[:, None], attempt, np.arange(5))
            distance = np.hypot(points[:, 0] - points[:, 2], points[:, 1] - points[:, 3])
            taken = points[:, 4] * math.sqrt(2) < distance
            ends[left[taken]] = points[taken, :4]
            left, attempt = left[~taken], attempt + 1
        return self.area_m * ends[:, :2], self.area_m * ends[:, 2:]


class GaussMarkov(Mobility):
    """The velocity of each device is a Gauss-Markov process, and the borders reflect.

    Each component of the velocity is v ← a v + √(1 − a²) σ g from slot to slot, with a = exp(−slot_s / memory_s), g
    standard normal and σ = speed_m_per_s / √2, so that speed_m_per_s is the root mean square of the speed. Velocities
    are stationary from the start, and so are positions that are uniform in the area.

    Args:
        seed, position_m, area_m, slot_s: see `Mobility`.
        speed_m_per_s: root mean square of the speed, m/s.
        memory_s: time in which the correlation of the velocity falls to 1/e, s.
    """

    state_arrays: tuple[str, ...] = ("position_m", "velocity_m_per_s")

    def __init__(
        self,
        *,
        seed: int,
        position_m: FloatArray,
        area_m: float,
        slot_s: float,
        speed_m_per_s: float,
        memory_s: float = 30.0,
    ) -> None:
        super().__init__(seed=seed, position_m=position_m, area_m=area_m, slot_s=slot_s)
        self._sigma = positive(f"{OPTIONS}.speed_m_per_s", speed_m_per_s) / math.sqrt(2)
        self._keep = math.exp(-slot_s / positive(f"{OPTIONS}.memory_s", memory_s))
        self._draws, devices = Draws(seed, "mobility/velocity"), np.arange(len(self.position_m))
        self.velocity_m_per_s = self._sigma * self._normal(np.array([0]), devices)[0]
        self._is_large = len(devices) > MOST_MOVED
        if self._is_large:
            self.moved_to: IntArray = np.zeros(len(devices), dtype=np.intp)  # last slot
            self.state_arrays = (*self.state_arrays, "moved_to")

    def _normal(self, slots: IntArray, devices: IntArray) -> FloatArray:
        """Return normal numbers for slots (S,), devices (n,) and the two axes, (S, n, 2)."""
        return self._draws.normal(slots[:, None, None], devices[:, None], np.arange(2))

    def move(self, first: int, last: int) -> None:
        """Move slot by slot; the devices of a large fleet stay until somebody looks at them."""
        if not self._is_large:
            self._move(np.arange(len(self.position_m)), first, last)

    def at(self, devices: ArrayLike) -> FloatArray:
        """Return the positions of some devices, (..., 2), m; in a large fleet, move them first."""
        if self._is_large:
            behind = np.unique(devices)
            behind = behind[self.moved_to[behind] < self._slot]
            for slot in np.unique(self.moved_to[behind]):
                self._move(behind[self.moved_to[behind] == slot], int(slot) + 1, self._slot)
            self.moved_to[behind] = self._slot
        return super().at(devices)

    def places(self) -> FloatArray | Places:
        """Return the positions of all devices, (N, 2), m, or what looks them up."""
        return Places(self) if self._is_large else self.position_m

    def _move(self, devices: IntArray, first: int, last: int) -> None:
        """Move some devices slot by slot."""
        from hflray.world.motion import move_reflected  # It imports Numba, which no other motion needs.

        push_m_per_s = math.sqrt(1 - self._keep**2) * self._sigma
        at_once = max(1, AT_ONCE // (2 * len(devices)))
        position_m, velocity_m_per_s = self.position_m[devices].flatten(), self.velocity_m_per_s[devices].flatten()
        for start in range(first, last + 1, at_once):
            normal = self._normal(np.arange(start, min(start + at_once, last + 1)), devices)
            move_reflected(
                position_m, velocity_m_per_s, normal.reshape(len(normal), -1), self._keep, push_m_per_s,
                float(self.slot_s), float(self.area_m),
            )  # fmt: skip
        self.position_m[devices] = position_m.reshape(-1, 2)
        self.velocity_m_per_s[devices] = velocity_m_per_s.reshape(-1, 2)


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


class ShadowField:
    """The shadowing of every link, in units of its standard deviation: a Gaussian field of the device's position.

    A field is a sum of plane waves, √(2/K) Σ cos(w_k · x + φ_k), with random phases φ_k. The wave vectors w_k are drawn
    from the spectral density of the correlation exp(−Δ/ℓ) in the plane, whose length |w| exceeds r with probability
    1/√(1 + r²ℓ²) and whose direction is uniform. Over the links the mean is 0, the variance is 1 and the correlation at
    distance Δ is exp(−Δ/ℓ) (Gudmundson: "Correlation model for shadow fading in mobile radio systems", 1991).

    Args:
        seed: the experiment's root seed.
        correlation_m: ℓ, the distance at which the correlation is 1/e, m.
    """

    def __init__(self, seed: int, correlation_m: float) -> None:
        self.correlation_m, self._draws = correlation_m, Draws(seed, "shadowing")
        nothing = np.zeros(0)
        self._kept: tuple[object, tuple[FloatArray, FloatArray, FloatArray]] = (None, (nothing, nothing, nothing))

    def __call__(self, devices: ArrayLike, edges: ArrayLike, position_m: FloatArray) -> FloatArray:
        """Return the field of links at positions.

        Args:
            devices, edges: numbers of devices and edges when the fleet was drawn, of shapes that broadcast.
            position_m: positions of these devices, with a last axis of 2, m.
        """
        x_per_m, y_per_m, phase = self._waves(np.asarray(devices), np.asarray(edges))
        waves = np.cos(x_per_m * position_m[..., 0, None] + y_per_m * position_m[..., 1, None] + phase)
        return np.asarray(np.sqrt(2 / WAVES) * waves.sum(axis=-1))

    def _waves(self, devices: IntArray, edges: IntArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the components of the wave vectors, 1/m, and the phases of links, with a last axis of K.

        The last ones are kept, because a small fleet needs the same links in each round.
        """
        key = devices.shape, devices.tobytes(), edges.tobytes()
        if key == self._kept[0]:
            return self._kept[1]
        bits = self._draws.bits(devices[..., None], edges[..., None], np.arange(WAVES))
        # 21 bits each of the wave's length, direction and phase
        length, direction, phase = (
            ((bits >> np.uint64(shift) & np.uint64(2**21 - 1)) + 0.5) * 2.0**-21 for shift in (43, 22, 1)
        )
        per_m, angle = np.sqrt(length**-2 - 1) / self.correlation_m, 2 * np.pi * direction
        phase_rad: FloatArray = np.asarray(2 * np.pi * phase, dtype=np.float64)
        waves = per_m * np.cos(angle), per_m * np.sin(angle), phase_rad
        if bits.size <= MOST_WAVES:
            self._kept = key, waves
        return waves
