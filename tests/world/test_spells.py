"""hflray.world.spells: stationary rates, durations, and independence of when one looks."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.spells import Spells


@pytest.mark.parametrize("clock_s", [0.0, 13.0, 900.0])
def test_the_share_that_is_up_is_stationary(clock_s: float) -> None:
    spells = Spells(1, "test", 100_000, up_s=30.0, down_s=10.0)
    spells.advance(clock_s)
    assert spells.up.mean() == pytest.approx(0.75, abs=0.006)
    left_s = spells.end_s - clock_s
    assert left_s.min() > 0
    assert left_s[spells.up].mean() == pytest.approx(30, rel=0.02)
    assert left_s[~spells.up].mean() == pytest.approx(10, rel=0.03)


def test_the_state_at_a_moment_does_not_depend_on_when_one_looks() -> None:
    once, often = (Spells(1, "test", 200, 30.0, 10.0) for _ in range(2))
    once.advance(500.0)
    for clock_s in np.linspace(0, 500, 77):
        often.advance(float(clock_s))
    np.testing.assert_array_equal(once.end_s, often.end_s)
    np.testing.assert_array_equal(once.up, often.up)
    assert once.number.max() > 20


def test_a_state_goes_on() -> None:
    first, second = (Spells(1, "test", 50, 30.0, 10.0) for _ in range(2))
    first.advance(100.0)
    second.load_state_dict(first.state_dict())
    first.advance(400.0)
    second.advance(400.0)
    np.testing.assert_array_equal(first.end_s, second.end_s)
