"""Streams never change between versions, are independent of one another, and use no global state."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hflray.seeding import seed_sequence, stream


def test_a_streams_numbers_never_change():
    # If these numbers change, every published result of every seed changes.
    assert stream(0, "batches", 1, 2, 3).integers(0, 2**32, 3).tolist() == [369349792, 501609372, 341007936]


def test_each_call_returns_a_fresh_generator():
    np.testing.assert_array_equal(stream(7, "fleet").random(5), stream(7, "fleet").random(5))


def test_seeds_names_and_indices_give_different_streams():
    draws = [
        stream(seed, name, *indices).integers(0, 2**63)
        for seed, name, indices in itertools.product(
            (0, 1, 2**40), ("fleet", "batches"), ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (np.int64(2),))
        )
    ]
    assert len(set(draws)) == len(draws)


def test_streams_look_independent():
    draws = np.array([stream(0, "batches", i).standard_normal(2000) for i in range(8)])
    correlation = np.corrcoef(draws) - np.eye(8)
    assert np.abs(correlation).max() < 5 / np.sqrt(2000)


def test_global_state_is_neither_read_nor_written():
    np.random.seed(1)  # noqa: NPY002 - this test is about the global state
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = stream(0, "x").random()
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(2)  # noqa: NPY002
    assert stream(0, "x").random() == first


def test_negative_indices_are_refused():
    with pytest.raises(ValueError, match="negative"):
        seed_sequence(0, "x", -1).generate_state(1)
