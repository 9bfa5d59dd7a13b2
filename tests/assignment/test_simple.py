"""Random and best-gain assignment."""

from __future__ import annotations

import numpy as np

from hflray.assignment import build_assigner
from hflray.cost import Workload
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
