"""hflray.aggregation.geometric_median: points whose geometric median is known."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.geometric_median import GeometricMedian
from tests.aggregation.places import combined


def median(models) -> np.ndarray:
    rows = np.array(models, dtype=float)
    return GeometricMedian().of_models(rows, np.ones(len(rows)))


def test_the_corners_of_a_convex_quadrilateral_have_the_crossing_of_its_diagonals() -> None:
    # The diagonals from (0, 0) to (4, 4), and from (6, 0) to (0, 3), cross at (2, 2).
    np.testing.assert_allclose(median([[0, 0], [6, 0], [4, 4], [0, 3]]), [2, 2], atol=1e-5)


def test_a_triangle_has_its_fermat_point() -> None:
    """Seen from it, the corners are 120 degrees apart: here it lies at 1/√3 above the middle of the base."""
    np.testing.assert_allclose(median([[-1, 0], [1, 0], [0, 5]]), [0, 1 / np.sqrt(3)], atol=1e-5)


def test_on_a_line_it_is_the_median_although_this_is_one_of_the_models() -> None:
    np.testing.assert_allclose(median([[0], [1], [5], [100], [0.5]]), [1], atol=1e-4)


def test_a_start_on_a_model_that_is_not_the_median_leaves_it() -> None:
    """The mean of these models is 0, one of them, and three of the five are −1."""
    np.testing.assert_allclose(median([[-1], [-1], [-1], [0], [3]]), [-1], atol=1e-4)


def test_equal_models_are_their_own_median() -> None:
    np.testing.assert_array_equal(combined(GeometricMedian(), np.full((4, 3), 1.25)), np.full(3, 1.25))


def test_one_far_model_moves_it_little() -> None:
    rng = np.random.default_rng(0)
    models = rng.normal(size=(9, 4))
    far = models.copy()
    far[0] = 1e6
    assert np.linalg.norm(median(far) - median(models)) < 2
    assert np.linalg.norm(far.mean(axis=0) - models.mean(axis=0)) > 1e5


@pytest.mark.parametrize("seed", range(3))
def test_the_sum_of_unit_vectors_to_the_models_vanishes(seed: int) -> None:
    models = np.random.default_rng(seed).normal(size=(10, 6))
    differences = models - median(models)
    units = differences / np.linalg.norm(differences, axis=1, keepdims=True)
    assert np.linalg.norm(units.sum(axis=0)) < 1e-4
