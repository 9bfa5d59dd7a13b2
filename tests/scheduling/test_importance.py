"""hflray.scheduling.importance: values by hand, the three shares, and devices that never trained."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy

FLEET = toy.fleet(np.ones((8, 1)), samples=[100, 100, 400, 100, 100, 100, 100, 100])
LOSS = [1.0, 2.0, 0.9, 0.1, 0.2, 0.3, 0.4, 0.5]  # values: 10, 20, 18, 1 … 5


def chosen(scheduled: int, seed: int = 0, **options: float) -> list[int]:
    scheduler = build_scheduler("importance", num_devices=8, num_scheduled=scheduled, **options)
    return choose_devices(scheduler, toy.context(FLEET, 5, seed, last_loss=LOSS)).tolist()


def test_the_least_valuable_devices_are_not_drawn_by_value() -> None:
    assert all(chosen(2, seed, uniform=0.0) == [1, 2] for seed in range(5))  # 75 % of 8 devices are dropped
    assert {d for seed in range(40) for d in chosen(2, seed, uniform=0.0, dropped=0.5)} == {0, 1, 2, 7}


def test_a_share_is_drawn_uniformly() -> None:
    assert {d for seed in range(80) for d in chosen(2, seed, uniform=0.5)} == set(range(8))
    assert len(chosen(8)) == 8


def test_a_sharp_draw_follows_the_value() -> None:
    draws = [chosen(1, seed, uniform=0.0, dropped=0.0, sharpness=0.2)[0] for seed in range(2000)]
    shares = np.bincount(draws, minlength=8) / 2000
    value = np.sqrt(FLEET.samples) * LOSS
    assert shares == pytest.approx(np.exp(0.2 * value) / np.exp(0.2 * value).sum(), abs=0.04)


def test_a_device_that_never_trained_is_as_valuable_as_the_best() -> None:
    loss = np.array(LOSS)
    loss[3] = np.nan
    scheduler = build_scheduler("importance", num_devices=8, num_scheduled=2, uniform=0.0)
    found = {tuple(choose_devices(scheduler, toy.context(FLEET, 5, seed, last_loss=loss))) for seed in range(20)}
    assert found == {(1, 3)}
    assert len(choose_devices(scheduler, toy.context(FLEET))) == 2  # nobody has trained


@pytest.mark.parametrize("option", ["dropped", "uniform"])
def test_a_share_above_1_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        chosen(2, **{option: 1.5})
