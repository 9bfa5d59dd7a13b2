"""hflray.scheduling.simple: turns, links, speed and classes, by hand."""

from __future__ import annotations

import itertools

import numpy as np

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy

LINKS = toy.fleet([[1e-12, 5e-12], [4e-12, 1e-13], [1e-13, 1e-13], [9e-12, 1e-13]])


def test_the_strongest_links_are_chosen() -> None:
    scheduler = build_scheduler("best_channel", num_devices=4, num_scheduled=2)
    assert choose_devices(scheduler, toy.context(LINKS)).tolist() == [0, 3]
    assert choose_devices(scheduler, toy.context(LINKS, available=[True, True, True, False])).tolist() == [0, 1]
    assert choose_devices(scheduler, toy.context(LINKS, edges_up=[True, False])).tolist() == [1, 3]


GOOD, BAD = 3e-11, 3e-13


def test_the_shortest_iterations_are_chosen() -> None:
    # Each of two devices gets 0.5 MHz. Devices 0 and 3 take 2.8 s and 4 s. Device 1 computes for 50 s and sends in
    # 1.3 s. Device 2 has a signal-to-noise ratio of 0.06, hence 42 kbit/s, and sends its 4 Mbit in 95 s.
    fleet = toy.fleet([[GOOD], [GOOD * 10], [BAD], [GOOD / 2]], max_cpu_hz=[1e9, 1e5, 1e9, 1e9])
    scheduler = build_scheduler("fastest", num_devices=4, num_scheduled=2)
    assert choose_devices(scheduler, toy.context(fleet)).tolist() == [0, 3]
    assert choose_devices(scheduler, toy.context(fleet, available=[False, True, True, True])).tolist() == [1, 3]


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


FIVE = toy.fleet(np.ones((5, 1)))


def test_devices_take_turns() -> None:
    scheduler = build_scheduler("round_robin", num_devices=5, num_scheduled=2)
    rounds = [choose_devices(scheduler, toy.context(FIVE, i)).tolist() for i in range(1, 4)]
    assert rounds == [[0, 1], [2, 3], [0, 4]]


def test_an_absent_device_is_passed_over() -> None:
    scheduler = build_scheduler("round_robin", num_devices=5, num_scheduled=2)
    absent = [True, False, True, True, False]
    assert choose_devices(scheduler, toy.context(FIVE, 1, available=absent)).tolist() == [0, 2]
    assert choose_devices(scheduler, toy.context(FIVE, 2)).tolist() == [3, 4]
    nobody = choose_devices(scheduler, toy.context(FIVE, 3, available=np.zeros(5, dtype=bool)))
    assert nobody.tolist() == []
    assert choose_devices(scheduler, toy.context(FIVE, 4, available=absent)).tolist() == [0, 2]
