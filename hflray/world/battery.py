"""Batteries: what devices spend empties them, and what they harvest fills them.

At the end of a round of T seconds a device's charge becomes

    clip(charge − spent − idle_w · idle time + harvest_w · T, 0, capacity)

where *spent* are its joules of computing and sending, and *idle time* is the part of T in which it did neither. A
device whose spending reaches its opening charge vanishes at that moment (`hflray.timeline`). A device below its reserve
is not available at planning. The idle power is no part of the bill E.
"""

from __future__ import annotations

import numpy as np

from hflray.config import BatteryConfig
from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.world.draws import Draws
from hflray.world.part import Part


class Battery(Part):
    """The batteries of all devices. Capacity, initial share and harvest are uniform in their ranges, by device.

    Args:
        config: the ranges and the other settings; a capacity is set.
        num_devices: N.
        seed: the experiment's root seed.
        capacity_j: the fleet's own capacities, (N,), J, NaN for those that are drawn; None: all are.

    Raises:
        ConfigError: no device is ever available, because all stay below the reserve.

    Attributes:
        charge_j: charge of each device, (N,), J.
    """

    state_arrays = ("charge_j",)

    def __init__(
        self, config: BatteryConfig, num_devices: int, seed: int, capacity_j: FloatArray | None = None
    ) -> None:
        assert config.capacity_j is not None
        devices = np.arange(num_devices)

        def drawn(name: str, ends: tuple[float, float]) -> FloatArray:
            return ends[0] + (ends[1] - ends[0]) * Draws(seed, f"batteries/{name}").uniform(devices)

        self.capacity_j = drawn("capacity_j", config.capacity_j)
        if capacity_j is not None:
            self.capacity_j = np.where(np.isnan(capacity_j), self.capacity_j, capacity_j)
        self.harvest_w = drawn("harvest_w", config.harvest_w)
        self.charge_j = self.capacity_j * drawn("initial", config.initial)
        self.reserve_j, self.idle_w = config.reserve_j, config.idle_w
        fills = (self.harvest_w > self.idle_w) & (self.capacity_j >= self.reserve_j) & (self.capacity_j > 0)
        if not (self.available() | fills).any():
            raise ConfigError(
                f"world.battery.reserve_j: got {self.reserve_j:g}; every device begins below it and gains no charge, "
                "so nobody is ever available; accepted: less than the charge of some device; lower it, or raise "
                "world.battery.initial, capacity_j or harvest_w"
            )

    def available(self) -> BoolArray:
        """Return whether each device has its reserve, and any charge at all, (N,)."""
        return np.asarray((self.charge_j >= self.reserve_j) & (self.charge_j > 0))

    def settle(self, duration_s: float, devices: IntArray, spent_j: FloatArray, busy_s: FloatArray) -> None:
        """Take and give the charge of a round.

        Args:
            duration_s: T, s.
            devices: the scheduled devices, (H,); a device may be there twice.
            spent_j: joules of computing and sending of each, (H,), J.
            busy_s: seconds of computing and sending of each, (H,), s.
        """
        change_j = (self.harvest_w - self.idle_w) * duration_s
        np.add.at(change_j, devices, self.idle_w * busy_s - spent_j)
        self.charge_j = np.clip(self.charge_j + change_j, 0.0, self.capacity_j)
