"""hflray.scheduling.round_robin: the turn by hand, absent devices, and its state."""

from __future__ import annotations

import numpy as np

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy

FLEET = toy.fleet(np.ones((5, 1)))


def test_devices_take_turns() -> None:
    scheduler = build_scheduler("round_robin", num_devices=5, num_scheduled=2)
    rounds = [choose_devices(scheduler, toy.context(FLEET, i)).tolist() for i in range(1, 4)]
    assert rounds == [[0, 1], [2, 3], [0, 4]]


def test_an_absent_device_is_passed_over() -> None:
    scheduler = build_scheduler("round_robin", num_devices=5, num_scheduled=2)
    absent = [True, False, True, True, False]
    assert choose_devices(scheduler, toy.context(FLEET, 1, available=absent)).tolist() == [0, 2]
    assert choose_devices(scheduler, toy.context(FLEET, 2)).tolist() == [3, 4]
    nobody = choose_devices(scheduler, toy.context(FLEET, 3, available=np.zeros(5, dtype=bool)))
    assert nobody.tolist() == []
    assert choose_devices(scheduler, toy.context(FLEET, 4, available=absent)).tolist() == [0, 2]


def test_a_restored_scheduler_goes_on() -> None:
    scheduler, other = (build_scheduler("round_robin", num_devices=5, num_scheduled=2) for _ in range(2))
    scheduler.schedule(toy.context(FLEET))
    other.load_state_dict(scheduler.state_dict())
    assert other.schedule(toy.context(FLEET, 2)).tolist() == [2, 3]
