"""hflray.scheduling.oort: utility, exploration, staleness and pacer, each alone and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.oort import Oort
from tests.scheduling import toy

FLEET = toy.fleet(np.full((6, 1), 3e-11))
SEEN = {"last_utility": [9.0, 8.0, 1.0, 1.0, 1.0, 1.0], "last_round": [4] * 6, "last_delay_s": [1.0] * 6}


def oort(scheduled: int = 2, **options: float) -> Oort:
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


def test_a_restored_scheduler_goes_on() -> None:
    scheduler, other = oort(window=2), oort(window=2)
    choose_devices(scheduler, toy.context(FLEET, 5, **SEEN))
    scheduler.duration_share = 0.7
    other.load_state_dict(json.loads(json.dumps(scheduler.state_dict())))
    assert (other.sums, other.duration_share) == (scheduler.sums, 0.7)


@pytest.mark.parametrize("option", [{"exploration": 1.5}, {"window": 0}, {"penalty": -1.0}])
def test_options_that_mean_nothing_are_refused(option: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        oort(**option)
