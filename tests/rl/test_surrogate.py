"""hflray.rl.surrogate: the curve by hand, its fit, and its error on runs that it was not fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.rl.surrogate import DIGITS, Curve, Observed, Progress, fit

COUNTS = np.array([[10, 0], [0, 10], [30, 0], [0, 10]])


def test_the_progress_of_two_rounds_by_hand() -> None:
    one = Progress.start(4).after(np.array([0, 1]), COUNTS)
    assert (one.balance, one.coverage) == (pytest.approx(1.0), 20 / 60)
    two = one.after(np.array([0, 2]), COUNTS)  # one class only
    assert (two.balance, two.coverage) == (pytest.approx(1.0), 50 / 60)
    assert one.participated.tolist() == [True, True, False, False]


def test_the_curve_by_hand() -> None:
    curve = Curve(best=0.9, pace=2.0, shape=1.0, breadth=0.5)
    progress = Progress(2.0, np.ones(4, dtype=bool), 0.25)
    assert curve.accuracy(progress) == pytest.approx(0.9 * 0.5 * (1 - np.exp(-1)))
    assert curve.accuracy(Progress.start(4)) == 0


def test_a_fit_finds_the_curve_that_made_the_runs() -> None:
    curve, rng = Curve(0.92, 4.0, 0.8, 0.2), np.random.default_rng(0)
    runs = []
    for devices in (1, 2, 3):
        schedules = [rng.choice(4, devices, replace=False) for _ in range(30)]
        run = Observed.of(schedules, np.zeros(30), COUNTS)
        runs.append(Observed(run.balance, run.coverage, curve._of(run.balance, run.coverage)))
    found = fit(runs)
    assert found.error(runs) < 1e-4
    assert found.breadth == pytest.approx(0.2, abs=0.01)
    assert curve.error(runs) == 0
    assert DIGITS.error(runs) > 1e-3
