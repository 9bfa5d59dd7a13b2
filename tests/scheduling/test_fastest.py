"""hflray.scheduling.fastest: computing and sending both count, by hand."""

from __future__ import annotations

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy

GOOD, BAD = 3e-11, 3e-13


def test_the_shortest_iterations_are_chosen() -> None:
    # Each of two devices gets 0.5 MHz. Devices 0 and 3 take 2.8 s and 4 s. Device 1 computes for 50 s and sends in
    # 1.3 s. Device 2 has a signal-to-noise ratio of 0.06, hence 42 kbit/s, and sends its 4 Mbit in 95 s.
    fleet = toy.fleet([[GOOD], [GOOD * 10], [BAD], [GOOD / 2]], max_cpu_hz=[1e9, 1e5, 1e9, 1e9])
    scheduler = build_scheduler("fastest", num_devices=4, num_scheduled=2)
    assert choose_devices(scheduler, toy.context(fleet)).tolist() == [0, 3]
    assert choose_devices(scheduler, toy.context(fleet, available=[False, True, True, True])).tolist() == [1, 3]
