"""hflray.scheduling.energy_aware: queues by hand, and budgets in the long run."""

from __future__ import annotations

import numpy as np

from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.context import nominal_iteration
from tests.scheduling import toy

GAIN = 3 * 1e-18 * 1e6 / 0.1
# Device 0 sends at ten times the power of the others, and device 3 has twice their samples.
FLEET = toy.fleet(np.full((4, 1), GAIN), samples=[100, 100, 100, 200], power_w=[1.0, 0.1, 0.1, 0.1])


def test_without_debts_the_devices_with_most_samples_go_first() -> None:
    scheduler = build_scheduler("energy_aware", num_devices=4, num_scheduled=1)
    assert choose_devices(scheduler, toy.context(FLEET)).tolist() == [3]


def test_a_queue_grows_by_what_is_spent_and_shrinks_by_the_budget() -> None:
    scheduler = build_scheduler("energy_aware", num_devices=4, num_scheduled=2, budget_j=1.5)
    choose_devices(scheduler, toy.context(FLEET))
    scheduler.observe(toy.record([1, 3], 1.0, [4.0, 1.0]))
    assert scheduler.queue_j.tolist() == [0, 2.5, 0, 0]
    scheduler.observe(toy.record([1], 1.0, 1.0))
    assert scheduler.queue_j.tolist() == [0, 2.0, 0, 0]


def test_each_device_keeps_to_its_budget_in_the_long_run() -> None:
    scheduler = build_scheduler("energy_aware", num_devices=4, num_scheduled=1)
    round_j = nominal_iteration(toy.context(FLEET), 1)[1] * 5
    spent = np.zeros(4)
    for index in range(1, 401):
        devices = choose_devices(scheduler, toy.context(FLEET, index))
        spent[devices] += round_j[devices]
        scheduler.observe(toy.record(devices, 1.0, round_j[devices]))
    budget_j = scheduler.budget_j
    assert budget_j == round_j.mean() / 4
    assert spent[0] / 400 < 1.3 * budget_j  # the greedy choice without queues would not stop at a budget
    assert spent[0] < round_j[0] * 400 / 4 / 1.5  # it is scheduled less often than in equal turns
