"""hflray.assignment.load_balanced: airtimes, order and ties by hand, and a lower peak than the best gain's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.assignment import build_assigner
from hflray.config import FleetConfig
from hflray.cost import Workload, rate_bps
from hflray.errors import ConfigError
from hflray.fleet import Fleet, sample_fleet
from tests.scheduling import toy

ONE = 1e-18 * 1e6 / 0.1  # the gain of a link whose signal-to-noise ratio is 1 over 1 MHz: 1 Mbit/s
WORK = Workload(4e6)
NOBODY = np.random.default_rng(0)


def link(seconds: float) -> float:
    """Return the gain of a link that sends 4 Mbit in this time over 1 MHz."""
    return (2.0 ** (4 / seconds) - 1) * ONE


def edges(fleet: Fleet, devices: list[int]) -> list[int]:
    return build_assigner("load_balanced").assign(fleet, WORK, devices, NOBODY).tolist()


def test_the_edges_by_hand() -> None:
    # Seconds on edges 0 and 1. Longest first by the shorter one: device 2 (4 s), 0 (3 s), 1 (2 s), 3 (1 s).
    seconds = [[3, 5], [2, 4], [4, 4], [1, 3]]
    fleet = toy.fleet([[link(s) for s in row] for row in seconds])
    # 2 takes edge 0 (a tie: 4 and 4); 0 takes edge 1 (7 and 5); 1 takes edge 0 (6 and 9); 3 takes edge 0 (7 and 8).
    assert edges(fleet, [0, 1, 2, 3]) == [1, 0, 0, 0]
    assert edges(fleet, [3, 2]) == [1, 0]  # in the order of the list: 2 takes edge 0, then 3 edge 1 (5 and 3)
    assert edges(fleet, [1]) == [0]


def test_a_wider_edge_takes_more_devices() -> None:
    gain = np.full((8, 2), 1e-15)  # so weak that the rate is gain · power / noise and does not grow with bandwidth
    assert sorted(np.bincount(edges(toy.fleet(gain), list(range(8))))) == [4, 4]
    strong = dataclasses.replace(toy.fleet(np.full((8, 2), 1e-9)), edge_bandwidth_hz=np.array([3e6, 1e6]))
    count = np.bincount(edges(strong, list(range(8))), minlength=2)
    assert count[0] > count[1] > 0


@pytest.mark.parametrize("seed", range(5))
def test_the_longest_airtime_is_shorter_than_with_the_best_links(seed: int) -> None:
    fleet = sample_fleet(FleetConfig(num_devices=40, num_edges=4), np.random.default_rng(seed))
    devices = np.arange(40)
    rates = rate_bps(fleet.edge_bandwidth_hz, np.asarray(fleet.gain), fleet.power_w[:, None], fleet.noise_w_per_hz)

    def longest(name: str) -> float:
        assignment = build_assigner(name).assign(fleet, WORK, devices, NOBODY)
        return float(np.bincount(assignment, 4e6 / rates[devices, assignment], minlength=4).max())

    assert longest("load_balanced") < longest("best_gain")


def test_devices_outside_the_fleet_are_refused() -> None:
    with pytest.raises(ConfigError, match="device 9"):
        edges(toy.fleet(np.ones((4, 2))), [9])
