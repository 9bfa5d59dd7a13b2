"""hflray.world.shadowing: mean, variance and correlation of the field."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.shadowing import ShadowField

DEVICES = np.arange(100_000)
HERE = np.full((len(DEVICES), 2), 300.0)


def test_a_link_has_a_standard_normal_field() -> None:
    field = ShadowField(1, 50.0)(DEVICES, 3, HERE)
    assert field.mean() == pytest.approx(0, abs=0.01)
    assert field.var() == pytest.approx(1, rel=0.02)
    assert (field**4).mean() == pytest.approx(3 - 1.5 / 16, rel=0.04)
    assert (field > 2).mean() == pytest.approx(0.0228, abs=0.004)


@pytest.mark.parametrize("distance_m", [5.0, 25.0, 50.0, 150.0])
@pytest.mark.parametrize("angle", [0.0, 1.1])
def test_the_correlation_falls_exponentially_with_the_distance(distance_m: float, angle: float) -> None:
    field = ShadowField(1, 50.0)
    there = HERE + distance_m * np.array([np.cos(angle), np.sin(angle)])
    correlation = np.corrcoef(field(DEVICES, 3, HERE), field(DEVICES, 3, there))[0, 1]
    assert correlation == pytest.approx(np.exp(-distance_m / 50), abs=0.015)


def test_links_are_independent_and_drawn_by_key() -> None:
    field = ShadowField(1, 50.0)
    one, other = field(DEVICES, 3, HERE), field(DEVICES, 4, HERE)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.01
    assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.01
    table = field(DEVICES[:6, None], np.arange(5), HERE[:6, None])
    assert table.shape == (6, 5)
    np.testing.assert_allclose(table[:, 3], one[:6], rtol=1e-12)
