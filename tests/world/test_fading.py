"""hflray.world.fading: moments of the laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hflray import registry
from hflray.errors import ConfigError

DEVICES = np.arange(200_000)


def build(name: str, **options: Any) -> Any:
    return registry.build("fading", name, seed=4, **options)


def test_no_fading_is_a_factor_of_one() -> None:
    factor = build("none").factor(3, DEVICES[:5], 0, np.arange(2)[:, None])
    assert factor.shape == (2, 5)
    assert (factor == 1).all()


def test_rayleigh_power_is_exponential() -> None:
    factor = build("rayleigh").factor(3, DEVICES, 0)
    assert factor.min() > 0
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.var() == pytest.approx(1, rel=0.03)
    assert (factor < 0.1).mean() == pytest.approx(1 - np.exp(-0.1), rel=0.03)


@pytest.mark.parametrize("k_db", [-20.0, 0.0, 6.0, 20.0])
def test_rician_power_has_its_moments(k_db: float) -> None:
    k = 10 ** (k_db / 10)
    factor = build("rician", k_db=k_db).factor(3, DEVICES, 1, 2)
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.var() == pytest.approx((2 * k + 1) / (k + 1) ** 2, rel=0.04)


def test_links_and_iterations_are_independent() -> None:
    law = build("rayleigh")
    first = law.factor(3, DEVICES, 0, 1)
    for other in (law.factor(3, DEVICES, 1, 1), law.factor(3, DEVICES, 0, 2), law.factor(4, DEVICES, 0, 1)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.01


@pytest.mark.parametrize("value", [61, -61, "6", None])
def test_a_wrong_k_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"world\.fading\.options\.k_db: got .*; accepted: a number from -60 to 60"):
        build("rician", k_db=value)
