"""hflray.compression.top_k: bits by the formula, what is sent and kept by hand, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.compression.top_k import TopK
from hflray.errors import ConfigError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "share, sizes, bits", [(0.1, [64, 36], 10 * 39), (0.01, [50], 38), (1.0, [4], 4 * 34), (0.3, [10], 3 * 36)]
)
def test_bits(share: float, sizes: list[int], bits: int) -> None:
    assert TopK(share).bits(sizes) == bits


def test_by_hand() -> None:
    """Of (1, −5, 0, 3, 2) two are sent; the next update meets the rest."""
    update = np.float32([1, -5, 0, 3, 2])
    given, kept = TopK(0.4).send(update, [2, 3], RNG, None)
    np.testing.assert_array_equal(given, [0, -5, 0, 3, 0])
    np.testing.assert_array_equal(kept, [1, 0, 0, 0, 2])
    given, kept = TopK(0.4).send(np.float32([1, 1, 1, 1, 1]), [2, 3], RNG, kept)
    np.testing.assert_array_equal(given, [2, 0, 0, 0, 3])
    np.testing.assert_array_equal(kept, [0, 1, 1, 1, 0])


def test_the_lower_position_wins_ties() -> None:
    given, _ = TopK(0.5).send(np.float32([1, -1, 1, 1]), [4], RNG, None)
    np.testing.assert_array_equal(given, [1, -1, 0, 0])


def test_a_hundredth_is_sent_by_default_and_what_is_kept_counts_as_memory() -> None:
    assert TopK().bits([1000]) == 10 * (32 + 10)
    assert TopK.remembers


def test_what_is_sent_and_kept_adds_up_to_all_updates() -> None:
    updates, sent, kept = RNG.normal(size=(50, 30)).astype(np.float32), np.zeros(30), None
    for update in updates:
        given, kept = TopK(0.1).send(update, [30], RNG, kept)
        assert np.count_nonzero(given) == 3
        sent += given
    np.testing.assert_allclose(sent + kept, updates.sum(axis=0), atol=1e-4)


@pytest.mark.parametrize("share", [0, 1.1, "0.1"])
def test_another_share_is_refused(share) -> None:
    with pytest.raises(ConfigError, match=r"option share of top_k: got .*; accepted: a number above 0 and at most 1"):
        TopK(share)
