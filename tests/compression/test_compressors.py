"""Every registered compressor: one contract of all, and each by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hflray import registry
from hflray.compression.lossy import QSGD, Sign, TopK

NAMES = list(registry.BUILTIN["compressor"])
SIZES = (12, 8)
UPDATES = arrays.arrays(np.float32, (5, 20), elements=st.floats(-4, 4, width=32))


def build(name: str, **options: Any) -> Any:
    return registry.build("compressor", name, **options)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=20)
@given(updates=UPDATES)
def test_what_is_sent_and_kept_adds_up_to_all_updates_and_no_input_changes(name: str, updates) -> None:
    """Without error feedback nothing is kept, and draws decide what arrives."""
    compressor, copy, kept, sent = build(name), updates.copy(), None, np.zeros(20)
    for index, update in enumerate(updates):
        before = None if kept is None else kept.copy()
        arrived, after = compressor.send(update, SIZES, np.random.default_rng(index), kept)
        again, _ = compressor.send(update, SIZES, np.random.default_rng(index), kept)
        np.testing.assert_array_equal(arrived, again)
        assert (arrived.dtype, arrived.shape) == (np.float32, (20,))
        assert (after is not None) == compressor.remembers
        if before is not None:
            np.testing.assert_array_equal(kept, before)
        kept, sent = after, sent + arrived
    np.testing.assert_array_equal(updates, copy)
    if compressor.remembers:
        np.testing.assert_allclose(sent + kept, updates.sum(axis=0), atol=1e-4)
    elif name == "none":
        np.testing.assert_array_equal(arrived, updates[-1])


@pytest.mark.parametrize(
    "name, options, sizes, bits",
    [
        ("none", {}, [100, 7], 32 * 107),
        *(("qsgd", {"levels": s}, [100, 7], 107 * b + 64) for s, b in ((1, 2), (7, 4), (8, 5), (127, 8), (32767, 16))),
        ("qsgd", {}, [100], 432),
        ("sign", {}, [100, 7], 107 + 64),
        ("top_k", {"share": 0.1}, [64, 36], 10 * 39),
        ("top_k", {"share": 0.01}, [50], 38),
        ("top_k", {"share": 1.0}, [4], 4 * 34),
        ("top_k", {"share": 0.3}, [10], 3 * 36),
        ("top_k", {}, [1000], 10 * (32 + 10)),
    ],
)
def test_bits(name: str, options: dict[str, Any], sizes: list[int], bits: int) -> None:
    assert build(name, **options).bits(sizes) == bits


@pytest.mark.parametrize(
    "compressor, sizes, updates, arrivals, kept",
    [
        # Of (1, −5, 0, 3, 2) two are sent; the next update meets the rest.
        (TopK(0.4), [2, 3], [[1, -5, 0, 3, 2], [1] * 5], [[0, -5, 0, 3, 0], [2, 0, 0, 0, 3]], [0, 1, 1, 1, 0]),
        (TopK(0.5), [4], [[1, -1, 1, 1]], [[1, -1, 0, 0]], [0, 0, 1, 1]),  # the lower position wins ties
        # The sizes of (1, −3) have the mean 2, and those of (0, 6, 0) too; 0 has the sign +.
        (Sign(), [2, 3], [[1, -3, 0, 6, 0], [2, 2, 2, -4, 2]], [[2, -2, 2, 2, 2], [1, 1, 0, 0, 0]], [0] * 5),
    ],
)
def test_error_feedback_by_hand(compressor, sizes, updates, arrivals, kept) -> None:
    residual = None
    for update, expected in zip(updates, arrivals, strict=True):
        arrived, residual = compressor.send(np.float32(update), sizes, np.random.default_rng(0), residual)
        np.testing.assert_array_equal(arrived, expected)
    np.testing.assert_array_equal(residual, kept)


def test_levels_by_hand() -> None:
    """(3, −4) has the norm 5: with s = 5 both are whole levels; (0.6, 0.8) of the norm 1 with s = 1 is 0 or 1 each."""
    update, rng = np.float32([3, -4, 0.6, 0.8]), np.random.default_rng(0)
    np.testing.assert_allclose(QSGD(5).send(update, [2, 2], rng, None)[0], update, rtol=1e-6)
    coarse, _ = QSGD(1).send(update, [2, 2], rng, None)
    assert set(np.abs(coarse[:2])) <= {0, 5}
    assert set(coarse[2:]) <= {0, 1}
    np.testing.assert_array_equal(QSGD(1).send(np.zeros(4, np.float32), [4], rng, None)[0], 0)


def test_what_arrives_of_qsgd_is_right_in_the_mean() -> None:
    rng = np.random.default_rng(1)
    update = rng.normal(size=20).astype(np.float32)
    arrived = np.array([QSGD(2).send(update, SIZES, rng, None)[0] for _ in range(4000)])
    error = np.abs(arrived.mean(axis=0) - update) / (arrived.std(axis=0) / np.sqrt(len(arrived)) + 1e-9)
    assert error.max() < 4.5
    norms = np.repeat([np.linalg.norm(update[:12]), np.linalg.norm(update[12:])], SIZES)
    assert (np.abs(arrived - update) <= norms / 2 + 1e-6).all()  # no level is further than the next one
