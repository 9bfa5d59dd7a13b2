"""hflray.compression.sign: bits by the formula, what arrives and stays by hand, and that nothing is lost."""

from __future__ import annotations

import numpy as np

from hflray.compression.sign import Sign

RNG = np.random.default_rng(0)


def test_bits() -> None:
    assert Sign().bits([100, 7]) == 107 + 64


def test_by_hand() -> None:
    """The sizes of (1, −3) have the mean 2, and those of (0, 6, 0) too; 0 has the sign +."""
    given, kept = Sign().send(np.float32([1, -3, 0, 6, 0]), [2, 3], RNG, None)
    np.testing.assert_array_equal(given, [2, -2, 2, 2, 2])
    np.testing.assert_array_equal(kept, [-1, -1, -2, 4, -2])
    given, kept = Sign().send(np.float32([2, 2, 2, -4, 2]), [2, 3], RNG, kept)
    np.testing.assert_array_equal(given, [1, 1, 0, 0, 0])
    np.testing.assert_array_equal(kept, 0)


def test_what_is_kept_counts_as_memory() -> None:
    assert Sign.remembers


def test_what_is_sent_and_kept_adds_up_to_all_updates() -> None:
    updates, sent, kept = RNG.normal(size=(50, 30)).astype(np.float32), np.zeros(30), None
    for update in updates:
        given, kept = Sign().send(update, [30], RNG, kept)
        sent += given
    np.testing.assert_allclose(sent + kept, updates.sum(axis=0), atol=1e-4)
