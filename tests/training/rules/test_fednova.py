"""hflray.training.rules.fednova: factors by hand, a hierarchy by the real code, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.training.rules.fednova import FedNova, effective_steps
from tests.training.rules.quadratics import RATE, Devices, drive, hierarchy


def test_effective_steps_by_hand() -> None:
    """With ρ = 0.5, three steps weigh 1.75, 1.5 and 1: the first gradient enters all three steps."""
    assert effective_steps(np.array([1.0, 2.0, 3.0]), 0.5) == pytest.approx([1.0, 2.5, 4.25])
    assert effective_steps(np.array([1.0, 4.0]), 0.0) == pytest.approx([1.0, 4.0])


def test_momentum_enters_only_at_the_edge() -> None:
    steps, weights = np.array([1.0, 3.0]), np.array([0.25, 0.75])
    factors, effective = FedNova().scales("edge", steps, weights, 0.5)
    assert effective == pytest.approx(0.25 + 0.75 * 4.25)
    assert factors == pytest.approx([effective, effective / 4.25])
    factors, effective = FedNova().scales("cloud", steps, weights, 0.5)
    assert (effective, *factors) == pytest.approx((2.5, 2.5, 2.5 / 3))


def test_a_hierarchy_by_hand(monkeypatch) -> None:
    """Devices 0 and 1 with one and two samples, so K = 1 and 2, at edge 0; device 2 with one at edge 1; Q = 2."""
    rounds = hierarchy(monkeypatch, "fednova", (1.0, -3.0, 2.0), iterations=2, steps=1, samples=(1, 2, 1))
    devices, edges = np.array([0, 1, 2]), np.array([0, 0, 1])
    model = rounds.train_round(1, np.zeros(1, np.float32), devices, edges)

    def ends(w: float, minimum: float, steps: int) -> float:
        return minimum + (w - minimum) * 0.9**steps

    at_edge, tau = 0.0, 1 / 3 * 1 + 2 / 3 * 2
    for _ in range(2):
        per_step = 1 / 3 * (ends(at_edge, 1.0, 1) - at_edge) + 2 / 3 * (ends(at_edge, -3.0, 2) - at_edge) / 2
        at_edge += tau * per_step
    other = ends(0.0, 2.0, 2)
    effective = 3 / 4 * 2 * tau + 1 / 4 * 2
    expected = effective * (3 / 4 * at_edge / (2 * tau) + 1 / 4 * other / 2)
    assert model.item() == pytest.approx(expected, rel=1e-5)


def test_it_is_the_published_algorithm() -> None:
    devices = Devices(4)
    driven = drive(FedNova(), devices, [{0: [0, 1, 2, 3]}] * 5)
    x, share = devices.start.copy(), devices.weights / devices.weights.sum()
    for given in driven.models:
        normalised = np.array([(x - devices.trained(i, x)) / (RATE * devices.steps[i]) for i in range(4)])
        x = x - (share @ devices.steps) * RATE * (share @ normalised)
        np.testing.assert_allclose(given, x, rtol=1e-12, atol=1e-12)
    assert np.unique(devices.steps).size > 1
