"""hflray.pairs: ratios and Wilcoxon's test by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.pairs import FAR, Pairs


def test_the_p_value_is_wilcoxons_by_hand() -> None:
    """With ten pairs of one sign and no ties, two of 2^10 signs are as extreme."""
    ratios = np.linspace(0.5, 0.95, 10)
    assert Pairs.of(ratios, np.ones(10)).p == pytest.approx(2 / 1024)
    assert Pairs.of(1 / ratios, np.ones(10)).p == pytest.approx(2 / 1024)
    assert Pairs.of(np.ones(10), np.ones(10)).p == 1
    assert np.isnan(Pairs.of(ratios[:9], np.ones(9)).p)


def test_a_value_without_target_is_the_largest_difference() -> None:
    own = np.array([np.inf, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4])
    pairs = Pairs.of(own, np.ones(10))
    steps = np.log(own)
    steps[0] = FAR
    assert pairs.p == Pairs.of(np.exp(np.minimum(steps, 20)), np.ones(10)).p
    assert pairs.median == pytest.approx(1.0)
    assert Pairs.of([np.inf, np.inf, 1.0], [1.0, 1.0, 2.0]).median == np.inf
    assert np.isnan(Pairs.of([np.inf], [np.inf]).median)
    assert Pairs.of([1.0], [np.inf]).median == 0
