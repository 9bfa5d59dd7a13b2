"""hflray.scheduling.ucb: every device is tried, the bound by hand, and the state."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray.scheduling import build_scheduler, choose_devices
from tests.scheduling import toy
from tests.scheduling.delay_shares import share_between

FLEET = toy.fleet(np.ones((4, 1)))


def test_untried_devices_go_first_and_fast_ones_follow() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=2, exploration=0.0)
    delay_s = np.array([4.0, 1.0, 2.0, 3.0])
    tried: list[int] = []
    for index in (1, 2):
        devices = choose_devices(scheduler, toy.context(FLEET, index))
        tried += devices.tolist()
        scheduler.observe(toy.record(devices, delay_s[devices]))
    assert sorted(tried) == [0, 1, 2, 3]
    for index in (3, 4, 5):
        devices = choose_devices(scheduler, toy.context(FLEET, index))
        assert devices.tolist() == [1, 2]
        scheduler.observe(toy.record(devices, delay_s[devices]))


def test_the_bound_by_hand() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=1)
    scheduler.times = np.array([8, 1, 4, 4])
    scheduler.total_delay_s = np.array([8.0, 3.9, 12.0, 12.0])
    scheduler.slowest_s = 4.0
    # Round 10: means 0.75, 0.025, 0.25, 0.25; bounds √(2 ln 10 / times) = 0.759, 2.146, 1.073, 1.073.
    assert choose_devices(scheduler, toy.context(FLEET, 10)).tolist() == [1]
    assert choose_devices(scheduler, toy.context(FLEET, 10, available=[True, False, True, True])).tolist() == [0]


def test_a_device_of_unknown_delay_is_not_credited() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=2)
    scheduler.observe(toy.record([0, 1], [3.0, np.nan]))  # device 1 vanished
    assert scheduler.times.tolist() == [1, 0, 0, 0]
    assert scheduler.total_delay_s.tolist() == [3, 0, 0, 0]
    assert scheduler.slowest_s == 3
    scheduler.observe(toy.record([1, 2], [np.nan, np.nan]))
    assert scheduler.times.tolist() == [1, 0, 0, 0]
    assert choose_devices(scheduler, toy.context(FLEET, 3, available=[True, True, False, True])).tolist() == [1, 3]


def test_the_queues_of_cs_ucb_q_by_hand() -> None:
    """Samples 100, 100, 100 and 500, H = 2, φ = 0.8: the shares are 0.2, 0.2, 0.2 and 1, and β is 0.5."""
    fleet = toy.fleet(np.ones((4, 1)), samples=[100.0, 100, 100, 500])
    scheduler = build_scheduler(
        "ucb", num_devices=4, num_scheduled=2, variant="cs_ucb_q", exploration=0.0, fairness=0.8
    )
    delay_s = np.array([1.0, 2, 4, 4])
    available = [True, True, False, True]
    first = choose_devices(scheduler, toy.context(fleet, 1, available=available))
    assert 3 in first  # all bounds are 1, so that the queues 0.2, 0.2, 0.2 and 1 decide
    scheduler.observe(toy.record([0, 3], delay_s[[0, 3]]))
    assert scheduler.queue == pytest.approx([0, 0.4, 0.4, 1])
    # Scores: 0.5 · (1 - 1/4) + 0, 0.5 + 0.2, away, and 0.5 · (1 - 4/4) + 0.5.
    assert choose_devices(scheduler, toy.context(fleet, 2, available=available)).tolist() == [1, 3]
    scheduler.observe(toy.record([1, 3], [delay_s[1], np.nan]))  # device 3 vanished, and its queue grows
    assert scheduler.queue == pytest.approx([0.2, 0, 0.6, 2])
    assert choose_devices(scheduler, toy.context(fleet, 3)).tolist() == [2, 3]  # 0.475, 0.25, 0.8 and 1
    other = build_scheduler("ucb", num_devices=4, num_scheduled=2, variant="cs_ucb_q", exploration=0.0, fairness=0.8)
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert choose_devices(other, toy.context(fleet, 3)).tolist() == [2, 3]
    assert set(scheduler.state_dict()) - set(build_scheduler("ucb", num_devices=4, num_scheduled=2).state_dict()) == {
        "share", "queue"
    }  # fmt: skip


def test_queues_keep_to_the_shares_and_without_them_slow_devices_starve() -> None:
    delay_s, trained = np.array([1.0, 1.1, 5.0, 6.0]), {}
    for variant in ("cs_ucb", "cs_ucb_q"):
        scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=2, variant=variant, exploration=0.01)
        for index in range(1, 401):
            devices = choose_devices(scheduler, toy.context(FLEET, index))
            scheduler.observe(toy.record(devices, delay_s[devices]))
        trained[variant] = (scheduler.times / 400).tolist()
    assert min(trained["cs_ucb"]) < 0.02
    assert min(trained["cs_ucb_q"]) > 0.23  # φ H D_n / Σ D is 0.25
    assert trained["cs_ucb_q"][0] > 0.6  # the fast ones still train most


def test_the_share_of_the_variance_between_devices_by_hand() -> None:
    # Means 1 and 4; within: (1 + 1 + 1 + 1) / 2 = 2; between: (2 · 1.5² · 2 / 1 − 2) / 2 = 3.5.
    assert share_between(np.array([0, 0, 5, 5]), np.array([0.0, 2, 3, 5])) == pytest.approx(3.5 / 5.5)


def test_groups_that_differ_alone_are_all_and_equal_groups_are_nothing() -> None:
    assert share_between(np.array([0, 0, 1, 1]), np.array([1.0, 1, 2, 2])) == 1
    assert share_between(np.array([0, 0, 1, 1]), np.array([1.0, 2, 1, 2])) == 0
