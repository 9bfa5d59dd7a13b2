"""Local search on the joint objective: it never accepts a worsening and ends where no single move is better."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.assignment import build_assigner, joint_search, local_search
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.objective import round_problem
from hflray.cost import Workload, round_cost
from hflray.errors import ConfigError
from hflray.fleet import FleetConfig, sample_fleet

WORK = Workload(model_bits=448 * 8192)


def random_round(seed, num_devices=100, num_edges=5, scheduled=50):
    rng = np.random.default_rng(seed)
    fleet = sample_fleet(FleetConfig(num_devices=num_devices, num_edges=num_edges), rng)
    return fleet, np.sort(rng.choice(num_devices, scheduled, replace=False))


def objective(fleet, devices, assignment, work=WORK):
    """Return the joint objective by the exact solver, J."""
    allocation = allocate_round(fleet, work, devices, assignment, coupling="joint")
    return round_cost(fleet, work, devices, assignment, allocation).objective


def assign(fleet, devices, seed=0, work=WORK, **options):
    return build_assigner("local_search", **options).assign(fleet, work, devices, np.random.default_rng(seed))


def neighbours(assignment, num_edges):
    """Yield the assignment after each transfer and each exchange."""
    for h in range(len(assignment)):
        for m in range(num_edges):
            if m != assignment[h]:
                moved = assignment.copy()
                moved[h] = m
                yield moved
        for b in range(h):
            if assignment[b] != assignment[h]:
                moved = assignment.copy()
                moved[[h, b]] = assignment[[b, h]]
                yield moved


@pytest.mark.parametrize("num_edges", [2, 3])
@pytest.mark.parametrize("hop", [True, False])
def test_small_instances_come_close_to_the_best_of_all_assignments(num_edges, hop):
    work = Workload(model_bits=448 * 8192, cloud_hop=hop)
    excess, gain = [], []
    for seed in range(20):
        fleet, devices = random_round(seed, num_devices=4, num_edges=num_edges, scheduled=4)
        values = {
            edges: objective(fleet, devices, np.array(edges), work)
            for edges in itertools.product(range(num_edges), repeat=4)
        }
        result = assign(fleet, devices, coupling="joint", work=work)
        value = values[tuple(result.tolist())]
        excess.append(value / min(values.values()) - 1)
        gain.append(value / values[tuple(assign(fleet, devices, work=work).tolist())])
        moves = (values[tuple(moved.tolist())] for moved in neighbours(result, num_edges))
        assert value <= min(moves) * (1 + 3e-6)
    assert np.mean(excess) < 0.01
    assert np.mean(gain) <= 1.0


@pytest.mark.parametrize("sizes", [(40, 4, 16), (20, 8, 6)])
def test_the_search_ends_at_a_local_optimum(sizes):
    for seed in range(3):
        fleet, devices = random_round(seed, *sizes)
        for start in ("best_gain", "random"):
            result = assign(fleet, devices, seed, coupling="joint", start=start)
            value = objective(fleet, devices, result)
            assert value <= min(objective(fleet, devices, moved) for moved in neighbours(result, sizes[1])) * (1 + 3e-6)


def test_the_joint_search_beats_a_per_edge_search_with_joint_allocation():
    ratios = []
    for seed in range(8):
        fleet, devices = random_round(seed)
        values = [objective(fleet, devices, assign(fleet, devices, coupling=c)) for c in ("joint", "per_edge")]
        ratios.append(values[0] / values[1])
    assert np.mean(ratios) < 0.995


def test_every_step_lowers_the_objective_and_the_result_is_the_objective(monkeypatch):
    fleet, devices = random_round(4, scheduled=25)
    problem, _ = round_problem(fleet, WORK, devices)
    search = JointSearch(problem, True)
    steps = [objective(fleet, devices, fleet.strongest_edges(devices)[:, 0])]
    original = joint_search.make_first

    def recorded(*arguments):
        result = original(*arguments)
        if result < np.inf:
            steps.append(objective(fleet, devices, search.assignment))
            assert result == pytest.approx(steps[-1], rel=1e-9)
        return result

    monkeypatch.setattr(joint_search, "make_first", recorded)
    value = search.run(fleet.strongest_edges(devices)[:, 0])
    assert len(steps) > 5
    assert all(after < before * (1 - 0.9e-6) for before, after in itertools.pairwise(steps))
    assert value == pytest.approx(steps[-1], rel=1e-9)
    final = search.assignment.copy()
    assert search.run(final) == pytest.approx(value, rel=1e-9)
    np.testing.assert_array_equal(search.assignment, final)


def test_restarts_never_hurt_and_follow_the_generator():
    fleet, devices = random_round(2, scheduled=20)
    values = []
    for restarts in (0, 3):
        one, two = (assign(fleet, devices, 1, coupling="joint", restarts=restarts) for _ in range(2))
        np.testing.assert_array_equal(one, two)
        values.append(objective(fleet, devices, one))
    assert values[1] <= values[0] * (1 + 1e-9)


def test_a_budget_ends_the_search_early(monkeypatch):
    fleet, devices = random_round(2, num_devices=200, scheduled=100, num_edges=10)
    start = fleet.strongest_edges(devices)[:, 0]
    problem, _ = round_problem(fleet, WORK, devices)
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(ticks)))  # each check of the clock takes a second
    values, checks = [], []
    for stop in (0.0, 10.0, 40.0):
        ticks = itertools.count()
        values.append(JointSearch(problem, True).run(start, stop, at_once=20))
        checks.append(next(ticks))
    assert values[0] == pytest.approx(objective(fleet, devices, start), rel=1e-9)
    assert values[2] < values[1] < values[0]
    assert all(count <= stop + 3 for count, stop in zip(checks, (0, 10, 40), strict=True))


@pytest.mark.parametrize("num_edges, scheduled", [(1, 10), (5, 1), (1, 1), (2, 2), (6, 3)])
def test_one_edge_or_few_devices_are_assigned(num_edges, scheduled):
    fleet, devices = random_round(2, num_edges=num_edges, scheduled=scheduled)
    for options in ({}, {"restarts": 2}, {"budget_ms": 1}, {"exchanges": False}):
        edges = assign(fleet, devices, coupling="joint", **options)
        assert edges.shape == (scheduled,)
        assert ((edges >= 0) & (edges < num_edges)).all()


def test_candidates_are_refused_and_the_message_names_the_fix(monkeypatch):
    fleet, devices = random_round(0)
    with pytest.raises(
        ConfigError, match=r"allocation\.coupling.*joint.*3 candidate.*coupling: per_edge.*candidates: 0"
    ):
        assign(fleet, devices, coupling="joint", candidates=3)
    monkeypatch.setattr(local_search, "LARGE", 50 * 5)
    with pytest.raises(ConfigError, match="50 devices at 5 edges; candidates are used from 250 links on"):
        assign(fleet, devices, coupling="joint")
    assign(fleet, devices, coupling="joint", candidates=0)
    with pytest.raises(ConfigError, match="coupling: got 'both'; accepted: per_edge, joint"):
        build_assigner("local_search", coupling="both")
