"""Local search on the joint objective: it never accepts a worsening and ends where no single move is better."""

from __future__ import annotations

import itertools
import time
from functools import partial

import numpy as np
import pytest

from hflray.assignment import build_assigner, local_search
from hflray.assignment.joint_search import JointSearch
from hflray.assignment.objective import round_problem
from hflray.cost import Workload
from hflray.errors import ConfigError
from tests.assignment.rounds import WORK, assign, neighbours, objective, random_round

joint_objective = partial(objective, coupling="joint")


@pytest.mark.parametrize("num_edges", [2, 3])
@pytest.mark.parametrize("hop", [True, False])
def test_small_instances_come_close_to_the_best_of_all_assignments(num_edges, hop):
    work = Workload(model_bits=448 * 8192, cloud_hop=hop)
    excess, gain = [], []
    for seed in range(20):
        fleet, devices = random_round(seed, num_devices=4, num_edges=num_edges, scheduled=4)
        values = {
            edges: joint_objective(fleet, devices, np.array(edges), work)
            for edges in itertools.product(range(num_edges), repeat=4)
        }
        result = assign("local_search", fleet, devices, coupling="joint", work=work)
        value = values[tuple(result.tolist())]
        excess.append(value / min(values.values()) - 1)
        gain.append(value / values[tuple(assign("local_search", fleet, devices, work=work).tolist())])
        moves = (values[tuple(moved.tolist())] for _, moved in neighbours(result, num_edges))
        assert value <= min(moves) * (1 + 3e-6)
    assert np.mean(excess) < 0.01
    assert np.mean(gain) <= 1.0


def test_the_joint_search_beats_a_per_edge_search_with_joint_allocation():
    ratios = []
    for seed in range(8):
        fleet, devices = random_round(seed)
        values = [
            joint_objective(fleet, devices, assign("local_search", fleet, devices, coupling=c))
            for c in ("joint", "per_edge")
        ]
        ratios.append(values[0] / values[1])
    assert np.mean(ratios) < 0.995


def test_the_result_is_the_objective_and_a_second_search_changes_nothing():
    fleet, devices = random_round(4, scheduled=25)
    problem, _ = round_problem(fleet, WORK, devices)
    search = JointSearch(problem, True)
    start = fleet.strongest_edges(devices)[:, 0]
    value = search.run(start)
    assert value < joint_objective(fleet, devices, start)
    final = search.assignment.copy()
    assert value == pytest.approx(joint_objective(fleet, devices, final), rel=1e-9)
    assert search.run(final) == pytest.approx(value, rel=1e-9)
    np.testing.assert_array_equal(search.assignment, final)


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
    assert values[0] == pytest.approx(joint_objective(fleet, devices, start), rel=1e-9)
    assert values[2] < values[1] < values[0]
    assert all(count <= stop + 3 for count, stop in zip(checks, (0, 10, 40), strict=True))


def test_candidates_are_refused_and_the_message_names_the_fix(monkeypatch):
    fleet, devices = random_round(0)
    with pytest.raises(
        ConfigError, match=r"allocation\.coupling.*joint.*3 candidate.*coupling: per_edge.*candidates: 0"
    ):
        assign("local_search", fleet, devices, coupling="joint", candidates=3)
    monkeypatch.setattr(local_search, "LARGE", 50 * 5)
    with pytest.raises(ConfigError, match="50 devices at 5 edges; candidates are used from 250 links on"):
        assign("local_search", fleet, devices, coupling="joint")
    assign("local_search", fleet, devices, coupling="joint", candidates=0)
    with pytest.raises(ConfigError, match="coupling: got 'both'; accepted: per_edge, joint"):
        build_assigner("local_search", coupling="both")
