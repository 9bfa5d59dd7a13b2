"""hflray.scheduling.oort: utility, exploration, staleness and pacer, each alone and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.oort import Oort
from tests.scheduling import toy

FLEET = toy.fleet(np.full((6, 1), 3e-11))
SEEN = {"last_utility": [9.0, 8.0, 1.0, 1.0, 1.0, 1.0], "last_round": [4] * 6, "last_delay_s": [1.0] * 6}


def oort(scheduled: int = 2, **options: float | str) -> Oort:
    scheduler = build_scheduler("oort", num_devices=6, num_scheduled=scheduled, **options)
    assert isinstance(scheduler, Oort)
    return scheduler


def test_high_losses_are_exploited() -> None:
    assert choose_devices(oort(), toy.context(FLEET, 5, **SEEN)).tolist() == [0, 1]


def test_the_utility_by_hand() -> None:
    context = toy.context(FLEET, 5, **SEEN | {"last_delay_s": [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]})
    utility = oort().utility(context, np.arange(6))
    stale = np.sqrt(0.1 * np.log(5) / 4)
    # The 95th percentile of the losses is 8.75, and 0.999 to 9 is scaled to 0 to 1. T is the 30th percentile of the
    # delays, 1 s; the first device takes 4 s, and (1/4)² is its penalty.
    scaled = (np.array([8.75, 8, 1, 1, 1, 1]) - 0.999) / 8.001
    assert utility == pytest.approx((scaled + stale) * [1 / 16, 1, 1, 1, 1, 1])


def test_a_slow_device_of_high_loss_is_not_exploited() -> None:
    seen = SEEN | {"last_utility": [9.0, 5.0, 1.0, 1.0, 1.0, 1.0], "last_delay_s": [4.0, 1.0, 1.0, 1.0, 1.0, 1.0]}
    greedy = {"exploration": 0.0, "least_exploration": 0.0}
    context = toy.context(FLEET, 5, **seen)
    assert choose_devices(oort(1, **greedy), context).tolist() == [1]
    assert choose_devices(oort(1, **greedy, penalty=0.0), context).tolist() == [0]
    assert choose_devices(oort(1, **greedy, duration_share=1.0), context).tolist() == [0]


def test_a_stale_device_returns() -> None:
    seen = {"last_utility": [1.0] * 6, "last_round": [90, 90, 90, 90, 1, 90], "last_delay_s": [1.0] * 6}
    utility = oort().utility(toy.context(FLEET, 100, **seen), np.arange(6))
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
    seen = {
        "last_utility": [9.0] * 5 + [np.nan],
        "last_round": [4] * 5 + [0],
        "last_delay_s": [1.0] * 5 + [np.nan],
    }
    options = {"exploration": 1.0, "decay": 0.5, "least_exploration": 0.0}
    early = choose_devices(oort(**options), toy.context(FLEET, 2, **seen))
    late = choose_devices(oort(**options), toy.context(FLEET, 9, **seen))
    assert 5 in early
    assert 5 not in late


def test_the_pacer_allows_longer_delays_when_utility_falls() -> None:
    scheduler = oort(window=2, step=0.1)
    shares = []
    for index, utility in enumerate((9.0, 9.0, 9.0, 1.0, 1.0, 9.0, 9.0), start=1):
        seen = {"last_utility": [utility] * 6, "last_round": [max(1, index - 1)] * 6, "last_delay_s": [1.0] * 6}
        choose_devices(scheduler, toy.context(FLEET, index, **seen))
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
        variant: {int(choose_devices(oort(1, variant=variant, **greedy), toy.context(FLEET, 5, seed, **seen))[0])
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
        choose_devices(scheduler, toy.context(FLEET, index, **seen))
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
    choose_devices(scheduler, toy.context(FLEET, 2, **first))
    assert sorted(scheduler.exploited) == [0, 1, 2, 3]
    second = {"last_utility": [4.0, 6, 100, 3, 900, 900], "last_round": [2, 2, 1, 1, 2, 2], "last_delay_s": [1.0] * 6}
    choose_devices(scheduler, toy.context(FLEET, 3, **second))
    assert scheduler.sums == [0.0, 5.0]
    other = oort(6, variant="code", window=2)
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert other.exploited == scheduler.exploited
    assert "exploited" not in oort().state_dict()
