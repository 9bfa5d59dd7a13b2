"""hflray.calibration.fit: exact constants, bounds at 0, what rows cannot tell, and intervals that hold their word."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import nnls

from hflray.calibration.fit import fit, medians
from tests.calibration.logs import CONSTANTS, log_of


def one(y, x, **options):
    return fit(np.array(y, float), np.array(x, float), np.zeros(len(y), int), 1, **options)


def test_the_designs_example_gives_its_constants() -> None:
    fitted = one([1.5, 2.5, 4.5], [[0, 10, 1], [0, 20, 1], [0, 40, 1]])
    assert fitted.values[0] == pytest.approx([0, 0.1, 0.5])
    assert fitted.apart.tolist() == [[False, True, True]]


def test_medians_are_those_of_each_groups_finite_values() -> None:
    values, group = np.array([3.0, 1.0, np.nan, 2.0, 8.0]), np.array([0, 0, 0, 0, 2])
    assert np.array_equal(medians(values, group, 4), [2.0, np.nan, 8.0, np.nan], equal_nan=True)


def test_groups_are_solved_as_one_by_one_and_as_scipy_does_with_the_same_weights() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 20, 900)
    x = np.column_stack([rng.integers(1, 500, 900), rng.integers(1, 20, 900), np.ones(900)]).astype(float)
    y = (x @ [0.01, 0.0, 0.3]) * rng.lognormal(0, 0.05, 900)
    every = fit(y, x, group, 21)
    assert every.rows[20] == 0
    assert not every.values[20].any()
    assert (every.values[:20, 1] == 0).any()  # the bound holds some at 0
    for n in range(20):
        rows = group == n
        alone = fit(y[rows], x[rows], np.zeros(rows.sum(), int), 1)
        assert every.values[n] == pytest.approx(alone.values[0], rel=1e-4, abs=1e-7)
        expected = x[rows] @ alone.values[0]
        weight = np.sqrt(np.minimum(1, 1.345 * alone.spread[0] / np.abs(y[rows] / expected - 1))) / expected
        scipys, _ = nnls(x[rows] * weight[:, None], y[rows] * weight)
        assert alone.values[0] == pytest.approx(scipys, rel=1e-3, abs=1e-6)


def test_outliers_hardly_move_constants() -> None:
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.integers(100, 900, 100), np.ones(100)]).astype(float)
    y = x @ [0.01, 2.0] * rng.lognormal(0, 0.02, 100)
    y[::12] *= 20.0
    y[1::30] /= 1000.0
    assert one(y, x).values[0] == pytest.approx([0.01, 2.0], rel=0.05)


def test_collinear_columns_are_one_constant_and_not_told_apart() -> None:
    steps = np.arange(5.0, 25.0)
    fitted = one(1 + 0.2 * steps, np.column_stack([20 * steps, steps, np.ones(20)]))
    assert fitted.apart.tolist() == [[True, False, True]]
    assert fitted.values[0] == pytest.approx([0.01, 0, 1])
    constant = one([2.0, 2.1, 2.2], [[100, 5, 1]] * 3)
    assert constant.apart.tolist() == [[True, False, False]]
    assert np.isnan(one([2.0], [[100, 5, 1]]).low).all()


def _inside(name: str, draws: int) -> np.ndarray:
    """Return for each draw and constant of a log whether it is inside its interval."""
    frames = [log_of(name, seed) for seed in range(draws)]
    group = np.repeat(np.arange(draws), len(frames[0]))
    inside = []
    for y, names, true in (
        ("train_s", ["samples", "steps"], CONSTANTS[name][:3]),
        ("send_s", ["bytes"], CONSTANTS[name][3:]),
    ):
        x = np.concatenate([np.column_stack([frame[names], np.ones(len(frame))]) for frame in frames])
        fitted = fit(np.concatenate([frame[y] for frame in frames]), x, group, draws)
        inside.append((fitted.low <= true) & (true <= fitted.high))
    return np.concatenate(inside, axis=1)


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_are_inside_their_intervals(name) -> None:
    assert _inside(name, 20).mean() >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTANTS)
def test_intervals_hold_all_constants_of_a_fit_in_90_to_99_percent_of_200_draws(name) -> None:
    inside = _inside(name, 200)
    print(name, inside.mean(axis=0), inside[:, :3].all(axis=1).mean(), inside[:, 3:].all(axis=1).mean(),
          inside.all(axis=1).mean())  # fmt: skip
    for together in (inside[:, :3], inside[:, 3:]):
        assert 0.90 <= together.all(axis=1).mean() <= 0.99
    assert (inside.mean(axis=0) >= 0.90).all()
