"""hflray.aggregation.fixed_point: exact sums, their mean, and the weights that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hflray.aggregation.fixed_point import MAX_WEIGHT, fraction_bits, mean, weighted
from hflray.errors import DivergedError
from tests.conftest import says


def test_fraction_bits_leave_room_for_the_largest_sum() -> None:
    # 27,500 samples need 15 bits and weights up to 2^10 need 10 bits, which leaves 62 - 10 - 15 = 37 places.
    assert fraction_bits(27_500) == 37
    assert [fraction_bits(samples) for samples in (1, 2, 3, 4)] == [51, 50, 50, 49]
    for samples in (1, 2, 27_500, 2**31):
        top = weighted(np.float32([MAX_WEIGHT, -MAX_WEIGHT]), samples, fraction_bits(samples))
        assert top[0] == -top[1] == samples * int(MAX_WEIGHT) << fraction_bits(samples)


vectors = arrays.arrays(np.float32, 6, elements=st.floats(-8, 8, width=32))


@settings(deadline=None)
@given(st.lists(st.tuples(vectors, st.integers(1, 700)), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_any_grouping_gives_the_same_bits_and_the_weighted_mean(models, random) -> None:
    samples = sum(count for _, count in models)
    bits = fraction_bits(samples)
    in_order = sum(weighted(vector, count, bits) for vector, count in models)
    shuffled = list(models)
    random.shuffle(shuffled)
    cut = random.randrange(len(models) + 1)
    halves = [
        sum((weighted(vector, count, bits) for vector, count in part), np.zeros(6, np.int64))
        for part in (shuffled[:cut], shuffled[cut:])
    ]
    np.testing.assert_array_equal(in_order, halves[0] + halves[1])
    direct = sum(vector.astype(np.float64) * count for vector, count in models) / samples
    np.testing.assert_allclose(mean(in_order, samples, bits), direct, rtol=1e-6, atol=1e-9)


def test_the_sum_of_one_weight_by_hand() -> None:
    # 2.5 with 3 binary places is 20 eighths; 7 samples of it are 140. The mean divides by 7 and by 8.
    assert weighted(np.float32([2.5]), 7, 3).tolist() == [140]
    assert mean(np.array([140]), 7, 3).tolist() == [2.5]
    assert weighted(np.float32([]), 7, 3).tolist() == []


@pytest.mark.parametrize(
    "vector, options, facts",
    [
        ([0, -2 * MAX_WEIGHT], {}, ("trained weights are as large as 2.05e+03", "training.learning_rate")),
        *(([bad, 0.5], {}, ("trained weights are not finite", "learning_rate")) for bad in (np.nan, np.inf, -np.inf)),
        ([1, 2.0**24 + 2], {"statistics": 1}, ("trained statistics are as large as 1.68e+07",)),
        ([0, np.nan], {"statistics": 1}, ("trained statistics are not finite",)),
        ([2 * MAX_WEIGHT], {"noun": "numbers of the vector c"}, ("numbers of the vector c are as large as 2.05e+03",)),
    ],
)
def test_what_cannot_be_summed_is_refused(vector, options, facts: tuple[str, ...]) -> None:
    with pytest.raises(DivergedError) as error:
        weighted(np.float32(vector), 10, fraction_bits(10), **options)
    assert says(str(error.value), *facts)


def test_statistics_may_be_larger_than_weights_and_their_sum_is_exact() -> None:
    """BatchNorm's variance of features of 100 is 10,000: no sign of divergence."""
    bits = fraction_bits(1000)
    vectors = [np.array([0.25, 1e4 + device, 1e-3], dtype=np.float32) for device in range(3)]
    sums = [weighted(vector, 100 * (device + 1), bits, 2) for device, vector in enumerate(vectors)]
    np.testing.assert_array_equal(sums[0] + (sums[1] + sums[2]), (sums[0] + sums[1]) + sums[2])
    average = mean(np.sum(sums, axis=0), 600, bits, 2)
    expected = np.average(np.array(vectors, dtype=np.float64), axis=0, weights=[1, 2, 3])
    np.testing.assert_allclose(average, expected, rtol=1e-6, atol=1e-7)
    # A device of one sample leaves 51 places for weights, and 14 fewer for statistics: 2^24 · 2^37 = 2^61.
    bits = fraction_bits(1)
    assert weighted(np.float32([1.0, 2.0**24]), 1, bits, statistics=1).tolist() == [2**51, 2**61]
