"""hflray.scheduling.rows: the columns by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.scheduling.ranking import nominal_iteration
from hflray.scheduling.rows import device_rows
from tests.scheduling import toy

FLEET = toy.fleet([[1e-12, 5e-12], [4e-12, 1e-13], [1e-13, 1e-13]], samples=[50.0, 100.0, 150.0])


def test_the_columns_by_hand() -> None:
    counts = np.array([[50, 0], [25, 75], [0, 150]])
    context = toy.context(FLEET, 5, class_counts=counts, participation=[4, 1, 0], last_round=[4, 2, 0])
    rows = device_rows(context, 2, 0.25)
    delay_s, energy_j = nominal_iteration(context, 2)
    assert rows.dtype == np.float32
    assert rows[:, 0] == pytest.approx((np.log(delay_s) - np.log(delay_s).mean()) / 3, abs=1e-6)
    assert rows[:, 1] == pytest.approx((np.log(energy_j) - np.log(energy_j).mean()) / 3, abs=1e-6)
    assert rows[:, 2] == pytest.approx([-0.5, 0.0, 0.5])
    assert rows[:, 3] == pytest.approx([1.0, 0.25, 0.0])
    assert rows[:, 4] == pytest.approx([0.0, 0.2, 0.4])
    assert rows[:, 5] == pytest.approx([0.25] * 3)
    assert rows[:, 6:] == pytest.approx(np.array([[1.0, 0.0], [0.25, 0.75], [0.0, 1.0]]))


def test_a_long_wait_counts_as_ten_rounds() -> None:
    rows = device_rows(toy.context(FLEET, 40, last_round=[0, 30, 39]), 2, 0.0)
    assert rows[:, 4] == pytest.approx([1.0, 0.9, 0.0])
