"""The search on the joint objective ends where no replacement and no transfer helps, and close to the best choice."""

from __future__ import annotations

import numpy as np
from hflray.assignment.joint_choice import search_joint_choice

from hflray.assignment.choice import search_choice
from hflray.assignment.objective import round_problem
from hflray.assignment.search import NOWHERE
from tests.assignment.choosing import WORK, Choosing, fleet_of

CHOOSING = Choosing(search_joint_choice, "joint")


def test_no_move_is_better() -> None:
    lower = 0
    for seed in range(3):
        fleet, group = fleet_of(seed, 16, 3), np.arange(16) % 4
        start = np.where(np.arange(16) < 8, np.arange(16) % 3, NOWHERE)
        edge = CHOOSING.searched(fleet, group, start)
        value = CHOOSING.objective(fleet, edge)
        problem, _ = round_problem(fleet, WORK, np.arange(16))
        per_edge, _ = search_choice(problem, group, np.zeros(16, dtype=bool), start, np.ones(3, dtype=bool))
        assert value <= CHOOSING.objective(fleet, per_edge) * (1 + 1e-9)
        lower += value < CHOOSING.objective(fleet, per_edge) * (1 - 1e-6)
        CHOOSING.check_no_move_is_better(fleet, group, edge)
    assert lower > 0  # the choice of the lowest per-edge objective is not always a local optimum of this one


def test_every_group_keeps_its_number_and_devices_that_stay_are_scheduled() -> None:
    CHOOSING.check_numbers_of_groups()


def test_an_edge_that_is_down_gets_no_device_and_costs_nothing() -> None:
    CHOOSING.check_an_edge_that_is_down()


def test_near_the_best_of_all_choices() -> None:
    gaps, per_edge_gaps = [], []
    for fleet, group, start, least in CHOOSING.small_rounds():
        gaps.append(CHOOSING.objective(fleet, CHOOSING.searched(fleet, group, start)) / least - 1)
        problem, _ = round_problem(fleet, WORK, np.arange(7))
        per_edge, _ = search_choice(problem, group, np.zeros(7, dtype=bool), start, np.ones(2, dtype=bool))
        per_edge_gaps.append(CHOOSING.objective(fleet, per_edge) / least - 1)
    assert min(gaps) > -1e-6
    assert np.median(gaps) < 1e-6
    assert max(gaps) < 0.005
    assert max(per_edge_gaps) > 0.01  # a choice by the per-edge objective misses more
