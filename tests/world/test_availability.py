"""hflray.world.availability: rates, and independence of rounds and devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.config import BatteryConfig
from hflray.errors import ConfigError
from hflray.world.battery import Battery
from hflray.world.draws import Draws
from tests.conftest import refusal

MANY = 100_000


def build(name: str, num_devices: int = MANY, **options: Any) -> Any:
    return registry.build("availability", name, num_devices=num_devices, seed=2, **options)


def test_bernoulli_rounds_are_independent() -> None:
    part = build("bernoulli", probability=0.3)
    first, second = part.available(1, 0.0), part.available(2, 50.0)
    assert first.mean() == pytest.approx(0.3, abs=0.006)
    assert (first & second).mean() == pytest.approx(0.09, abs=0.004)
    np.testing.assert_array_equal(part.available(1, 99.0), first)  # drawn by key, not by order
    assert build("bernoulli", 10, probability=1.0).available(4, 0.0).all()


def test_markov_devices_stay_for_a_time() -> None:
    part = build("markov", mean_on_s=100, mean_off_s=300)
    first = part.available(1, 0.0)
    assert first.mean() == pytest.approx(0.25, abs=0.006)
    part.advance(50.0)
    later = part.available(2, 50.0)
    assert later.mean() == pytest.approx(0.25, abs=0.006)
    # P(on at t | on at 0) = π + (1 − π) exp(−t (1/on + 1/off))
    stays = 0.25 + 0.75 * np.exp(-50 * (1 / 100 + 1 / 300))
    assert later[first].mean() == pytest.approx(stays, abs=0.015)


def test_diurnal_follows_the_day() -> None:
    part = build("diurnal", mean=0.5, amplitude=0.4, period_s=1000.0)
    noon, midnight = part.available(1, 250.0), part.available(2, 750.0)
    assert noon.mean() == pytest.approx(0.9, abs=0.006)
    assert midnight.mean() == pytest.approx(0.1, abs=0.006)
    around_the_world = build("diurnal", mean=0.5, amplitude=0.4, period_s=1000.0, spread=1.0)
    assert around_the_world.available(1, 250.0).mean() == pytest.approx(0.5, abs=0.006)


# hflray.world.battery: charges, and who is available.


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


# hflray.world.draws: moments, and independence of the order and shape of requests.


COUNT = 400_000


def test_moments_are_those_of_the_laws() -> None:
    draws, members = Draws(3, "test"), np.arange(COUNT)
    uniform, normal, exponential = (law(7, members) for law in (draws.uniform, draws.normal, draws.exponential))
    assert 0 < uniform.min() < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.002)
    assert uniform.var() == pytest.approx(1 / 12, rel=0.01)
    assert normal.mean() == pytest.approx(0, abs=0.006)
    assert normal.var() == pytest.approx(1, rel=0.01)
    assert (normal**4).mean() == pytest.approx(3, rel=0.03)
    assert exponential.mean() == pytest.approx(1, rel=0.01)
    assert exponential.var() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("axis", ["round", "device", "stream", "seed", "edge"])
def test_neighbours_are_not_correlated(axis: str) -> None:
    members = np.arange(COUNT)
    first = Draws(3, "test").normal(7, members, 2)
    second = {
        "round": lambda: Draws(3, "test").normal(8, members, 2),
        "device": lambda: Draws(3, "test").normal(7, members + 1, 2),
        "stream": lambda: Draws(3, "other").normal(7, members, 2),
        "seed": lambda: Draws(4, "test").normal(7, members, 2),
        "edge": lambda: Draws(3, "test").normal(7, members, 3),
    }[axis]()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.008


def test_a_number_depends_on_its_indices_alone() -> None:
    draws = Draws(3, "test")
    table = draws.bits(5, np.arange(4)[:, None], np.arange(6))
    assert table.shape == (4, 6)
    assert len(np.unique(table)) == 24
    assert draws.bits(5, 2, 3) == table[2, 3]
    assert draws.bits(5, 2, 3).shape == ()
    np.testing.assert_array_equal(Draws(3, "test").bits(5, np.array([3, 1]), np.array([0, 2])), table[[3, 1], [0, 2]])


def test_known_numbers_stay() -> None:
    """Committed results were drawn with these numbers."""
    draws = Draws(3, "test")
    assert draws.bits(5, np.arange(2), 3).tolist() == [5199441860094234945, 17702510883797604374]
    assert draws.uniform(5, 1, 3) == 0.9596550379330826
    assert draws.bits().item() == 1736852203030749815
