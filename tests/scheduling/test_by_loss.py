"""hflray.scheduling.by_loss: values, shares, candidates and polls by hand, the bill of a poll, and equal bits."""

from __future__ import annotations

import numpy as np
import pytest

from hflray import metrics
from hflray.cost import forward_pass, poll_cost, round_cost
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.scheduling import Poll, build_scheduler, choose_devices
from tests.conftest import small_config
from tests.scheduling import toy

LIKELY = toy.fleet(np.ones((8, 1)), samples=[100, 100, 400, 100, 100, 100, 100, 100])
PAST_LOSS = [1.0, 2.0, 0.9, 0.1, 0.2, 0.3, 0.4, 0.5]  # values: 10, 20, 18, 1 … 5


def drawn(scheduled: int, seed: int = 0, **options: float) -> list[int]:
    scheduler = build_scheduler("importance", num_devices=8, num_scheduled=scheduled, **options)
    return choose_devices(scheduler, toy.context(LIKELY, 5, seed, last_loss=PAST_LOSS)).tolist()


def test_the_least_valuable_devices_are_not_drawn_by_value() -> None:
    assert all(drawn(2, seed, uniform=0.0) == [1, 2] for seed in range(5))  # 75 % of 8 devices are dropped
    assert {d for seed in range(40) for d in drawn(2, seed, uniform=0.0, dropped=0.5)} == {0, 1, 2, 7}


def test_a_share_is_drawn_uniformly() -> None:
    assert {d for seed in range(80) for d in drawn(2, seed, uniform=0.5)} == set(range(8))
    assert len(drawn(8)) == 8


def test_a_sharp_draw_follows_the_value() -> None:
    draws = [drawn(1, seed, uniform=0.0, dropped=0.0, sharpness=0.2)[0] for seed in range(2000)]
    shares = np.bincount(draws, minlength=8) / 2000
    value = np.sqrt(LIKELY.samples) * PAST_LOSS
    assert shares == pytest.approx(np.exp(0.2 * value) / np.exp(0.2 * value).sum(), abs=0.04)


def test_a_device_that_never_trained_is_as_valuable_as_the_best() -> None:
    loss = np.array(PAST_LOSS)
    loss[3] = np.nan
    scheduler = build_scheduler("importance", num_devices=8, num_scheduled=2, uniform=0.0)
    found = {tuple(choose_devices(scheduler, toy.context(LIKELY, 5, seed, last_loss=loss))) for seed in range(20)}
    assert found == {(1, 3)}
    assert len(choose_devices(scheduler, toy.context(LIKELY))) == 2  # nobody has trained


FLEET = toy.fleet(np.ones((6, 1)), samples=[100, 100, 100, 100, 100, 500])
LOSS = np.array([0.1, 0.6, 0.3, 0.5, 0.2, 0.4])
POLLING = ("scheduling.name=power_of_choice", "scheduling.num_scheduled=4", "scheduling.options={candidates: 7}")


def chosen(scheduled: int, candidates: int, seed: int = 0, available: object = None) -> tuple[list[int], list[int]]:
    """Return the chosen devices and the polled ones."""
    polled: list[int] = []

    def measure(devices: np.ndarray) -> np.ndarray:
        polled.extend(devices.tolist())
        return LOSS[devices]

    answers = np.ones(6, dtype=bool) if available is None else np.array(available)
    scheduler = build_scheduler("power_of_choice", num_devices=6, num_scheduled=scheduled, candidates=candidates)
    context = toy.context(FLEET, 1, seed, available=answers, poll=Poll(FLEET, answers, measure))
    return choose_devices(scheduler, context).tolist(), polled


def test_the_candidates_that_lose_most_are_chosen() -> None:
    assert chosen(2, 6) == ([1, 3], [0, 1, 2, 3, 4, 5])
    for seed in range(20):
        devices, polled = chosen(2, 3, seed)
        assert len(set(polled)) == 3
        assert devices == sorted(sorted(polled, key=lambda d: -LOSS[d])[:2])
    assert chosen(2, 6, available=[True, False, True, False, True, False]) == ([2, 4], [0, 2, 4])


def test_candidates_are_drawn_by_their_samples() -> None:
    first = [chosen(1, 2, seed)[1] for seed in range(1500)]
    # Device 5 has half of all samples. It misses the first draw with probability 1/2, and then the second one with
    # probability 4/9, since the other four have 400 of the 900 samples that are left.
    assert np.mean([5 not in polled for polled in first]) == pytest.approx(2 / 9, abs=0.04)


def test_nobody_is_polled_where_nobody_is_passed_over() -> None:
    assert chosen(3, 3)[1] == []
    assert chosen(3, 6, available=[True, True, False, False, False, True]) == ([0, 1, 5], [])


def bits(records: list[RoundRecord]) -> list[tuple[object, ...]]:
    return [(r.model_hash, r.devices.tolist(), r.poll, r.cost.objective, r.totals) for r in records]


def test_the_bill_of_a_round_has_the_poll() -> None:
    experiment = Experiment(small_config(*POLLING, "cost.delay_weight=0.5"))
    losses, polled = experiment.hierarchy.losses, []
    experiment.hierarchy.losses = lambda model, devices: (polled.append(devices), losses(model, devices))[1]
    record = experiment.run_round()
    (candidates,) = polled
    assert len(candidates) == 7
    fleet, work = experiment.scenario.fleet, experiment.work
    poll = poll_cost(fleet, candidates)
    plain = round_cost(fleet, work, record.devices, record.assignment, record.allocation)
    assert record.poll == poll
    assert poll.delay_s > 0 < poll.energy_j
    assert record.cost.delay_s == plain.delay_s + poll.delay_s
    assert record.cost.energy_j == plain.energy_j + poll.energy_j
    assert record.cost.objective == record.cost.energy_j + 0.5 * record.cost.delay_s
    values = record.metrics()
    assert values[metrics.ROUND_POLL_DELAY_S] == poll.delay_s
    assert values[metrics.ROUND_POLL_ENERGY_J] == poll.energy_j
    assert values[metrics.TOTAL_ENERGY_J] == record.cost.energy_j
    # The losses are those of the model before the round, on the devices' own samples.
    expected = Experiment(small_config(*POLLING))
    rows = expected.hierarchy.losses(expected.global_model, candidates)[:, 0]
    assert sorted(candidates[np.argsort(-rows)[:4]].tolist()) == record.devices.tolist()
    plain_values = Experiment(small_config("scheduling.name=fedavg")).run_round().metrics()
    assert not {*metrics.WITH_A_POLL} & set(plain_values)


def test_a_poll_empties_batteries() -> None:
    experiment = Experiment(small_config(*POLLING, "world.battery.capacity_j=500"))
    losses, polled = experiment.hierarchy.losses, []
    experiment.hierarchy.losses = lambda model, devices: (polled.append(devices), losses(model, devices))[1]
    record = experiment.run_round()
    passed_over = np.setdiff1d(polled[0], record.devices)
    assert len(passed_over) == 3
    fleet, charge_j = experiment.scenario.fleet, experiment.world.battery.charge_j
    energy_j = forward_pass(fleet, np.arange(12))[1]
    np.testing.assert_allclose(charge_j[passed_over], 500 - energy_j[passed_over], rtol=1e-12)
    spent_j = energy_j[record.devices] + record.spent_j()
    np.testing.assert_allclose(charge_j[record.devices], 500 - spent_j, rtol=1e-12)
    assert (charge_j[np.setdiff1d(np.arange(12), polled[0])] == 500).all()
