"""hflray.world.draws: moments, and independence of the order and shape of requests."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.draws import Draws

COUNT = 400_000


def test_moments_are_those_of_the_laws() -> None:
    draws, members = Draws(3, "test"), np.arange(COUNT)
    uniform, normal, exponential = (law(7, members) for law in (draws.uniform, draws.normal, draws.exponential))
    assert 0 < uniform.min() < uniform.max() < 1
    assert uniform.mean() == pytest.approx(0.5, abs=0.002)
    assert uniform.var() == pytest.approx(1 / 12, rel=0.01)
    assert normal.mean() == pytest.approx(0, abs=0.006)
    assert normal.var() == pytest.approx(1, rel=0.01)
    assert (normal**4).mean() == pytest.approx(3, rel=0.03)
    assert exponential.mean() == pytest.approx(1, rel=0.01)
    assert exponential.var() == pytest.approx(1, rel=0.03)


@pytest.mark.parametrize("axis", ["round", "device", "stream", "seed", "edge"])
def test_neighbours_are_not_correlated(axis: str) -> None:
    members = np.arange(COUNT)
    first = Draws(3, "test").normal(7, members, 2)
    second = {
        "round": lambda: Draws(3, "test").normal(8, members, 2),
        "device": lambda: Draws(3, "test").normal(7, members + 1, 2),
        "stream": lambda: Draws(3, "other").normal(7, members, 2),
        "seed": lambda: Draws(4, "test").normal(7, members, 2),
        "edge": lambda: Draws(3, "test").normal(7, members, 3),
    }[axis]()
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.008


def test_a_number_depends_on_its_indices_alone() -> None:
    draws = Draws(3, "test")
    table = draws.bits(5, np.arange(4)[:, None], np.arange(6))
    assert table.shape == (4, 6)
    assert len(np.unique(table)) == 24
    assert draws.bits(5, 2, 3) == table[2, 3]
    assert draws.bits(5, 2, 3).shape == ()
    np.testing.assert_array_equal(Draws(3, "test").bits(5, np.array([3, 1]), np.array([0, 2])), table[[3, 1], [0, 2]])


def test_known_numbers_stay() -> None:
    """Committed results were drawn with these numbers."""
    draws = Draws(3, "test")
    assert draws.bits(5, np.arange(2), 3).tolist() == [5199441860094234945, 17702510883797604374]
    assert draws.uniform(5, 1, 3) == 0.9596550379330826
    assert draws.bits().item() == 1736852203030749815
