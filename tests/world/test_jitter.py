"""hflray.world.jitter: moments, and independence of iterations and devices."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.world.jitter import Jitter


@pytest.mark.parametrize("sigma", [0.2, 0.8])
def test_the_factor_is_log_normal_with_mean_one(sigma: float) -> None:
    factor = Jitter(1, sigma).factor(3, range(2), np.arange(200_000))
    assert factor.shape == (2, 200_000)
    assert factor.mean() == pytest.approx(1, rel=0.01)
    assert factor.std() == pytest.approx(np.sqrt(np.exp(sigma**2) - 1), rel=0.03)
    assert np.log(factor).std() == pytest.approx(sigma, rel=0.01)
    assert abs(np.corrcoef(factor[0], factor[1])[0, 1]) < 0.01


def test_a_factor_depends_on_round_iteration_and_device_alone() -> None:
    jitter = Jitter(1, 0.5)
    np.testing.assert_array_equal(
        jitter.factor(3, range(4), np.array([7, 2]))[:2, 1], jitter.factor(3, range(2), np.array([2]))[:, 0]
    )
    assert (jitter.factor(4, range(2), np.array([2])) != jitter.factor(3, range(2), np.array([2]))).all()
