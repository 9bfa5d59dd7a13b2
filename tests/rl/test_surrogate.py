"""hflray.rl.surrogate: the curve by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.rl.surrogate import Curve, Progress

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
