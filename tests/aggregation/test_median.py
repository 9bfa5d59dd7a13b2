"""hflray.aggregation.median: by hand, and the values of Flower."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.median import Median
from tests.aggregation.places import FLOWER, combined


def test_by_hand() -> None:
    np.testing.assert_array_equal(combined(Median(), [[0, 5], [1, -1], [9, 2]]), [1, 2])
    np.testing.assert_array_equal(combined(Median(), [[0, 5], [1, -1]]), [0.5, 2])


@pytest.mark.parametrize("case", FLOWER)
def test_it_is_flowers(case) -> None:
    models = np.array(case["models"])
    np.testing.assert_allclose(Median().of_models(models, np.ones(len(models))), case["median"], rtol=0, atol=1e-12)
