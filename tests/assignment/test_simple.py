"""Random and best-gain assignment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner, check_any_edges
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=1e6)
FLEET = sample_fleet(FleetConfig(num_devices=400, num_edges=4), np.random.default_rng(0))


def test_random_is_uniform_and_follows_the_generator():
    assigner = build_assigner("random")
    edges = assigner.assign(FLEET, WORK, np.arange(400), np.random.default_rng(3))
    assert edges.shape == (400,)
    assert np.abs(np.bincount(edges, minlength=4) - 100).max() < 35  # 4 standard deviations
    np.testing.assert_array_equal(edges, assigner.assign(FLEET, WORK, np.arange(400), np.random.default_rng(3)))


def test_best_gain_assigns_the_strongest_link():
    devices = np.array([7, 3, 200])
    edges = build_assigner("best_gain").assign(FLEET, WORK, devices, np.random.default_rng(0))
    for device, edge in zip(devices, edges, strict=True):
        assert FLEET.gain[device, edge] == FLEET.gain[device].max()
    # Because of shadowing, the strongest edge of many devices is not the nearest.
    all_edges = build_assigner("best_gain").assign(FLEET, WORK, np.arange(400), np.random.default_rng(0))
    assert 0.2 < np.mean(all_edges != FLEET.distance_m.argmin(axis=1)) < 0.8


def test_even_gain_gives_each_edge_as_many_devices_or_one_more():
    for count in (1, 3, 4, 10, 30, 399):
        edges = build_assigner("even_gain").assign(FLEET, WORK, np.arange(count), np.random.default_rng(0))
        sizes = np.bincount(edges, minlength=4)
        assert sizes.max() - sizes.min() == (count % 4 > 0)


def test_even_gain_lets_the_strongest_links_choose_first():
    """Devices 0 and 2 are the strongest, and both want edge 1; the second of them and device 1 go where room is."""
    gain = np.array([[1.0, 9.0], [2.0, 3.0], [4.0, 8.0], [1.0, 2.0]]) * 1e-12
    fleet = dataclasses.replace(
        sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(0)), gain=gain
    )
    assign = build_assigner("even_gain").assign
    assert assign(fleet, WORK, np.arange(4), np.random.default_rng(0)).tolist() == [1, 0, 1, 0]
    # Of three devices one edge takes two: the one that is asked first.
    assert assign(fleet, WORK, np.array([1, 2, 3]), np.random.default_rng(0)).tolist() == [1, 1, 0]


def test_home_keeps_each_device_at_its_edge():
    assign = build_assigner("home").assign
    assert assign(FLEET, WORK, np.array([0, 99, 100, 250, 399]), np.random.default_rng(0)).tolist() == [0, 0, 1, 2, 3]
    assert np.bincount(assign(FLEET, WORK, np.arange(400), np.random.default_rng(0))).tolist() == [100] * 4
    with pytest.raises(ConfigError, match="400"):
        assign(FLEET, WORK, np.array([400]), np.random.default_rng(0))
    with pytest.raises(ConfigError, match="'home' keeps each device at one edge"):
        check_any_edges(build_assigner("home"))


def test_home_is_billed_as_every_assignment_is():
    devices = np.array([3, 120, 130, 310])
    edges = build_assigner("home").assign(FLEET, WORK, devices, np.random.default_rng(0))
    cost = round_cost(FLEET, WORK, devices, edges, allocate_round(FLEET, WORK, devices, edges))
    given = np.array([0, 1, 1, 3])
    same = round_cost(FLEET, WORK, devices, given, allocate_round(FLEET, WORK, devices, given))
    assert (cost.energy_j, cost.delay_s) == (same.energy_j, same.delay_s)
