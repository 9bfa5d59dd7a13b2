"""One shared deadline, compared with a general-purpose solver of the whole problem, and certified."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.cost import Workload, cloud_hop, round_cost
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet


def random_round(seed, scheduled=30, edges=4):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_edges=edges), rng)
    devices = np.sort(rng.choice(100, scheduled, replace=False))
    return fleet, devices, fleet.gain[devices].argmax(axis=1)


def optimum_by_cvxpy(fleet, work, devices, edges):
    """Return the optimum of (17) for one assignment, solved as one convex programme."""
    hop_delay, hop_energy = cloud_hop(fleet, work.model_bits) if work.cloud_hop else np.zeros((2, fleet.num_edges))
    n, q = len(devices), work.edge_iterations
    share, cpu, deadline = cp.Variable(n), cp.Variable(n), cp.Variable()
    upload = cp.Variable(n)
    size = np.bincount(edges, minlength=fleet.num_edges)[edges]
    fair = fleet.edge_bandwidth_hz[edges] / size
    snr = fleet.gain[devices, edges] * fleet.power_w[devices] / fleet.noise_w_per_hz / fair
    rate = -cp.rel_entr(share, share + snr) / np.log(2)  # in units of the fair share, Hz
    cycles = work.local_iterations * fleet.cycles_per_sample[devices] * fleet.samples[devices]
    energy = (fleet.capacitance / 2 * cycles * 1e18) @ cp.square(cpu) + fleet.power_w[devices] @ upload
    constraints = [
        cp.multiply(work.model_bits / fair, cp.inv_pos(upload)) <= rate,
        q * (upload + cp.multiply(cycles / 1e9, cp.inv_pos(cpu))) + hop_delay[edges] <= deadline,
        cpu <= fleet.max_cpu_hz[devices] / 1e9,
        deadline >= hop_delay.max(),
    ] + [cp.sum(share[edges == m]) <= (edges == m).sum() for m in np.unique(edges)]
    problem = cp.Problem(cp.Minimize(q * energy + work.delay_weight * deadline), constraints)
    problem.solve(solver="CLARABEL")
    return problem.value + hop_energy.sum()


@pytest.mark.parametrize(
    "weight, hop",
    [
        (0.1, True),
        (10.0, False),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((0.1, False), (1.0, True), (1.0, False), (10.0, True))
        ),
    ],
)
def test_the_joint_allocation_is_the_optimum_of_the_whole_problem(weight, hop):
    work = Workload(model_bits=448 * 8192, delay_weight=weight, cloud_hop=hop)
    for seed in range(2):
        fleet, devices, edges = random_round(seed)
        cost = round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges, coupling="joint"))
        reference = optimum_by_cvxpy(fleet, work, devices, edges)
        assert cost.objective == pytest.approx(reference, rel=2e-5)
        separate = round_cost(fleet, work, devices, edges, allocate_round(fleet, work, devices, edges))
        assert cost.objective < 0.999 * separate.objective


def test_certificate_prices_and_deadlines_are_consistent():
    rng = np.random.default_rng(9)
    for seed in range(60):
        fleet, devices, _ = random_round(seed, scheduled=int(rng.integers(1, 60)), edges=int(rng.integers(1, 9)))
        edges = fleet.distance_m[devices].argmin(axis=1)
        work = Workload(model_bits=448 * 8192, delay_weight=10 ** rng.uniform(-4, 4), cloud_hop=bool(seed % 2))
        allocation = allocate_round(fleet, work, devices, edges, coupling="joint")
        cost = round_cost(fleet, work, devices, edges, allocation)
        assert allocation.kkt_residual <= 1e-8
        assert -1e-10 <= allocation.duality_gap <= 1e-8
        busy = cost.edge_devices > 0
        np.testing.assert_allclose(
            cost.edge_delay_s[busy], cost.delay_s, rtol=1e-8
        )  # all edges finish at the same time
        np.testing.assert_allclose(allocation.edge_price.sum(), work.delay_weight, rtol=1e-9)
        np.testing.assert_allclose(
            np.bincount(edges, allocation.delay_price, minlength=fleet.num_edges), allocation.edge_price, rtol=1e-7
        )
        np.testing.assert_array_less(
            np.bincount(edges, allocation.bandwidth_hz, minlength=fleet.num_edges),
            fleet.edge_bandwidth_hz * (1 + 1e-12),
        )


def test_an_empty_edges_slow_hop_is_the_deadline():
    fleet, devices, _ = random_round(4)
    import dataclasses

    cloud_gain = fleet.cloud_gain.copy()
    cloud_gain[2] = 1e-16
    fleet = dataclasses.replace(fleet, cloud_gain=cloud_gain)
    edges = np.where(np.arange(len(devices)) % 2, 0, 3)
    work = Workload(model_bits=448 * 8192)
    slow = cloud_hop(fleet, work.model_bits)[0][2]
    allocation = allocate_round(fleet, work, devices, edges, coupling="joint")
    cost = round_cost(fleet, work, devices, edges, allocation)
    assert cost.delay_s == pytest.approx(slow)
    np.testing.assert_allclose(cost.edge_delay_s[[0, 3]], slow, rtol=1e-8)
    assert allocation.edge_price.sum() < work.delay_weight  # the empty edge carries the rest of λ
    assert cost.objective == pytest.approx(optimum_by_cvxpy(fleet, work, devices, edges), rel=2e-5)
    assert -1e-10 <= allocation.duality_gap <= 1e-8


def test_cvxpy_refuses_the_joint_coupling():
    fleet, devices, edges = random_round(0)
    with pytest.raises(ConfigError, match="newton"):
        allocate_round(fleet, Workload(model_bits=1e6), devices, edges, method="cvxpy", coupling="joint")
