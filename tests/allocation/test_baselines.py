"""The baselines: the equal split by hand, and bandwidths at f_max that are the optimum of a general solver."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize

from hflray.allocation import EdgeProblem, allocate_round, edge_problems
from hflray.config import FleetConfig
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import sample_fleet

FLEET = sample_fleet(FleetConfig(num_devices=6, num_edges=3), np.random.default_rng(2))
WORK = Workload(4e6)
DEVICES, EDGES = np.array([5, 0, 3, 2]), np.array([2, 0, 2, 2])  # edge 1 is empty


def test_bandwidth_is_split_equally_and_cpus_are_at_their_largest_frequency() -> None:
    found = allocate_round(FLEET, WORK, DEVICES, EDGES, method="equal")
    third, whole = FLEET.edge_bandwidth_hz[2] / 3, FLEET.edge_bandwidth_hz[0]
    assert found.bandwidth_hz.tolist() == [third, whole, third, third]
    assert found.cpu_hz.tolist() == FLEET.max_cpu_hz[DEVICES].tolist()


def test_one_deadline_of_all_edges_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"allocation\.coupling: 'joint'"):
        allocate_round(FLEET, WORK, DEVICES, EDGES, method="equal", coupling="joint")


def general_solver(problem: EdgeProblem, start_hz: np.ndarray) -> float:
    """Return the lowest upload energy plus λ times the delay at f_max that SLSQP finds from `start_hz`, J."""
    compute_s, total_hz = problem.cycles / problem.max_cpu_hz, problem.bandwidth_hz

    def upload_s(point: np.ndarray) -> np.ndarray:
        return problem.upload_delay_s(np.exp(point[:-1]) * total_hz)

    def objective(point: np.ndarray) -> float:
        return float((problem.power_w * upload_s(point)).sum() + problem.delay_weight * point[-1])

    limits = [
        {"type": "ineq", "fun": lambda point: point[-1] - upload_s(point) - compute_s},
        {"type": "ineq", "fun": lambda point: 1 - np.exp(point[:-1]).sum()},
    ]
    begin = np.log(start_hz / total_hz)
    begin = np.append(begin, (problem.upload_delay_s(start_hz) + compute_s).max())
    result = minimize(objective, begin, constraints=limits, method="SLSQP", options={"maxiter": 500, "ftol": 1e-14})
    shares = np.exp(result.x[:-1])
    used_hz = shares / max(1.0, shares.sum()) * total_hz
    return float(
        (problem.power_w * problem.upload_delay_s(used_hz)).sum()
        + problem.delay_weight * (problem.upload_delay_s(used_hz) + compute_s).max()
    )


def test_no_general_solver_finds_a_lower_objective() -> None:
    rng = np.random.default_rng(5)
    better = []
    for _ in range(25):
        count = int(rng.integers(1, 8))
        fleet = sample_fleet(FleetConfig(num_devices=count, num_edges=1), rng)
        work = Workload(448 * 8192.0, delay_weight=10 ** rng.uniform(-2, 2))
        devices, edges = np.arange(count), np.zeros(count, dtype=int)
        found = allocate_round(fleet, work, devices, edges, method="fixed_cpu")
        assert found.cpu_hz.tolist() == fleet.max_cpu_hz.tolist()
        (problem,) = edge_problems(fleet, work, devices, edges)
        ours = float(
            (problem.power_w * problem.upload_delay_s(found.bandwidth_hz)).sum()
            + problem.delay_weight * problem.delay_s(found.bandwidth_hz, found.cpu_hz)
        )
        equal_hz = np.full(count, problem.bandwidth_hz / count)
        theirs = min(general_solver(problem, start_hz) for start_hz in (equal_hz, found.bandwidth_hz))
        better.append(ours / theirs - 1)
    assert max(better) < 1e-7
    assert min(better) > -0.01  # the other solver stops early now and then


@pytest.mark.parametrize("coupling", ["per_edge", "joint"])
def test_a_round_costs_at_least_as_much_as_the_optimum(coupling: str) -> None:
    fleet = sample_fleet(FleetConfig(num_devices=20, num_edges=3), np.random.default_rng(1))
    work, devices, edges = Workload(4e6), np.arange(20), np.arange(20) % 3
    cost = {}
    for method in ("newton", "fixed_cpu", *(("equal",) if coupling == "per_edge" else ())):
        allocation = allocate_round(fleet, work, devices, edges, method=method, coupling=coupling)
        cost[method] = round_cost(fleet, work, devices, edges, allocation)
    objectives = [bill.objective for bill in cost.values()]
    assert objectives == sorted(set(objectives))
    assert cost["fixed_cpu"].compute_energy_j.sum() > cost["newton"].compute_energy_j.sum()
