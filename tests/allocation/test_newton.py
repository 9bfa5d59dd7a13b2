"""The Newton allocator, compared with results by hand and with CVXPY, and run on instances harder than any fleet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.allocation import allocate_round
from hflray.allocation.cvxpy import lower_bound
from hflray.allocation.cvxpy import solve_edge as solve_with_cvxpy
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError, InfeasibleError
from hflray.fleet import FleetConfig, sample_fleet
from tests.allocation.instances import ALPHA, BITS, edge, random_edge, solve_all

WORK = Workload(model_bits=BITS)
FLEET = sample_fleet(FleetConfig(), np.random.default_rng(0))
DEVICES = np.arange(0, 100, 2)
NEAREST = FLEET.distance_m[DEVICES].argmin(axis=1)


def check_optimality(problem, solution, inside, e):
    """Assert the optimality conditions of (27), written independently of the kernels."""
    b, f = solution.feasible.bandwidth_hz[inside], solution.feasible.cpu_hz[inside]
    pi, mu = np.exp(solution.unknowns.log_delay_price[inside]), np.exp(solution.unknowns.log_bandwidth_price[e])
    tau = solution.feasible.delay_s[e]
    assert b.sum() <= problem.bandwidth_hz * (1 + 1e-12)
    assert (f <= problem.max_cpu_hz).all()
    np.testing.assert_allclose(problem.upload_delay_s(b) + problem.cycles / f, tau, rtol=1e-8)
    np.testing.assert_allclose(f, np.minimum(problem.max_cpu_hz, np.cbrt(pi / ALPHA)), rtol=1e-8)
    np.testing.assert_allclose(pi.sum(), problem.delay_weight, rtol=1e-8)
    h = b * 1e-4  # central differences give s' without the kernel's formula
    slope = (problem.upload_delay_s(b + h) - problem.upload_delay_s(b - h)) / (2 * h)
    np.testing.assert_allclose(-(problem.power_w + pi) * slope, mu, rtol=1e-5)
    objective = solution.feasible.energy_j[e] + problem.delay_weight * tau
    np.testing.assert_allclose(objective, problem.objective(b, f), rtol=1e-12)
    assert solution.residual[e] <= 1e-8
    # The bound and the objective are sums of terms that cancel, so the last bits may differ.
    assert -1e-11 * objective <= objective - solution.feasible.bound_j[e] <= 1e-8 * objective


def check_batch(problems, **options):
    solution, offsets = solve_all(problems, **options)
    for e, problem in enumerate(problems):
        check_optimality(problem, solution, slice(offsets[e], offsets[e + 1]), e)
    return solution


def test_one_device_gets_everything_by_hand():
    # With Y = B, log2(1 + 1) = 1, so s = z/B = 1 s. f = (λ/α)^{1/3} = (0.2/2e-28)^{1/3} = 1e9 Hz; c = 1e9 takes 1 s.
    solution = check_batch([edge(BITS, 1e9, 0.1, 2e9, BITS, 0.2)])
    np.testing.assert_allclose(solution.feasible.bandwidth_hz, [BITS])
    np.testing.assert_allclose(solution.feasible.cpu_hz, [1e9])
    np.testing.assert_allclose(solution.feasible.delay_s, [2.0])
    np.testing.assert_allclose(solution.feasible.energy_j, [0.1 + 1e-28 * 1e9 * 1e18])
    # λ = 2e4 would need 4.6e10 Hz, so the cap binds.
    solution = check_batch([edge(BITS, 1e9, 0.1, 2e9, BITS, 2e4)])
    np.testing.assert_allclose(solution.feasible.cpu_hz, [2e9])
    np.testing.assert_allclose(solution.feasible.delay_s, [1.5])


def test_equal_devices_share_equally():
    solution = check_batch([edge(np.full(8, 1e7), 2e8, 0.05, 2e9, 1e6, 1.0)])
    np.testing.assert_allclose(solution.feasible.bandwidth_hz, 1e6 / 8, rtol=1e-9)
    np.testing.assert_allclose(np.exp(solution.unknowns.log_delay_price), 1 / 8, rtol=1e-9)
    np.testing.assert_allclose(solution.feasible.cpu_hz, np.cbrt(1 / 8 / ALPHA), rtol=1e-9)


def test_a_device_with_hardly_any_gain_gets_most_bandwidth():
    solution = check_batch([edge([1e7, 1e7, 1e2], 2e8, 0.05, 2e9, 1e6, 1.0)])
    # Even unlimited bandwidth does not make it faster than s(∞) = z ln 2 / Y.
    assert solution.feasible.delay_s[0] >= BITS * np.log(2) / 1e2
    assert solution.feasible.bandwidth_hz[2] > 0.7e6


@pytest.mark.parametrize("weight", [1e6, 1e10])
def test_every_cpu_is_at_its_cap_if_delay_costs_much(weight):
    rng = np.random.default_rng(3)
    cap = rng.uniform(1e9, 2e9, 20)
    solution = check_batch([edge(10 ** rng.uniform(5, 9, 20), 2e8, 0.05, cap, 1e6, weight)])
    np.testing.assert_array_equal(solution.feasible.cpu_hz, cap)


def test_2000_hard_instances_are_solved():
    rng = np.random.default_rng(5)
    check_batch([random_edge(rng) for _ in range(2000)])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_100000_hard_instances_are_solved():
    for chunk in range(50):
        rng = np.random.default_rng([7, chunk])
        check_batch([random_edge(rng) for _ in range(2000)])


def test_agrees_with_cvxpy():
    rng = np.random.default_rng(11)
    problems = [random_edge(rng, max_devices=30) for _ in range(150)]
    # The conic solver is reliable in this range. The certificate covers the harder instances.
    problems = [
        p for p in problems if 1e-2 < p.delay_weight < 1e2 and p.max_cpu_hz.min() > 1e8 and p.snr_hz.min() > 1e3
    ]
    assert len(problems) >= 15
    solution, offsets = solve_all(problems)
    for e, problem in enumerate(problems):
        reference = problem.objective(*solve_with_cvxpy(problem))
        inside, feasible = slice(offsets[e], offsets[e + 1]), solution.feasible
        objective = problem.objective(feasible.bandwidth_hz[inside], feasible.cpu_hz[inside])
        assert objective <= reference * (1 + 1e-9)
        assert objective >= reference * (1 - 1e-5)


def test_the_bound_is_a_bound_for_any_prices():
    rng = np.random.default_rng(2)
    problem = random_edge(rng, max_devices=20)
    solution, _ = solve_all([problem])
    optimum = problem.objective(solution.feasible.bandwidth_hz, solution.feasible.cpu_hz)
    assert lower_bound(problem, np.exp(solution.unknowns.log_delay_price)) == pytest.approx(optimum, rel=1e-8)
    for _ in range(10):
        assert lower_bound(problem, rng.exponential(size=len(problem.members))) <= optimum


factors = st.floats(1e-3, 1e3)


@pytest.mark.parametrize(
    "scaled, longer", [(("power_w", "capacitance", "delay_weight"), False), (("model_bits", "cycles"), True)]
)
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), factor=factors)
def test_scaling_the_prices_of_energy_or_the_work_scales_the_optimum(scaled, longer, seed, factor):
    """p, α and λ times k change the unit of energy alone; z and the cycles times k also take k times the delay."""
    problem = random_edge(np.random.default_rng(seed), max_devices=15)
    (one, _), (two, _) = (
        solve_all([p])
        for p in (problem, dataclasses.replace(problem, **{name: getattr(problem, name) * factor for name in scaled}))
    )
    np.testing.assert_allclose(two.feasible.bandwidth_hz, one.feasible.bandwidth_hz, rtol=1e-5)
    np.testing.assert_allclose(two.feasible.cpu_hz, one.feasible.cpu_hz, rtol=1e-5)
    np.testing.assert_allclose(two.feasible.delay_s, (factor if longer else 1) * one.feasible.delay_s, rtol=1e-7)
    np.testing.assert_allclose(two.feasible.energy_j, factor * one.feasible.energy_j, rtol=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), factor=factors)
def test_a_higher_weight_on_delay_is_no_slower_and_takes_no_less_energy(seed, factor):
    problem = random_edge(np.random.default_rng(seed), max_devices=15)
    (one, _), (two, _) = (
        solve_all([problem]),
        solve_all([dataclasses.replace(problem, delay_weight=problem.delay_weight * factor)]),
    )
    low, high = (one, two) if factor >= 1 else (two, one)
    assert high.feasible.delay_s[0] <= low.feasible.delay_s[0] * (1 + 1e-9)
    assert high.feasible.energy_j[0] >= low.feasible.energy_j[0] * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_order_of_the_devices_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    problem = random_edge(rng, max_devices=30)
    p = rng.permutation(len(problem.members))
    shuffled = edge(
        problem.snr_hz[p],
        problem.cycles[p],
        problem.power_w[p],
        problem.max_cpu_hz[p],
        problem.bandwidth_hz,
        problem.delay_weight,
    )
    (one, _), (two, _) = solve_all([problem]), solve_all([shuffled])
    np.testing.assert_allclose(one.feasible.bandwidth_hz[p], two.feasible.bandwidth_hz, rtol=1e-6)
    np.testing.assert_allclose(one.feasible.energy_j, two.feasible.energy_j, rtol=1e-8)


def test_threads_do_not_change_a_bit():
    rng = np.random.default_rng(1)
    problems = [random_edge(rng, max_devices=40) for _ in range(200)]
    one, two = solve_all(problems, threads=1)[0], solve_all(problems, threads=3)[0]
    for first, second in zip(arrays_of(one), arrays_of(two), strict=True):
        np.testing.assert_array_equal(first, second)


def arrays_of(solution):
    """Return every array of a solution."""
    return [*solution.unknowns, *solution.feasible, solution.residual, solution.evaluations]


def test_a_similar_problems_solution_is_a_good_start():
    rng = np.random.default_rng(1)
    problems = [random_edge(rng, max_devices=40) for _ in range(300)]
    cold, _ = solve_all(problems)
    nearby = [dataclasses.replace(p, delay_weight=p.delay_weight * 1.05) for p in problems]
    warm = check_batch(nearby, warm=cold)
    cold_again, _ = solve_all(nearby)
    assert warm.evaluations.mean() < 0.6 * cold_again.evaluations.mean()


def test_a_round_is_certified():
    allocation = allocate_round(FLEET, WORK, DEVICES, NEAREST)
    cost = round_cost(FLEET, WORK, DEVICES, NEAREST, allocation)
    assert allocation.kkt_residual <= 1e-8
    assert abs(allocation.duality_gap) <= 1e-8
    hop = cost.edge_delay_s - WORK.edge_iterations * allocation.deadline_s
    np.testing.assert_array_less(0, hop)
    np.testing.assert_allclose(np.bincount(NEAREST, allocation.delay_price), 1.0)
    np.testing.assert_array_equal(allocation.edge_price, 1.0)
    reference = round_cost(FLEET, WORK, DEVICES, NEAREST, allocate_round(FLEET, WORK, DEVICES, NEAREST, method="cvxpy"))
    # The comparison is per edge, because the round's objective is not the sum of the edges'.
    objectives, references = (c.edge_energy_j + WORK.delay_weight * c.edge_delay_s for c in (cost, reference))
    np.testing.assert_allclose(objectives, references, rtol=1e-5)
    assert (objectives <= references * (1 + 1e-9)).all()


def test_edges_without_devices_get_no_bandwidth_price_or_deadline():
    all_at_3 = np.full(len(DEVICES), 3)
    allocation = allocate_round(FLEET, WORK, DEVICES, all_at_3)
    np.testing.assert_array_equal(np.flatnonzero(allocation.deadline_s), [3])
    np.testing.assert_allclose(allocation.bandwidth_hz.sum(), FLEET.edge_bandwidth_hz[3])


@pytest.mark.parametrize("method", ["newton", "cvxpy", "equal", "fixed_cpu"])
@pytest.mark.parametrize("name", ["gain", "power_w", "samples", "cycles_per_sample", "max_cpu_hz", "edge_bandwidth_hz"])
def test_a_bad_value_is_named_with_its_index(name, method):
    for value in (np.nan, 0.0, -1.0, np.inf):
        array = getattr(FLEET, name).copy()
        array[(6, NEAREST[3]) if name == "gain" else 4] = value
        element = f"gain\\[6, {NEAREST[3]}\\]" if name == "gain" else f"{name}\\[4\\]"
        with pytest.raises(ConfigError, match=element):
            allocate_round(dataclasses.replace(FLEET, **{name: array}), WORK, DEVICES, NEAREST, method=method)


def test_an_edge_on_which_the_method_does_not_converge_is_solved_by_the_allocation_of_any_physics():
    """Two microcontrollers compute for a minute and send for a microsecond. No deadline is below that of computing."""
    fleet = dataclasses.replace(
        sample_fleet(FleetConfig(num_devices=2, num_edges=1), np.random.default_rng(0)),
        gain=np.array([[3.7e-8], [3.7e-4]]), power_w=np.array([3.5e-4, 1.6]), max_cpu_hz=np.array([1.8e6, 1.8e6]),
        cycles_per_sample=np.array([2.2e4, 8.2e4]), samples=np.array([1000, 1000]), capacitance=8.5e-29,
        edge_bandwidth_hz=np.array([5.7e8]),
    )  # fmt: skip
    work = Workload(
        device_bits=1700, edge_bits=1700, local_iterations=1, edge_iterations=1, delay_weight=1.3, cloud_hop=False
    )
    found = allocate_round(fleet, work, [0, 1], [0, 0])
    assert found.kkt_residual is None  # a certificate of Newton's method
    assert round_cost(fleet, work, [0, 1], [0, 0], found).objective == pytest.approx(1.3 * 8.2e7 / 1.8e6, rel=1e-6)


def test_no_finite_deadline_is_infeasible_and_names_edge_and_device():
    gain = FLEET.gain.copy()
    gain[6] = 1e-310
    with pytest.raises(InfeasibleError, match=f"edge {NEAREST[3]}.*device 6"):
        allocate_round(dataclasses.replace(FLEET, gain=gain), WORK, DEVICES, NEAREST)


def test_a_bad_schedule_is_an_error():
    for devices, edges in (([3, 3], [0, 0]), ([0, 1], [0, 5])):  # tests/test_cost.py has all
        with pytest.raises(ConfigError, match=r"devices|assignment\[1\]"):
            allocate_round(FLEET, WORK, devices, edges)
