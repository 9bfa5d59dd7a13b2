"""hflray.aggregation.trimmed_mean: by hand, the values of Flower, and how many models are cut."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.trimmed_mean import TrimmedMean
from hflray.errors import ConfigError
from tests.aggregation.places import FLOWER, combined


def test_by_hand() -> None:
    models = [[0, 5], [1, -1], [9, 2], [-7, 3], [3, 4]]
    np.testing.assert_allclose(combined(TrimmedMean(), models), [4 / 3, 3], rtol=1e-6)


@pytest.mark.parametrize("case", FLOWER)
def test_it_is_flowers(case) -> None:
    models = np.array(case["models"])
    given = TrimmedMean().of_models(models, np.ones(len(models)))
    np.testing.assert_allclose(given, case["trimmed_mean"], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "share, count, left", [(0.2, 4, 4), (0.2, 5, 3), (0.5, 4, 2), (0.5, 5, 1), (0.5, 1, 1), (0.29, 100, 42), (0, 3, 3)]
)
def test_how_many_are_left(share: float, count: int, left: int) -> None:
    """Of 0, 1, 4, 9, … the mean of the middle ones tells how many these are."""
    squares = np.arange(count, dtype=float)[:, None] ** 2
    cut = (count - left) // 2
    given = TrimmedMean(share).of_models(squares, np.ones(count))
    assert given == pytest.approx(squares[cut : count - cut].mean())


@pytest.mark.parametrize("share", [-0.1, 0.51, "0.2", None])
def test_another_share_is_refused(share) -> None:
    with pytest.raises(
        ConfigError, match=r"aggregation\.edge\.options\.share: got .*; accepted: a number from 0 to 0.5"
    ):
        TrimmedMean(share)
