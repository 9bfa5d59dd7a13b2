"""hflray.world.dropout: the share of devices that vanish within a time."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.dropout import Dropout


def test_a_share_vanishes_within_the_planned_time() -> None:
    share, planned_s = 0.3, 20.0
    dropout = Dropout(1, -np.log(1 - share) / planned_s)
    vanish_s = dropout.vanish_s(4, np.arange(100_000))
    assert (vanish_s < planned_s).mean() == pytest.approx(share, abs=0.006)
    assert vanish_s.mean() == pytest.approx(1 / dropout.rate_per_s, rel=0.02)


def test_rounds_and_devices_are_drawn_by_key() -> None:
    dropout = Dropout(1, 0.01)
    np.testing.assert_array_equal(dropout.vanish_s(4, np.array([9, 3]))[1], dropout.vanish_s(4, np.array([3]))[0])
    assert dropout.vanish_s(5, np.array([3])) != dropout.vanish_s(4, np.array([3]))
