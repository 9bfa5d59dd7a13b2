"""Devices that draw their samples alone, as functions of the key and the device, in exact sizes and by a named mix."""

from __future__ import annotations

import pickle
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.data.partition import build_partition, label_counts
from hflray.data.resampled import LabelCounts, ResampledPartition
from hflray.errors import ConfigError, DataError
from tests.conftest import refusal, refusals
from tests.data.test_partition import balanced

LABELS = balanced(10, 600)


def rng(seed=0):
    return np.random.default_rng(seed)


def resampled(sizes, labels=LABELS, seed=0, **options):
    return build_partition("resampled", **options)(labels, len(sizes), np.asarray(sizes), rng(seed))


@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=6),
    st.lists(st.floats(0.001, 1), min_size=1, max_size=8),
    st.sampled_from(["majority", "dirichlet", "iid"]),
    st.sampled_from([0.01, 0.5, 100.0]),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=100, deadline=None)
def test_a_device_holds_as_many_different_samples_as_it_should(supply, shares, mix, alpha, seed):
    labels = rng(seed).permutation(np.repeat(np.arange(len(supply)), supply))
    sizes = np.maximum(1, (np.array(shares) * len(labels)).astype(int))
    try:
        parts = resampled(sizes, labels, seed, mix=mix, alpha=alpha)
    except DataError:
        assert mix == "majority"
        assert np.rint(0.8 * sizes.max()) > min(supply)
        return
    for part, size in zip(parts, sizes, strict=True):
        assert part.dtype == np.int64
        assert len(np.unique(part)) == len(part) == size
        assert (np.diff(part) > 0).all()
        assert part[0] >= 0
        assert part[-1] < len(labels)


@pytest.mark.parametrize("mix", ["majority", "dirichlet", "iid"])
def test_the_samples_of_a_device_depend_on_nothing_else(mix):
    sizes = rng(3).integers(20, 60, 50)
    parts, again = resampled(sizes, mix=mix), resampled(sizes, mix=mix)
    materialised = list(parts)
    for device in rng(1).permutation(50):  # the order of look-ups, a second look, and a copy change nothing
        np.testing.assert_array_equal(again[int(device)], materialised[device])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(parts))[int(device)], materialised[device])
    few = resampled(sizes[:7], mix=mix)  # nor does the size of the fleet
    for device in range(7):
        np.testing.assert_array_equal(few[device], materialised[device])
    np.testing.assert_array_equal(parts[-1], materialised[-1])
    assert [part.tolist() for part in parts[3:5]] == [part.tolist() for part in materialised[3:5]]
    assert not np.array_equal(resampled(sizes, seed=1, mix=mix)[0], materialised[0])
    with pytest.raises(IndexError):
        parts[50]


def test_a_majority_is_exact_and_each_class_is_as_often_one():
    counts = label_counts(resampled(np.full(2000, 50)), LABELS, 10)
    assert set(counts.max(axis=1)) == {40}
    own = np.bincount(counts.argmax(axis=1), minlength=10)
    assert 150 < own.min() <= own.max() < 250  # the standard deviation is 13
    others = counts.sum(axis=0) - 40 * own
    np.testing.assert_allclose(others / others.sum(), 0.1, atol=0.01)


def test_an_alpha_says_how_unlike_devices_are():
    largest = [
        float(label_counts(resampled(np.full(200, 100), mix="dirichlet", alpha=alpha), LABELS, 10).max(axis=1).mean())
        for alpha in (0.05, 0.5, 100)
    ]
    assert largest[0] > 75 > largest[1] > 30 > largest[2] > 10
    assert label_counts(resampled(np.full(200, 100), mix="iid"), LABELS, 10).max() < 30


def test_devices_share_samples_and_use_all_of_them():
    parts = resampled(np.full(500, 60))
    held = np.bincount(np.concatenate(list(parts)), minlength=len(LABELS))
    assert held.max() > 1
    assert (held > 0).mean() > 0.98


def test_a_small_class_is_filled_up_from_the_own_one():
    labels = np.repeat([0, 1], [30, 30])
    assert sorted(label_counts(resampled([36], labels, majority_fraction=0.8), labels, 2)[0]) == [7, 29]
    assert sorted(label_counts(resampled([5], np.zeros(9, int)), np.zeros(9, int), 1)[0]) == [5]


def test_counts_on_demand_are_those_of_the_samples():
    sizes = rng(3).integers(20, 60, 40)
    parts = resampled(sizes, labels=LABELS % 10 + 1)  # no class 0
    expected = label_counts(parts, LABELS % 10 + 1, 12)
    for first in (lambda counts: counts[[5, 3]], lambda counts: counts[7], np.asarray):
        counts = LabelCounts(parts, 12)
        first(counts)
        np.testing.assert_array_equal(counts[[5, 3]], expected[[5, 3]])
        np.testing.assert_array_equal(counts[7], expected[7])
        np.testing.assert_array_equal(counts[2:4], expected[2:4])
        np.testing.assert_array_equal(counts[sizes > 30], expected[sizes > 30])
        np.testing.assert_array_equal(np.asarray(counts), expected)
        np.testing.assert_array_equal(counts / sizes[:, None], expected / sizes[:, None])
        assert np.asarray(counts, dtype=np.float32).dtype == np.float32
        assert (len(counts), counts.shape) == (40, (40, 12))


def test_memory_does_not_grow_with_the_samples_of_the_devices():
    """A thousand times the devices of 500 samples add their sizes, and not their 4 GB of indices."""
    sizes = np.full(1_000_000, 500)
    tracemalloc.start()
    parts = resampled(sizes)
    counts = LabelCounts(parts, 10)
    assert [len(parts[device]) for device in (0, 999_999)] == [500, 500]
    assert counts[[0, 999_999]].sum() == 1000
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize("options, words", refusals("data/resampled"))
def test_wrong_options_are_named(options, words):
    with refusal(ConfigError, *words):
        ResampledPartition(**options)


@pytest.mark.parametrize("sizes, options, words", refusals("data/resampled_sizes"))
def test_a_device_that_cannot_be_served_is_named(sizes, options, words):
    with refusal(DataError, *words):
        resampled(sizes, **options)
