"""hflray.scheduling.best_channel: the strongest links, by hand."""

from __future__ import annotations

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy

FLEET = toy.fleet([[1e-12, 5e-12], [4e-12, 1e-13], [1e-13, 1e-13], [9e-12, 1e-13]])


def test_the_strongest_links_are_chosen() -> None:
    scheduler = build_scheduler("best_channel", num_devices=4, num_scheduled=2)
    assert choose_devices(scheduler, toy.context(FLEET)).tolist() == [0, 3]
    assert choose_devices(scheduler, toy.context(FLEET, available=[True, True, True, False])).tolist() == [0, 1]
    assert choose_devices(scheduler, toy.context(FLEET, edges_up=[True, False])).tolist() == [1, 3]
