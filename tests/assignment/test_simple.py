"""The assigners by one rule each, by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray import FleetConfig
from hflray.cost import Workload, rate_bps
from hflray.fleet import Fleet
from hflray.physics.access import MeasuredAccess
from hflray.scheduling import build_scheduler, choose_devices
from hflray.scheduling.context import best_edges
from tests.assignment.rounds import WORK, assign, random_round
from tests.scheduling import toy

FLEET = random_round(0, 400, 4, 400)[0]
UNIT = 1e-18 * 1e6 / 0.1  # the gain of a link whose signal-to-noise ratio is 1 over 1 MHz: 1 Mbit/s
FOUR_MBIT = Workload(4e6)


def test_geographic_assigns_the_nearest_edge() -> None:
    distance = np.array([[3.0, 1.0, 2.0, 9.0], [5.0, 7.0, 5.0, 6.0], [8.0, 8.0, 8.0, 1.0]])
    small = dataclasses.replace(FLEET.take([0, 1, 2]), distance_m=distance)
    assert assign("geographic", small, [2, 0, 1]).tolist() == [3, 1, 0]  # the lower index wins a tie
    devices = np.arange(0, 400, 3)
    gap = np.linalg.norm(FLEET.position_m[devices, None] - FLEET.edge_position_m, axis=-1)
    np.testing.assert_array_equal(assign("geographic", FLEET, devices), gap.argmin(axis=1))


def test_random_is_uniform() -> None:
    edges = assign("random", FLEET, np.arange(400), 3)
    assert np.abs(np.bincount(edges, minlength=4) - 100).max() < 35  # 4 standard deviations


def test_best_gain_assigns_the_strongest_link() -> None:
    edges = assign("best_gain", FLEET, np.arange(400))
    np.testing.assert_array_equal(FLEET.gain[np.arange(400), edges], FLEET.gain.max(axis=1))
    # Because of shadowing, the strongest edge of many devices is not the nearest.
    assert 0.2 < np.mean(edges != FLEET.distance_m.argmin(axis=1)) < 0.8


def test_the_strongest_measured_link_is_the_fastest_whatever_bandwidths_were_drawn() -> None:
    rate_bps = 1e6 * np.array([[8.0, 20, 10], [20, 8, 10], [5, 6, 7], [20, 20, 9]])
    config = FleetConfig(num_devices=4, num_edges=3)
    for seed in range(4):
        fleet = Fleet.of(config, np.random.default_rng(seed), rate_bps=rate_bps, upload_w=np.ones(4))
        fleet = dataclasses.replace(fleet, access=MeasuredAccess())
        assert assign("best_gain", fleet, np.arange(4)).tolist() == [1, 0, 2, 0]
        assert assign("even_gain", fleet, np.arange(3)).tolist() == [1, 0, 2]
        scheduler = build_scheduler("best_channel", num_devices=4, num_scheduled=3)
        assert choose_devices(scheduler, toy.context(fleet)).tolist() == [0, 1, 3]
        assert best_edges(toy.context(fleet, edges_up=[False, True, True])).tolist() == [1, 2, 2, 1]


def test_even_gain_gives_each_edge_as_many_devices_or_one_more() -> None:
    for count in (1, 3, 4, 10, 30, 399):
        sizes = np.bincount(assign("even_gain", FLEET, np.arange(count)), minlength=4)
        assert sizes.max() - sizes.min() == (count % 4 > 0)


def test_even_gain_lets_the_strongest_links_choose_first() -> None:
    """Devices 0 and 2 are the strongest, and both want edge 1; the second of them and device 1 go where room is."""
    gain = np.array([[1.0, 9.0], [2.0, 3.0], [4.0, 8.0], [1.0, 2.0]]) * 1e-12
    fleet = dataclasses.replace(random_round(0, 4, 2, 4)[0], gain=gain)
    assert assign("even_gain", fleet, np.arange(4)).tolist() == [1, 0, 1, 0]
    # Of three devices one edge takes two: the one that is asked first.
    assert assign("even_gain", fleet, np.array([1, 2, 3])).tolist() == [1, 1, 0]


def link(seconds: float) -> float:
    """Return the gain of a link that sends 4 Mbit in this time over 1 MHz."""
    return (2.0 ** (4 / seconds) - 1) * UNIT


def balanced(fleet: Fleet, devices: list[int]) -> list[int]:
    return assign("load_balanced", fleet, devices, work=FOUR_MBIT).tolist()


def test_load_balanced_by_hand() -> None:
    # Seconds on edges 0 and 1. Longest first by the shorter one: device 2 (4 s), 0 (3 s), 1 (2 s), 3 (1 s).
    seconds = [[3, 5], [2, 4], [4, 4], [1, 3]]
    fleet = toy.fleet([[link(s) for s in row] for row in seconds])
    # 2 takes edge 0 (a tie: 4 and 4); 0 takes edge 1 (7 and 5); 1 takes edge 0 (6 and 9); 3 takes edge 0 (7 and 8).
    assert balanced(fleet, [0, 1, 2, 3]) == [1, 0, 0, 0]
    assert balanced(fleet, [3, 2]) == [1, 0]  # in the order of the list: 2 takes edge 0, then 3 edge 1 (5 and 3)
    assert balanced(fleet, [1]) == [0]


def test_load_balanced_gives_a_wider_edge_more_devices() -> None:
    gain = np.full((8, 2), 1e-15)  # so weak that the rate is gain · power / noise and does not grow with bandwidth
    assert sorted(np.bincount(balanced(toy.fleet(gain), list(range(8))))) == [4, 4]
    strong = dataclasses.replace(toy.fleet(np.full((8, 2), 1e-9)), edge_bandwidth_hz=np.array([3e6, 1e6]))
    count = np.bincount(balanced(strong, list(range(8))), minlength=2)
    assert count[0] > count[1] > 0


@pytest.mark.parametrize("seed", range(5))
def test_load_balanced_has_a_shorter_longest_airtime_than_the_best_links(seed: int) -> None:
    fleet, devices = random_round(seed, 40, 4, 40)
    rates = rate_bps(fleet.edge_bandwidth_hz, np.asarray(fleet.gain), fleet.power_w[:, None], fleet.noise_w_per_hz)
    longest = [
        np.bincount(edges, 4e6 / rates[devices, edges], minlength=4).max()
        for edges in (assign(name, fleet, devices, work=FOUR_MBIT) for name in ("load_balanced", "best_gain"))
    ]
    assert longest[0] < longest[1]


def test_home_keeps_each_device_at_its_edge() -> None:
    assert assign("home", FLEET, np.array([0, 99, 100, 250, 399])).tolist() == [0, 0, 1, 2, 3]
    assert np.bincount(assign("home", FLEET, np.arange(400), work=WORK)).tolist() == [100] * 4
