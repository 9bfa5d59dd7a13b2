"""hflray.aggregation.multi_krum: by hand, and the values of Flower."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.krum import Krum
from hflray.aggregation.multi_krum import MultiKrum
from hflray.errors import ConfigError
from tests.aggregation.places import FLOWER, combined


def test_by_hand() -> None:
    """The scores of 9, 2, 0, −7 and 1 are 113, 5, 5, 113 and 2."""
    models = [[9.0], [2.0], [0.0], [-7.0], [1.0]]
    np.testing.assert_array_equal(combined(MultiKrum(1, keep=1), models), [1])
    np.testing.assert_array_equal(combined(MultiKrum(1, keep=2), models), [1.5])  # the lower index wins the tie
    np.testing.assert_array_equal(combined(MultiKrum(1), models), [3])  # n − f models: 9 wins the tie
    np.testing.assert_array_equal(combined(MultiKrum(1, keep=9), models), [1])
    assert MultiKrum(1).least == Krum(1).least == 5


@pytest.mark.parametrize("case", FLOWER)
def test_it_is_flowers(case) -> None:
    models = np.array(case["models"])
    given = MultiKrum(case["f"]).of_models(models, np.ones(len(models)))
    np.testing.assert_allclose(given, case["multi_krum"], rtol=0, atol=1e-12)


def test_another_number_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"aggregation\.edge\.options\.keep: got 0; accepted: a whole number of at le"
    ):
        MultiKrum(1, keep=0)
