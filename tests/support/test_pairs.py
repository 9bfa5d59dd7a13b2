"""hflray.support.pairs: the exact signed-rank test by hand, with zeros and ties, and what is censored."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from hflray.support.pairs import Pairs, family_p, holm, least_p, mean_interval, signed_rank_p


def test_with_ten_units_of_one_sign_two_of_1024_patterns_are_as_extreme() -> None:
    steps = np.linspace(0.1, 1.0, 10)
    assert signed_rank_p(steps) == pytest.approx(2 / 1024, rel=1e-12)
    assert signed_rank_p(-steps) == pytest.approx(2 / 1024, rel=1e-12)
    assert least_p(10) == 2 / 1024
    assert least_p(10, 12) == pytest.approx(0.0234, abs=5e-5)
    assert least_p(5) == 0.0625
    assert (least_p(0), least_p(1), least_p(2, 12)) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize("seed", range(20))
def test_p_is_the_share_of_all_patterns_of_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = rng.integers(-3, 4, int(rng.integers(1, 10))).astype(float)
    ranks = rankdata(np.abs(steps))[steps != 0]
    ours = abs((ranks * np.sign(steps[steps != 0])).sum())
    sums = [abs((ranks * signs).sum()) for signs in product((-1, 1), repeat=len(ranks))]
    assert signed_rank_p(steps) == pytest.approx(np.mean([value >= ours - 1e-9 for value in sums]))


@pytest.mark.parametrize("units", [6, 12, 20, 30])
def test_without_zeros_and_ties_it_is_scipys_exact_test(units: int) -> None:
    steps = np.random.default_rng(units).normal(0.3, 1, units)
    assert signed_rank_p(steps) == pytest.approx(wilcoxon(steps, method="exact").pvalue, rel=1e-9)


def test_a_pair_whose_smaller_value_is_censored_scores_0_and_is_counted() -> None:
    own = [8.0, 2.0, 8.0, 2.0, 3.0, 4.0]
    own_reached = [1, 1, 0, 0, 1, 0]
    other = [4.0, 4.0, 4.0, 4.0, 6.0, 2.0]
    other_reached = [1, 1, 1, 1, 0, 0]
    pairs = Pairs.censored(own, own_reached, other, other_reached)
    # It missed the target at 8, beyond 4: the order is certain. At 2 it is not, and neither where both missed.
    np.testing.assert_allclose(pairs.steps, np.log([2, 0.5, 2, 1, 0.5, 1]))
    assert pairs.uncertain == 2
    assert pairs.p == signed_rank_p(pairs.steps)
    # The ratios are 2, 1/2, from 2, from 1/2, up to 1/2, and any.
    low, high = pairs.median
    assert low == pytest.approx((0.5 + 0.5) / 2)
    assert high == np.inf


def test_the_worst_rank_is_larger_than_any_ratio_and_two_of_it_tie() -> None:
    pairs = Pairs.ordered([np.inf, 1e30, np.inf, 2.0], [1.0, 1.0, np.inf, np.inf])
    assert np.sign(pairs.steps).tolist() == [1, 1, 0, -1]
    assert pairs.steps[0] > pairs.steps[1]
    assert pairs.uncertain == 0
    assert Pairs.ordered([np.inf, np.inf, 1.0], [1.0, 1.0, 2.0]).median == (np.inf, np.inf)
    assert Pairs.ordered([1.0, 1.0, 1.0], [2.0, 4.0, 8.0]).median == pytest.approx((0.25, 0.25))


def test_bounds_are_averaged_as_bounds() -> None:
    """One assigner's ratio is 4, and the other's at least 1/2 or at least 1/8: the mean is at least √2, or √(1/2)."""
    certain = Pairs.censored([8.0, 1.0], [1, 0], [2.0, 2.0], [1, 1])
    uncertain = Pairs.censored([8.0, 1.0], [1, 0], [2.0, 8.0], [1, 1])
    pairs = Pairs.average([certain, uncertain])
    np.testing.assert_allclose(pairs.steps, [np.log(2) / 2, 0])
    assert (pairs.units, pairs.uncertain) == (2, 1)


def test_so_few_units_have_no_p_value() -> None:
    assert np.isnan(Pairs.ordered([1.0] * 5, [2.0] * 5).p)
    assert Pairs.ordered([1.0] * 6, [2.0] * 6).p == pytest.approx(2 / 64)
    assert np.isnan(Pairs.ordered([], []).median).all()


def test_holms_adjustment_by_hand() -> None:
    adjusted = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": np.nan})
    assert [adjusted[name] for name in "abc"] == pytest.approx([0.03, 0.06, 0.06])
    assert np.isnan(adjusted["d"])


def test_six_units_cannot_decide_among_two_comparisons() -> None:
    six, two = Pairs.exact(np.arange(1.0, 7.0)), Pairs.exact([1.0, 2.0])
    assert family_p({"one": six, "of two units": two}) == pytest.approx(
        {"one": 0.03125, "of two units": np.nan}, nan_ok=True
    )
    assert np.isnan([*family_p({"one": six, "another": six}).values()]).all()
    assert family_p({}) == {}


def test_the_interval_of_a_mean_is_students() -> None:
    """Of 1, 2, 3 the mean is 2, its error 1/√3, and t at 97.5 % with two degrees of freedom is 4.3027."""
    mean, half = mean_interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2, pytest.approx(4.302653 / np.sqrt(3), rel=1e-6))
    assert mean_interval([3.0])[0] == 3
    assert np.isnan([mean_interval([3.0])[1], *mean_interval([])]).all()


def test_a_value_that_is_missing_is_no_tie() -> None:
    pairs = Pairs.censored([np.nan, 0.0, 5.0, 5.0], [1] * 4, [2.0, 0.0, 0.0, np.nan], [1] * 4)
    assert pairs.uncertain == 2
    assert pairs.steps[:2].tolist() == [0.0, 0.0]
    assert np.isfinite(pairs.low[1:3]).all()
    assert pairs.low[2] > 100
