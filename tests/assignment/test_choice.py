"""The joint search ends where no replacement and no transfer helps, and close to the best of all choices."""

from __future__ import annotations

import numpy as np

from hflray.assignment.choice import search_choice
from hflray.assignment.search import NOWHERE
from tests.assignment.choosing import Choosing, fleet_of

CHOOSING = Choosing(search_choice, "per_edge")


def test_no_move_is_better() -> None:
    for seed in range(3):
        fleet, group = fleet_of(seed, 20, 3), np.arange(20) % 4
        start = np.where(np.arange(20) < 12, np.arange(20) % 3, NOWHERE)
        edge = CHOOSING.searched(fleet, group, start)
        assert CHOOSING.objective(fleet, edge) < CHOOSING.objective(fleet, start)
        CHOOSING.check_no_move_is_better(fleet, group, edge)


def test_every_group_keeps_its_number_and_devices_that_stay_are_scheduled() -> None:
    CHOOSING.check_numbers_of_groups()


def test_an_edge_that_is_down_gets_no_device_and_costs_nothing() -> None:
    CHOOSING.check_an_edge_that_is_down()


def test_near_the_best_of_all_choices() -> None:
    gaps = [
        CHOOSING.objective(fleet, CHOOSING.searched(fleet, group, start)) / least - 1
        for fleet, group, start, least in CHOOSING.small_rounds()
    ]
    assert min(gaps) > -1e-6
    assert np.median(gaps) < 1e-6
    assert max(gaps) < 0.15
