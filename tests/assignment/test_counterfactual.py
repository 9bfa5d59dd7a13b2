"""The table of single transfers agrees with solving each transfer from scratch."""

from __future__ import annotations

import numpy as np
import pytest
from hflray.assignment.counterfactual import transfer_objectives

from hflray.assignment.objective import all_costs, round_problem
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet


@pytest.mark.parametrize("scheduled, edges", [(12, 3), (1, 2), (3, 1), (5, 7)])
def test_every_entry_is_the_objective_after_the_transfer(scheduled, edges):
    rng = np.random.default_rng(scheduled)
    fleet = sample_fleet(FleetConfig(num_devices=20, num_edges=edges), rng)
    problem, _ = round_problem(fleet, Workload(model_bits=448 * 8192), np.arange(scheduled))
    assignment = rng.integers(edges, size=scheduled)
    objective, table = transfer_objectives(problem, assignment)
    assert table.shape == (scheduled, edges)
    energy, delay = np.empty((2, edges))
    assert objective == pytest.approx(all_costs(problem, assignment, energy, delay), rel=1e-8)
    for h in range(scheduled):
        for m in range(edges):
            moved = assignment.copy()
            moved[h] = m
            assert table[h, m] == pytest.approx(all_costs(problem, moved, energy, delay), rel=1e-4)
