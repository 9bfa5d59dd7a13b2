"""hflray.aggregation.krum: by hand, the values of Flower, and models so close that expanded squares would cancel."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.krum import Krum
from hflray.errors import ConfigError
from tests.aggregation.places import FLOWER, combined


def test_by_hand() -> None:
    """With n = 5 and f = 1, two neighbours count: 1 has 1 + 1, 0 has 1 + 4, 2 has 1 + 4, and 9 and −7 lie far away."""
    models = np.array([[9.0], [2.0], [0.0], [-7.0], [1.0]])
    np.testing.assert_allclose(Krum(1).scores(models), [49 + 64, 1 + 4, 1 + 4, 49 + 64, 1 + 1])
    np.testing.assert_array_equal(combined(Krum(1), models), [1])
    np.testing.assert_array_equal(combined(Krum(0), [[1.0], [0.0], [2.0]]), [1])


def test_the_lower_index_wins_ties() -> None:
    models = np.array([[5.0], [2.0], [1.0], [5.0], [2.0]])
    np.testing.assert_allclose(Krum(1).scores(models), [9, 1, 2, 9, 1])
    np.testing.assert_array_equal(combined(Krum(1), models), [2])


@pytest.mark.parametrize("case", FLOWER)
def test_it_is_flowers(case) -> None:
    models = np.array(case["models"])
    np.testing.assert_array_equal(Krum(case["f"]).of_models(models, np.ones(len(models))), case["krum"])


def test_distances_are_taken_by_differences() -> None:
    """At a distance of 1e8 from 0, expanded squares would lose all of these differences."""
    near = np.array([[0.0], [1.0], [2.0], [9.0], [-7.0]])
    np.testing.assert_array_equal(Krum(1).scores(near + 1e8), Krum(1).scores(near))


@pytest.mark.parametrize("f, least", [(0, 3), (1, 5), (3, 9)])
def test_how_many_models_it_needs(f: int, least: int) -> None:
    assert Krum(f).least == least


@pytest.mark.parametrize("f", [-1, 0.5, None])
def test_another_f_is_refused(f) -> None:
    with pytest.raises(
        ConfigError, match=r"aggregation\.edge\.options\.f: got .*; accepted: a whole number of at least 0"
    ):
        Krum(f)
