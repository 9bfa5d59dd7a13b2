"""hflray.world.motion: the compiled motion has the bits of its definition."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.motion import move_reflected


@pytest.mark.parametrize("speed_m_per_s", [15.0, 80.0, 5_000.0])  # the last one passes several borders in a slot
def test_the_motion_is_that_of_the_definition_to_the_last_bit(speed_m_per_s: float) -> None:
    rng = np.random.default_rng(2)
    keep, slot_s, side_m = 0.9, 1.7, 1000.0
    position_m, velocity = rng.uniform(0, side_m, 40), speed_m_per_s * rng.normal(size=40)
    normal, push = rng.normal(size=(300, 40)), 0.4 * speed_m_per_s
    moved_m, moved_m_per_s = position_m.copy(), velocity.copy()
    move_reflected(moved_m, moved_m_per_s, normal, keep, push, slot_s, side_m)

    turned = 0
    for row in normal:
        velocity = keep * velocity + push * row
        position_m = np.mod(position_m + slot_s * velocity, 2 * side_m)
        beyond = position_m > side_m
        position_m, velocity = np.where(beyond, 2 * side_m - position_m, position_m), np.where(beyond, -1, 1) * velocity
        turned += beyond.sum()
    assert turned > 20
    np.testing.assert_array_equal(moved_m, position_m)
    np.testing.assert_array_equal(moved_m_per_s, velocity)
    assert moved_m.min() >= 0
    assert moved_m.max() <= side_m


def test_what_leaves_through_a_border_comes_back() -> None:
    position_m, velocity_m_per_s = np.array([1.0, 9.0, 5.0]), np.array([-3.0, 4.0, 0.0])
    move_reflected(position_m, velocity_m_per_s, np.zeros((1, 3)), 1.0, 0.0, 1.0, 10.0)
    assert position_m.tolist() == [2.0, 7.0, 5.0]
    assert velocity_m_per_s.tolist() == [3.0, -4.0, 0.0]
