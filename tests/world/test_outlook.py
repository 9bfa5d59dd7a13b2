"""hflray.world.outlook: when a round is empty."""

from __future__ import annotations

import dataclasses

import numpy as np

from hflray.fleet import FleetConfig, sample_fleet
from hflray.world import World
from tests.conftest import small_config


def test_a_round_is_empty_without_devices_or_edges() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(0))
    outlook = World(small_config(), fleet).outlook(1, fleet)
    assert not outlook.is_empty
    assert dataclasses.replace(outlook, available=np.zeros(fleet.num_devices, dtype=bool)).is_empty
    assert dataclasses.replace(outlook, edges_up=np.zeros(fleet.num_edges, dtype=bool)).is_empty
