"""The lower bound is valid, brute force finds the best assignment, and gaps are ordered correctly."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from hflray import FleetConfig, allocate_round, round_cost, sample_fleet
from hflray.assignment.bounds import PairTerms, bound_at, gap, lower_bound
from hflray.assignment.objective import round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from hflray.physics import Download
from hflray.physics.access import Broadcast, Ofdma, Tdma, Unicast
from tests.assignment import optimum
from tests.assignment.brute import brute_force
from tests.assignment.rounds import WORK, assign, objective, random_round


def small_round(seed, devices=8, edges=3):
    return random_round(seed, devices, edges, devices)


@pytest.mark.parametrize("hop", [True, False])
def test_brute_force_is_the_minimum(hop):
    work = Workload(model_bits=448 * 8192, cloud_hop=hop)
    fleet, devices = small_round(1, devices=5)
    best, value = brute_force(fleet, work, devices)
    objectives = {a: objective(fleet, devices, a, work) for a in itertools.product(range(3), repeat=5)}
    assert value == pytest.approx(min(objectives.values()), rel=1e-8)
    assert objectives[tuple(best)] == pytest.approx(value, rel=1e-8)


def test_the_bound_is_below_the_optimum_of_small_instances():
    rng = np.random.default_rng(0)
    tightness = []
    for seed in range(25):
        fleet, devices = small_round(seed)
        work = Workload(model_bits=448 * 8192, delay_weight=10 ** rng.uniform(-2, 2), cloud_hop=bool(seed % 2))
        best, value = brute_force(fleet, work, devices)
        # The bound is also below the joint allocation of the best assignment, which costs less.
        shared = objective(fleet, devices, best, work, "joint")
        bound = lower_bound(fleet, work, devices)
        assert bound <= shared * (1 + 1e-9) <= value * (1 + 2e-9)
        tightness.append(bound / shared)
    assert np.mean(tightness) > 0.9  # the bound is tight enough to be useful


def test_any_prices_give_a_bound():
    work = WORK
    rng = np.random.default_rng(4)
    fleet, devices = small_round(3)
    best, _ = brute_force(fleet, work, devices)
    shared = objective(fleet, devices, best, work, "joint")
    problem, _ = round_problem(fleet, work, devices)
    for width in (0.0, 0.1):
        for _ in range(100):
            point = np.concatenate([rng.normal(size=9), rng.normal(-12, 3, size=3)])
            assert bound_at(problem, point, width)[0] <= shared


def test_a_better_assignment_has_a_smaller_gap():
    fleet, devices = random_round(1)
    good_edges, bad_edges = (assign(name, fleet, devices) for name in ("local_search", "random"))
    good, bad = (gap(fleet, WORK, devices, edges) for edges in (good_edges, bad_edges))
    shared = gap(fleet, WORK, devices, good_edges, coupling="joint")
    assert 0 <= shared.relative < good.relative < 0.25 < bad.relative < 1
    assert shared.relative < 0.12
    assert good.relative == pytest.approx((good.objective - good.bound) / good.objective)
    # The ascent gives about the same bound from any start.
    assert lower_bound(fleet, WORK, devices) == pytest.approx(good.bound, rel=0.02)


def test_bad_input_is_named():
    fleet, devices = small_round(0)
    with pytest.raises(ConfigError, match="assignment\\[2\\]"):
        gap(fleet, Workload(model_bits=1e6), devices[:3], [0, 0, 3])


@pytest.mark.parametrize("num_edges", [1, 2, 3])
def test_no_assigner_beats_the_best_of_all_assignments(num_edges):
    rows = dict(zip(optimum.ASSIGNERS, optimum.gaps(4, num_scheduled=5, num_edges=num_edges), strict=True))
    assert min(row.min() for row in rows.values()) > -optimum.FOUND
    if num_edges == 1:
        assert max(row.max() for row in rows.values()) < optimum.FOUND
    else:
        assert rows["local_search"].mean() < rows["geographic"].mean()


def test_for_any_physics_it_is_the_bound_of_the_kernels() -> None:
    fleet = sample_fleet(FleetConfig(num_devices=12, num_edges=3), np.random.default_rng(1))
    problem, devices = round_problem(fleet, WORK, np.arange(8))
    rng = np.random.default_rng(2)
    point = np.concatenate([rng.normal(size=9), rng.normal(-13, 1, size=3)])
    shares = point + np.concatenate([np.zeros(9), np.log(fleet.edge_bandwidth_hz)])  # prices of shares, not of hertz
    for width in (0.0, 0.05):
        value, gradient = bound_at(problem, point, width)
        general_value, general_gradient = PairTerms(fleet, WORK, devices).bound_at(shares, width)
        assert general_value == pytest.approx(value, rel=1e-9)
        np.testing.assert_allclose(general_gradient, gradient, rtol=1e-5, atol=1e-6 * np.abs(gradient).max())


@pytest.mark.parametrize(
    "parts",
    [{"access": Tdma()}, {"access": Ofdma(6)}, {"access": Tdma(), "download": Unicast()}, {"download": Broadcast()}],
)
def test_it_is_below_all_assignments_of_any_physics(parts) -> None:
    fleet = replace(sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(3)), **parts)
    work, devices = Workload(model_bits=3e6, edge_iterations=3, download_bits=3e6), np.arange(4)
    best = min(
        round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges, coupling="joint")).objective
        for edges in itertools.product(range(2), repeat=4)
    )
    assert 0.4 * best < lower_bound(fleet, work, devices) <= best * (1 + 1e-9)


def test_of_a_download_of_the_users_own_nothing_is_known() -> None:
    class Free(Download):
        def receive(self, link, node, bits):
            return 0.0 * link.gain, 0.0 * link.gain

    fleet = replace(sample_fleet(FleetConfig(num_devices=4, num_edges=2), np.random.default_rng(3)), download=Free())
    with pytest.raises(ConfigError, match=r"cost\.download: the lower bound knows the downloads of hflray alone"):
        lower_bound(fleet, WORK, np.arange(4))
