"""hflray.training.rules.fedprox: a step by hand, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.training.rules.fedprox import FedProx
from tests.training.rules.quadratics import RATE, Devices, drive, hierarchy


def test_two_steps_by_hand(monkeypatch) -> None:
    """The second gradient at 0.1 is 0.1 − 1 + 0.5 · 0.1 = −0.85, so that the weight becomes 0.185."""
    rule = hierarchy(monkeypatch, "fedprox", (1.0,))
    assert rule.train_round(1, np.zeros(1, np.float32), np.array([0]), np.array([0])) == pytest.approx(
        0.1 + 0.1 * (0.9 - 0.01 * 0.1), rel=1e-6
    )
    assert FedProx(0.5).correction(0.1, 0.0, {}, {}) == pytest.approx(0.05)


def test_it_is_the_published_algorithm() -> None:
    devices, model = Devices(4), None
    models = drive(FedProx(0.3), devices, [{0: [0, 1, 2, 3]}] * 5).models
    model = devices.start
    for given in models:
        ends = []
        for device in range(4):
            local = model.copy()
            for _ in range(devices.steps[device]):
                local -= RATE * (devices.gradient(device, local) + 0.3 * (local - model))
            ends.append(local)
        model = np.average(ends, axis=0, weights=devices.weights)
        np.testing.assert_allclose(given, model, rtol=1e-12, atol=1e-12)


def test_a_negative_pull_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"training\.rule\.options\.mu: got -1; accepted: a number of at least 0"):
        FedProx(-1)
