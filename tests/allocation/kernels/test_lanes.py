"""exp and ln agree with the library's in extended precision, and compile to vector code."""

from __future__ import annotations

import math
import platform

import numba
import numpy as np
import pytest

from hflray.allocation import allocate_round
from hflray.allocation import newton as newton_module
from hflray.allocation.kernels import lanes
from hflray.allocation.kernels.bundles import Devices, EdgeSetting, Guess, Solved
from hflray.allocation.kernels.device import LN2, invert_slope, log_1p, slack
from hflray.allocation.kernels.device import slack as branching_slack
from hflray.allocation.kernels.edge import solve_edge
from hflray.allocation.kernels.lanes import BLOCK, LANES, columns, copy_unknowns, fill, scratch_for
from hflray.cost import Workload
from hflray.fleet import FleetConfig, sample_fleet
from tests.allocation.instances import ALPHA, BITS, random_edge

EPS = np.finfo(np.float64).eps


def apply(function, values):
    """Return the function's value at each of `values`, computed in compiled code."""

    @numba.njit
    def run(values):
        results = np.empty_like(values)
        for i in range(len(values)):
            results[i] = function(values[i])
        return results

    return run(np.asarray(values, dtype=np.float64))


@pytest.mark.parametrize(
    ("kernel", "reference", "values"),
    [
        (lanes.exp, np.exp, np.linspace(-699, 699, 20_001)),
        (lanes.exp, np.exp, np.linspace(-1e-3, 1e-3, 2001)),
        (lanes.log, np.log, 10.0 ** np.linspace(-300, 300, 20_000)),
        (lanes.log, np.log, 1.0 + np.linspace(-1e-3, 1e-3, 2000)),
        (lanes.log1p, np.log1p, 10.0 ** np.linspace(-18, 18, 20_001)),
    ],
)
def test_the_error_is_at_most_1_4_units_in_the_last_place(kernel, reference, values):
    exact = reference(values.astype(np.longdouble))
    error = np.abs((apply(kernel, values) - exact) / exact)
    assert float(error.max()) <= 1.4 * EPS


def test_nan_gives_nan():
    assert np.isnan(apply(lanes.exp, [np.nan])).all()
    assert np.isnan(apply(lanes.log, [np.nan, np.inf])).all()
    assert apply(lanes.exp, [0.0, -1e9, 1e9]).tolist() == pytest.approx([1.0, math.exp(-700), math.exp(700)])
    assert apply(lanes.log, [1.0]).tolist() == [0.0]


def test_slack_without_a_branch_agrees_with_slack():
    for ratio in (1e-9, 9.9e-3, 1.01e-2, 0.5, 3.0, 1e9):
        lg, q = math.log1p(ratio), ratio / (1 + ratio)
        assert lanes.branchless_slack(ratio, lg, q) == pytest.approx(branching_slack(ratio, lg, q), rel=1e-14)


@pytest.mark.parametrize("n", [1, 7, 8, 9, 23])
def test_devices_go_into_blocks_and_come_back(n):
    rng = np.random.default_rng(n)
    values = rng.uniform(1, 2, (6, n))
    work = scratch_for(n).reshape(-1)
    fill(Devices(*values[:4]), values[4], values[5], work)
    whole = work[: columns(n) // LANES * BLOCK].reshape(-1, BLOCK)[:, : 6 * LANES].reshape(-1, 6, LANES)
    laid_out = np.concatenate(list(whole), axis=1)
    np.testing.assert_array_equal(laid_out[:, :n], values)
    np.testing.assert_array_equal(laid_out[:, n:], np.repeat(values[:, :1], columns(n) - n, axis=1))
    x, y = np.empty((2, n))
    copy_unknowns(work, x, y)
    np.testing.assert_array_equal((x, y), values[4:])


def test_the_cost_of_an_edge_agrees_with_the_cost_by_hand():
    # With Y/b = 1, s = z ln 2 / (b ln 2) = z / b. The bandwidths 1 and 1 are scaled to 2 and 2.
    n, bits, alpha = 2, 6.0, 0.5
    work = scratch_for(n).reshape(-1)
    devices = Devices(np.full(n, 2.0), np.array([4.0, 8.0]), np.array([1.0, 3.0]), np.array([9.0, 2.0]))
    fill(devices, *np.zeros((2, n)), work)
    work[lanes.B : lanes.B + LANES], work[lanes.F : lanes.F + LANES] = 1.0, 4.0
    energy, delay = lanes.iteration_cost(n, work, EdgeSetting(4.0, 1.0, bits, alpha), 1.0)
    assert (energy, delay) == pytest.approx((1 * 3 + 0.25 * 4 * 16 + 3 * 3 + 0.25 * 8 * 4, max(3 + 1, 3 + 4)))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="reads x86 assembly")
def test_an_evaluation_is_vector_code():
    """The blocks exist for vector code; this test fails if a change brings a branch or a call back."""

    @numba.njit
    def once(block, price):
        lanes.evaluate(block, price, 0.0, LN2, math.log(LN2), 1.0, 0.0)

    once(np.ones(BLOCK), 0.0)
    code = next(iter(once.inspect_asm().values()))
    assert code.count("divpd") >= 5
    assert code.count("divsd") == 0


# The formulas of one device, and an edge on which Newton's method does not converge.


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
