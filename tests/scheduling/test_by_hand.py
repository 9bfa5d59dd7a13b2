"""Each scheduler by hand: the simple ones, and those that watch energy, reward, utility or loss."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from hflray import metrics
from hflray.cost import forward_pass, poll_cost, round_cost
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.scheduling import Poll, build_scheduler, choose_devices
from hflray.scheduling.context import nominal_iteration
from hflray.scheduling.oort import Oort
from tests.conftest import small_config
from tests.scheduling import toy
from tests.scheduling.delay_shares import share_between

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


GAIN = 3 * 1e-18 * 1e6 / 0.1
# Device 0 sends at ten times the power of the others, and device 3 has twice their samples.
PAYING = toy.fleet(np.full((4, 1), GAIN), samples=[100, 100, 100, 200], power_w=[1.0, 0.1, 0.1, 0.1])


def test_a_queue_grows_by_what_is_spent_and_shrinks_by_the_budget() -> None:
    unset = build_scheduler("energy_aware", num_devices=4, num_scheduled=2)
    unset.observe(toy.record([], []))  # a first round of nobody, before which no budget is known
    scheduler = build_scheduler("energy_aware", num_devices=4, num_scheduled=2, budget_j=1.5)
    choose_devices(scheduler, toy.context(PAYING))
    scheduler.observe(toy.record([1, 3], 1.0, [4.0, 1.0]))
    assert scheduler.queue_j.tolist() == [0, 2.5, 0, 0]
    scheduler.observe(toy.record([1], 1.0, 1.0))
    assert scheduler.queue_j.tolist() == [0, 2.0, 0, 0]
    record = toy.record([1], 1.0, 1.0)  # devices 0 and 2 are under way with older plans, whose joules were lost
    record.timeline = toy.record([0, 2, 1, 0], 1.0, [3.0, 1.0, 1.0, 2.0]).timeline
    scheduler.observe(record)
    assert scheduler.queue_j.tolist() == [3.5, 1.5, 0, 0]


def test_each_device_keeps_to_its_budget_in_the_long_run() -> None:
    scheduler = build_scheduler("energy_aware", num_devices=4, num_scheduled=1)
    round_j = nominal_iteration(toy.context(PAYING), 1)[1] * 5
    spent = np.zeros(4)
    for index in range(1, 401):
        devices = choose_devices(scheduler, toy.context(PAYING, index))
        spent[devices] += round_j[devices]
        scheduler.observe(toy.record(devices, 1.0, round_j[devices]))
    budget_j = scheduler.budget_j
    assert budget_j == round_j.mean() / 4
    assert spent[0] / 400 < 1.3 * budget_j  # the greedy choice without queues would not stop at a budget
    assert spent[0] < round_j[0] * 400 / 4 / 1.5  # it is scheduled less often than in equal turns


ALIKE = toy.fleet(np.ones((4, 1)))


def test_untried_devices_go_first_and_fast_ones_follow() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=2, exploration=0.0)
    delay_s = np.array([4.0, 1.0, 2.0, 3.0])
    tried: list[int] = []
    for index in (1, 2):
        devices = choose_devices(scheduler, toy.context(ALIKE, index))
        tried += devices.tolist()
        scheduler.observe(toy.record(devices, delay_s[devices]))
    assert sorted(tried) == [0, 1, 2, 3]
    for index in (3, 4, 5):
        devices = choose_devices(scheduler, toy.context(ALIKE, index))
        assert devices.tolist() == [1, 2]
        scheduler.observe(toy.record(devices, delay_s[devices]))


def test_the_bound_by_hand() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=1)
    scheduler.times = np.array([8, 1, 4, 4])
    scheduler.total_delay_s = np.array([8.0, 3.9, 12.0, 12.0])
    scheduler.slowest_s = 4.0
    # Round 10: means 0.75, 0.025, 0.25, 0.25; bounds √(2 ln 10 / times) = 0.759, 2.146, 1.073, 1.073.
    assert choose_devices(scheduler, toy.context(ALIKE, 10)).tolist() == [1]
    assert choose_devices(scheduler, toy.context(ALIKE, 10, available=[True, False, True, True])).tolist() == [0]


def test_a_device_without_a_delay_has_the_reward_0_unless_it_is_under_way() -> None:
    scheduler = build_scheduler("ucb", num_devices=4, num_scheduled=2)
    scheduler.observe(toy.record([0, 1], [np.nan, np.nan]))  # nobody has a delay yet
    assert choose_devices(scheduler, toy.context(ALIKE, 2)).tolist() == [2, 3]
    scheduler.observe(toy.record([0, 1], [3.0, np.nan]))  # device 1 vanished
    assert scheduler.times.tolist() == [2, 2, 0, 0]
    assert scheduler.total_delay_s.tolist() == [3, 3, 0, 0]
    assert scheduler.slowest_s == 3
    # Under a clock that does not wait, device 2 is under way and device 3 has vanished.
    record = toy.record([2, 3], [np.nan, np.nan])
    record.timeline.turn, record.timeline.vanished = np.zeros(2, dtype=int), np.array([False, True])
    scheduler.observe(record)
    assert scheduler.times.tolist() == [2, 2, 0, 1]


def test_a_device_that_never_answers_does_not_take_a_slot_in_each_round() -> None:
    for variant in ("cs_ucb", "cs_ucb_q"):
        scheduler, times = build_scheduler("ucb", num_devices=10, num_scheduled=2, variant=variant), np.zeros(10)
        for index in range(1, 51):
            devices = choose_devices(scheduler, toy.context(toy.fleet(np.ones((10, 1))), index))
            times[devices] += 1
            scheduler.observe(toy.record(devices, np.where(devices == 0, np.nan, 5.0 + devices)))
        assert times[0] <= 10


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
    scheduler.observe(toy.record([1, 3], [delay_s[1], np.nan]))  # device 3 was scheduled and vanished
    assert scheduler.queue == pytest.approx([0.2, 0, 0.6, 1])
    assert choose_devices(scheduler, toy.context(fleet, 3)).tolist() == [2, 3]  # 0.475, 0.25, 0.8 and 0.5
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
            devices = choose_devices(scheduler, toy.context(ALIKE, index))
            scheduler.observe(toy.record(devices, delay_s[devices]))
        trained[variant] = (scheduler.times / 400).tolist()
    assert min(trained["cs_ucb"]) < 0.02
    assert min(trained["cs_ucb_q"]) > 0.23  # φ H D_n / Σ D is 0.25
    assert trained["cs_ucb_q"][0] > 0.6  # the fast ones still train most


def test_the_share_of_the_variance_between_devices_by_hand() -> None:
    # Means 1 and 4; within: (1 + 1 + 1 + 1) / 2 = 2; between: (2 · 1.5² · 2 / 1 − 2) / 2 = 3.5.
    assert share_between(np.array([0, 0, 5, 5]), np.array([0.0, 2, 3, 5])) == pytest.approx(3.5 / 5.5)


EQUAL = toy.fleet(np.full((6, 1), 3e-11))
SEEN = {"last_utility": [9.0, 8.0, 1.0, 1.0, 1.0, 1.0], "last_round": [4] * 6, "last_delay_s": [1.0] * 6}


def oort(scheduled: int = 2, **options: float | str) -> Oort:
    scheduler = build_scheduler("oort", num_devices=6, num_scheduled=scheduled, **options)
    assert isinstance(scheduler, Oort)
    return scheduler


def test_the_utility_by_hand() -> None:
    context = toy.context(EQUAL, 5, **SEEN | {"last_delay_s": [4.0, 1.0, 1.0, 1.0, 1.0, np.nan]})
    utility = oort().utility(context, np.arange(6))
    stale = np.sqrt(0.1 * np.log(5) / 4)
    # The 95th percentile of the losses is 8.75, and 0.999 to 9 is scaled to 0 to 1. T is the 30th percentile of the
    # known delays, 1 s; the first device takes 4 s, and (1/4)² is its penalty.
    scaled = (np.array([8.75, 8, 1, 1, 1, 1]) - 0.999) / 8.001
    assert utility == pytest.approx((scaled + stale) * [1 / 16, 1, 1, 1, 1, 1])
    nothing = toy.context(EQUAL, 5, **SEEN | {"last_delay_s": [np.nan] * 6})  # no delay is known
    assert oort().utility(nothing, np.arange(6)) == pytest.approx(scaled + stale)


def test_a_slow_device_of_high_loss_is_not_exploited() -> None:
    seen = SEEN | {"last_utility": [9.0, 5.0, 1.0, 1.0, 1.0, 1.0], "last_delay_s": [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]}
    greedy = {"exploration": 0.0, "least_exploration": 0.0}
    context = toy.context(EQUAL, 5, **seen)
    assert choose_devices(oort(1, **greedy), context).tolist() == [1]
    assert choose_devices(oort(1, **greedy, penalty=0.0), context).tolist() == [0]
    assert choose_devices(oort(1, **greedy, duration_share=1.0), context).tolist() == [0]


def test_a_stale_device_returns() -> None:
    seen = {"last_utility": [1.0] * 6, "last_round": [90, 90, 90, 90, 1, 90], "last_delay_s": [1.0] * 6}
    utility = oort().utility(toy.context(EQUAL, 100, **seen), np.arange(6))
    assert utility.argmax() == 4
    assert utility[4] - 1 == pytest.approx(np.sqrt(0.1 * np.log(100)))


def test_unknown_devices_are_explored_by_speed() -> None:
    fleet = toy.fleet(np.full((6, 1), 3e-11), max_cpu_hz=[1e9, 1e9, 1e9, 1e9, 1e9, 1e3])
    seen = {
        "last_utility": [9.0, 8.0, np.nan, np.nan, np.nan, np.nan],
        "last_round": [4, 4, 0, 0, 0, 0],
        "last_delay_s": [1.0, 1.0, np.nan, np.nan, np.nan, np.nan],
    }
    sharp = oort(exploration=0.5, decay=1.0)
    rounds = [choose_devices(sharp, toy.context(fleet, 5, seed, **seen)).tolist() for seed in range(60)]
    assert all(len(set(devices) & {0, 1}) == 1 for devices in rounds)  # one exploited, one explored
    explored = [d for devices in rounds for d in devices if d > 1]
    assert set(explored) == {2, 3, 4}  # device 5 takes 5,000 s
    nobody = oort(scheduled=4)
    assert len(choose_devices(nobody, toy.context(fleet))) == 4


def test_exploration_decays_to_its_smallest_value() -> None:
    seen = {"last_utility": [9.0] * 5 + [np.nan], "last_round": [4] * 5 + [0], "last_delay_s": [1.0] * 5 + [np.nan]}
    options = {"exploration": 1.0, "decay": 0.5, "least_exploration": 0.0}
    early = choose_devices(oort(**options), toy.context(EQUAL, 2, **seen))
    late = choose_devices(oort(**options), toy.context(EQUAL, 9, **seen))
    assert 5 in early
    assert 5 not in late


def test_the_pacer_allows_longer_delays_when_utility_falls() -> None:
    scheduler = oort(window=2, step=0.1)
    shares = []
    for index, utility in enumerate((9.0, 9.0, 9.0, 1.0, 1.0, 9.0, 9.0), start=1):
        seen = {"last_utility": [utility] * 6, "last_round": [max(1, index - 1)] * 6, "last_delay_s": [1.0] * 6}
        choose_devices(scheduler, toy.context(EQUAL, index, **seen))
        shares.append(scheduler.duration_share)
    # After round 4 the sums of two rounds are known twice: 18 before and 2 after; then 2 and 18.
    assert shares == pytest.approx([0.3, 0.3, 0.3, 0.3, 0.4, 0.4, 0.4])


def test_the_variant_code_has_the_constants_of_the_code() -> None:
    paper, code = oort(), oort(variant="code")
    assert (paper.decay, paper.duration_share, paper.step) == (0.98, 0.3, 0.1)
    assert (code.decay, code.duration_share, code.step) == (0.95, 0.1, 0.05)
    assert (oort(variant="code", step=0.2).step, oort(duration_share=0.0).duration_share) == (0.2, 0.0)
    assert (paper.exploration, paper.least_exploration, paper.penalty, paper.window) == (0.9, 0.2, 2, 20)
    assert (code.exploration, code.least_exploration, code.penalty, code.window) == (0.9, 0.2, 2, 20)


def test_the_utility_of_the_code_by_hand() -> None:
    """50 devices of losses 1 to 50 and delays 1 to 50 s: the clip is the 50th loss, and T the 6th delay."""
    fleet = toy.fleet(np.full((50, 1), 3e-11))
    values = np.arange(1.0, 51.0)
    context = toy.context(fleet, 5, last_utility=values, last_round=[4] * 50, last_delay_s=values)
    scheduler = build_scheduler("oort", num_devices=50, num_scheduled=2, variant="code")
    assert isinstance(scheduler, Oort)
    stale = np.sqrt(0.1 * np.log(5) / 4)
    scaled = (np.minimum(values, 50) - 0.999) / (50 - 0.999)
    penalty = np.where(values > 6, (6 / values) ** 2, 1.0)
    assert scheduler.utility(context, np.arange(50)) == pytest.approx((scaled + stale) * penalty)
    scheduler.duration_share = 1.0
    assert scheduler.utility(context, np.arange(50)) == pytest.approx(scaled + stale)
    # Of 100 devices the clip is the 99th loss.
    losses = np.arange(1.0, 101.0)
    more = toy.context(
        toy.fleet(np.full((100, 1), 3e-11)), 5, last_utility=losses, last_round=[4] * 100, last_delay_s=[1.0] * 100
    )
    value = scheduler.utility(more, np.arange(100))
    assert value[99] == value[98] > value[97]


def test_the_code_draws_above_a_lower_cut_off() -> None:
    """Utilities 1, 0.75 and 0.6 of one scheduled device: 95 % of the first admits one, 70 % of the second all three."""
    seen = {"last_round": [4] * 6, "last_delay_s": [1.0] * 6}
    seen["last_utility"] = [10.0, 7.3, 5.4, 1.0, 1.0, 1.0]
    greedy: dict[str, float] = {"exploration": 0.0, "least_exploration": 0.0}
    chosen = {
        variant: {int(choose_devices(oort(1, variant=variant, **greedy), toy.context(EQUAL, 5, seed, **seen))[0])
                  for seed in range(200)}
        for variant in ("paper", "code")
    }  # fmt: skip
    assert chosen == {"paper": {0}, "code": {0, 1, 2}}


def paced(variant: str, utilities: list[float], **options: float) -> list[float]:
    """Return the quantile in each round, if in each round before all devices counted with the same utility."""
    scheduler = oort(6, variant=variant, window=2, exploration=0.0, least_exploration=0.0, **options)
    shares = []
    for index, utility in enumerate(utilities, start=1):
        seen = {"last_utility": [utility] * 6, "last_round": [max(1, index - 1)] * 6, "last_delay_s": [1.0] * 6}
        choose_devices(scheduler, toy.context(EQUAL, index, **seen))
        shares.append(round(scheduler.duration_share, 6))
    return shares


def test_the_pacer_of_the_code_acts_on_flat_and_on_sharp_change() -> None:
    """W = 2. The first round has nobody before it, so that the utilities that are summed begin with 0.

    In round 4, 0 + 5 is followed by 5 + 5, which is neither; in round 6, 5 + 5 by 5 + 5, which is flat; in round 8, 10
    by 10.8, flat; in round 10, 10.8 by 70, sharp; in round 12, 70 by 2, neither.
    """
    utilities = [9.0, 5, 5, 5, 5, 5, 5, 5.8, 20, 50, 1, 1]
    expected = [0.1, 0.1, 0.1, 0.1, 0.1, 0.15, 0.15, 0.2, 0.2, 0.15, 0.15, 0.15]
    assert paced("code", utilities) == expected
    assert paced("code", utilities, duration_share=0.97)[7] == 1.0
    assert paced("code", [9.0, 1, 1, 1, 10, 10], step=0.1)[5] == 0.1  # not below one step
    # The paper's pacer acts in rounds 5, 7, … and only on a fall: 2 after 70.
    assert paced("paper", [*utilities, 1.0], step=0.05) == [0.3] * 12 + [0.35]


def test_only_exploited_devices_pace_the_code() -> None:
    """Devices 0 to 3 have trained, 4 and 5 are new: the mean is that of the former which counted in the round."""
    scheduler = oort(6, variant="code", window=2)
    nan = np.nan
    first = {
        "last_utility": [3.0] * 4 + [nan] * 2,
        "last_round": [1] * 4 + [0] * 2,
        "last_delay_s": [1.0] * 4 + [nan] * 2,
    }
    choose_devices(scheduler, toy.context(EQUAL, 2, **first))
    assert sorted(scheduler.exploited) == [0, 1, 2, 3]
    second = {"last_utility": [4.0, 6, 100, 3, 900, 900], "last_round": [2, 2, 1, 1, 2, 2], "last_delay_s": [1.0] * 6}
    choose_devices(scheduler, toy.context(EQUAL, 3, **second))
    assert scheduler.sums == [0.0, 5.0]
    other = oort(6, variant="code", window=2)
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert other.exploited == scheduler.exploited
    assert "exploited" not in oort().state_dict()


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


POLLED = toy.fleet(np.ones((6, 1)), samples=[100, 100, 100, 100, 100, 500])
LOSS = np.array([0.1, 0.6, 0.3, 0.5, 0.2, 0.4])
POLLING = ("scheduling.name=power_of_choice", "scheduling.num_scheduled=4", "scheduling.options={candidates: 7}")


def chosen_by_loss(
    scheduled: int, candidates: int, seed: int = 0, available: object = None
) -> tuple[list[int], list[int]]:
    """Return the chosen devices and the polled ones."""
    polled: list[int] = []

    def measure(devices: np.ndarray) -> np.ndarray:
        polled.extend(devices.tolist())
        return LOSS[devices]

    answers = np.ones(6, dtype=bool) if available is None else np.array(available)
    scheduler = build_scheduler("power_of_choice", num_devices=6, num_scheduled=scheduled, candidates=candidates)
    context = toy.context(POLLED, 1, seed, available=answers, poll=Poll(POLLED, answers, measure))
    return choose_devices(scheduler, context).tolist(), polled


def test_the_candidates_that_lose_most_are_chosen() -> None:
    assert chosen_by_loss(2, 6) == ([1, 3], [0, 1, 2, 3, 4, 5])
    for seed in range(20):
        devices, polled = chosen_by_loss(2, 3, seed)
        assert len(set(polled)) == 3
        assert devices == sorted(sorted(polled, key=lambda d: -LOSS[d])[:2])
    assert chosen_by_loss(2, 6, available=[True, False, True, False, True, False]) == ([2, 4], [0, 2, 4])


def test_candidates_are_drawn_by_their_samples() -> None:
    first = [chosen_by_loss(1, 2, seed)[1] for seed in range(1500)]
    # Device 5 has half of all samples. It misses the first draw with probability 1/2, and then the second one with
    # probability 4/9, since the other four have 400 of the 900 samples that are left.
    assert np.mean([5 not in polled for polled in first]) == pytest.approx(2 / 9, abs=0.04)


def test_nobody_is_polled_where_nobody_is_passed_over() -> None:
    assert chosen_by_loss(3, 3)[1] == []
    assert chosen_by_loss(3, 6, available=[True, True, False, False, False, True]) == ([0, 1, 5], [])


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
    assert not {*metrics.names_logged("poll")} & set(plain_values)


def test_edges_may_fail_while_devices_are_polled(tmp_path: Path) -> None:
    """The moments of a round count from the end of its poll, and an edge that has failed by then begins nothing."""
    path, up = tmp_path / "edges.csv", [f"1e9,{edge},1" for edge in range(3)]
    base = (*POLLING, "fleet.num_edges=3", f"world.edge_failure.trace={path}", "max_rounds=1")

    def record(*fail_s: float) -> RoundRecord:
        path.write_text("\n".join(["time_s,edge,up", *(f"{s:.17g},{m},0" for m, s in enumerate(fail_s)), *up, ""]))
        return Experiment(small_config(*base)).run_round()

    whole = record(1e8, 1e8, 1e8)
    poll_s, after_s = whole.poll.delay_s, whole.timeline.delay_s
    assert poll_s > 0
    assert whole.timeline.reached.all()
    late = record(*[poll_s + 0.999 * after_s] * 3).timeline
    assert late.delay_s == pytest.approx(0.999 * after_s)
    early = record(*[0.5 * poll_s] * 3)
    assert not early.timeline.reached.any()
    assert early.timeline.delay_s == early.timeline.energy_j.sum() == 0
    assert early.cost.delay_s == poll_s


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
