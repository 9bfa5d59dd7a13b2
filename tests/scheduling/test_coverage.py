"""hflray.scheduling.coverage: the greedy set by hand, its bound, and devices that have counted."""

from __future__ import annotations

import itertools

import numpy as np

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy


def chosen(counts: np.ndarray, scheduled: int, **more: object) -> list[int]:
    fleet = toy.fleet(np.ones((len(counts), 1)))
    scheduler = build_scheduler("coverage", num_devices=len(counts), num_scheduled=scheduled)
    return choose_devices(scheduler, toy.context(fleet, class_counts=counts, **more)).tolist()


def test_other_classes_go_before_more_of_the_same() -> None:
    counts = np.array([[90, 0, 0], [100, 0, 0], [0, 50, 0], [0, 0, 20]])
    assert chosen(counts, 1) == [1]
    assert chosen(counts, 3) == [1, 2, 3]


def test_devices_that_have_counted_weigh_less() -> None:
    counts = np.array([[100, 0], [90, 0], [0, 10]])
    assert chosen(counts, 1) == [0]
    assert chosen(counts, 1, participation=[1, 0, 0]) == [1]
    assert chosen(counts, 2, available=[False, True, True]) == [1, 2]


def test_the_greedy_value_is_within_the_bound_of_the_best() -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        counts = rng.integers(0, 40, (8, 4))
        value = {s: np.sqrt(counts[list(s)].sum(axis=0)).sum() for s in itertools.combinations(range(8), 3)}
        greedy = value[tuple(chosen(counts, 3))]
        assert (1 - 1 / np.e) * max(value.values()) <= greedy <= max(value.values())
