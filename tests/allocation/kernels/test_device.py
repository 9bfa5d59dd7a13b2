"""The formulas of one device, and an edge on which Newton's method does not converge."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.allocation import newton as newton_module
from hflray.allocation.kernels.bundles import Devices, EdgeSetting, Guess, Solved
from hflray.allocation.kernels.device import invert_slope, log_1p, slack
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.lanes import scratch_for
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet
from tests.allocation.instances import ALPHA, BITS, random_edge


def test_an_edge_that_is_not_solved_says_so_and_keeps_its_unknowns():
    """The tolerance is one that nothing reaches."""
    problem = random_edge(np.random.default_rng(8), max_devices=25)
    devices = Devices(problem.snr_hz, problem.cycles, problem.power_w, problem.max_cpu_hz)
    setting = EdgeSetting(problem.bandwidth_hz, problem.delay_weight, BITS, ALPHA)
    x, y = np.full((2, len(problem.members)), 7.0)
    solved = solve_edge(devices, setting, x, y, Guess(0.0, 0.0, False), -1.0, scratch_for(len(x)))
    assert solved.residual == math.inf
    assert (x == 7.0).all()


def test_a_round_in_one_call_leaves_a_failure_to_the_steps_in_numpy(monkeypatch):
    fleet = sample_fleet(FleetConfig(num_devices=8, num_edges=2), np.random.default_rng(0))
    round_ = (fleet, Workload(model_bits=BITS), np.arange(6), np.arange(6) % 2)
    expected = allocate_round(*round_)
    failed = Solved(0.0, 0.0, math.inf, 1, 0.0)
    monkeypatch.setattr(newton_module, "solve_edge", lambda *arguments: failed)
    monkeypatch.setattr(newton_module, "allocate_in_one_call", newton_module.allocate_in_one_call.py_func)
    assert newton_module.allocate_small(*round_) is None
    np.testing.assert_allclose(allocate_round(*round_).bandwidth_hz, expected.bandwidth_hz, rtol=1e-9)


def test_series_and_logarithms_agree():
    for ratio in (1e-12, 1e-6, 9.99e-3, 1.01e-2, 0.4999, 0.5001, 1.0, 1e6):
        lg = log_1p(ratio)
        assert lg == pytest.approx(math.log1p(ratio), rel=1e-15)
        # The exact value is Σ (-1)^k X^k (k-1)/k where the series converges fast, and the difference elsewhere.
        exact = (
            math.fsum((-1) ** k * ratio**k * (k - 1) / k for k in range(2, 80))
            if ratio < 0.4
            else lg - ratio / (1 + ratio)
        )
        assert slack(ratio, lg, ratio / (1 + ratio)) == pytest.approx(exact, rel=1e-12)


def test_invert_slope_is_the_inverse_of_the_slope():
    for target in np.linspace(-60, 80, 57):
        ratio = math.exp(invert_slope(target))
        lg = math.log1p(ratio)
        d = slack(ratio, lg, ratio / (1 + ratio))
        assert 2 * math.log(ratio) + math.log(d / lg**2) == pytest.approx(target, abs=1e-12)
