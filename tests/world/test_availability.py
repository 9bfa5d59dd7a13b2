"""hflray.world.availability: rates, and independence of rounds and devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hflray import registry

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
