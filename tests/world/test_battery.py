"""hflray.world.battery: charges, and who is available."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.config import BatteryConfig
from hflray.errors import ConfigError
from hflray.world.battery import Battery
from tests.conftest import refusal


def test_example_4_of_the_design() -> None:
    """Opening charges 10, 20 and 6 J, spent 6, 10 and 6 J in 6 s, harvest 0.1 W: 4.6, 10.6 and 0.6 J are left."""
    battery = Battery(BatteryConfig(capacity_j=20, reserve_j=2, harvest_w=0.1), 3, 0)
    battery.charge_j = np.array([10.0, 20.0, 6.0])
    battery.settle(6.0, np.array([0, 1, 2]), np.array([6.0, 10.0, 6.0]), np.array([4.0, 5.0, 4.5]))
    np.testing.assert_allclose(battery.charge_j, [4.6, 10.6, 0.6])
    assert battery.available().tolist() == [True, True, False]


def test_idle_power_counts_where_a_device_is_not_busy_and_charge_stays_in_its_bounds() -> None:
    battery = Battery(BatteryConfig(capacity_j=100, initial=0.5, harvest_w=1, idle_w=3), 4, 0)
    battery.settle(10.0, np.array([2]), np.array([7.0]), np.array([4.0]))
    np.testing.assert_allclose(battery.charge_j, [30, 30, 50 + 10 - 7 - 3 * 6, 30])
    battery.settle(100.0, np.array([0]), np.array([30.0]), np.array([100.0]))
    np.testing.assert_allclose(battery.charge_j, [100, 0, 0, 0])
    assert battery.available().tolist() == [True, False, False, False]


def test_capacities_are_uniform_in_their_range() -> None:
    battery = Battery(BatteryConfig(capacity_j=(10, 30), initial=(0.5, 1.0), harvest_w=(0, 2)), 50_000, 1)
    assert battery.capacity_j.min() >= 10
    assert battery.capacity_j.mean() == pytest.approx(20, rel=0.01)
    assert battery.capacity_j.std() == pytest.approx(20 / np.sqrt(12), rel=0.02)
    assert (battery.charge_j / battery.capacity_j).mean() == pytest.approx(0.75, rel=0.01)
    assert abs(np.corrcoef(battery.capacity_j, battery.harvest_w)[0, 1]) < 0.02


@pytest.mark.parametrize(
    "settings",
    [
        {"initial": 0},
        {"initial": 0.1, "reserve_j": 5},
        {"reserve_j": 99, "harvest_w": 1},
        {"capacity_j": 0, "harvest_w": 1},  # what they harvest has no room
    ],
)
def test_batteries_that_are_never_full_enough_are_refused(settings: dict[str, float]) -> None:
    with refusal(ConfigError, "world.battery.reserve_j: ", " nobody is ever available; accepted"):
        Battery(BatteryConfig(**{"capacity_j": 10} | settings), 5, 0)
    for capacity_j in (10, 0.5):
        Battery(BatteryConfig(capacity_j=capacity_j, initial=0, harvest_w=1), 5, 0)  # they fill
