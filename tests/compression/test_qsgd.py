"""hflray.compression.qsgd: bits by the formula, levels by hand, and what arrives is right in the mean."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.compression.qsgd import QSGD
from hflray.errors import ConfigError


@pytest.mark.parametrize("levels, each", [(1, 2), (7, 4), (8, 5), (127, 8), (32767, 16)])
def test_bits(levels: int, each: int) -> None:
    assert QSGD(levels).bits([100, 7]) == 107 * each + 64


def test_levels_by_hand() -> None:
    """(3, −4) has the norm 5: with s = 5 both are whole levels; (0.5, …) of a norm of 1 with s = 1 is 0 or 1."""
    update = np.float32([3, -4, 0.6, 0.8])
    given, residual = QSGD(5).send(update, [2, 2], np.random.default_rng(0), None)
    np.testing.assert_allclose(given, update, rtol=1e-6)  # 0.6 and 0.8 of the norm 1 are the levels 3 and 4
    assert residual is None
    coarse, _ = QSGD(1).send(update, [2, 2], np.random.default_rng(0), None)
    assert set(np.abs(coarse[:2])) <= {0, 5}
    assert set(coarse[2:]) <= {0, 1}
    np.testing.assert_array_equal(QSGD(1).send(np.zeros(4, np.float32), [4], np.random.default_rng(0), None)[0], 0)


def test_what_arrives_is_right_in_the_mean() -> None:
    rng = np.random.default_rng(1)
    update = rng.normal(size=20).astype(np.float32)
    each = np.array([QSGD(2).send(update, [12, 8], rng, None)[0] for _ in range(4000)])
    error = np.abs(each.mean(axis=0) - update) / (each.std(axis=0) / np.sqrt(len(each)) + 1e-9)
    assert error.max() < 4.5
    norms = np.repeat([np.linalg.norm(update[:12]), np.linalg.norm(update[12:])], [12, 8])
    assert (np.abs(each - update) <= norms / 2 + 1e-6).all()  # no level is further than the next one


@pytest.mark.parametrize("levels", [0, 32768, 1.5])
def test_other_levels_are_refused(levels) -> None:
    with pytest.raises(ConfigError, match=r"option levels of qsgd: got .*; accepted: a whole number from 1 to 32767"):
        QSGD(levels)
