"""hflray.training.rules.feddyn: a round by hand by the real code, the published algorithm, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.training.method import Method, Spec
from hflray.training.rules.feddyn import FedDyn
from tests.training.rules.quadratics import RATE, Devices, drive, hierarchy

RULE = Spec("local_rule", "feddyn")


def test_two_rounds_by_hand(monkeypatch) -> None:
    """With α = 0.01, N = 3 and two participants, of which device 1 has three samples, and all the weight 1.

    Round 1, K = 1: the ends are 0.1 and −0.3, so that h₀ = −0.001, h₁ = 0.003, h = 0.002/3, w = −0.1 − h/α.
    """
    rounds = hierarchy(monkeypatch, "feddyn", (1.0, -3.0, 7.0), steps=1, uniform=True)
    both, edges = np.array([0, 1]), np.array([0, 1])
    state = rounds.result(1, rounds.setting.start(np.zeros(1, np.float32)), both, edges).state
    assert [state.memories[n]["h"].item() for n in both] == pytest.approx([-0.001, 0.003], rel=1e-5)
    assert state.rule["h"].item() == pytest.approx(0.002 / 3, rel=1e-5)
    w = -0.1 - 0.2 / 3
    assert state.model.item() == pytest.approx(w, rel=1e-5)
    # Device 0 alone: its gradient is w − 1 + 0.001, without a pull in the first step.
    after = rounds.result(2, state, both[:1], edges[:1]).state
    change = -0.1 * (w - 1 + 0.001)
    assert after.memories[0]["h"].item() == pytest.approx(-0.001 - 0.01 * change, rel=1e-5)
    assert after.model.item() == pytest.approx(w + change - (0.002 - 0.01 * change) / 3 / 0.01, rel=1e-5)


def test_it_is_the_published_algorithm_with_partial_participation() -> None:
    alpha, devices = 0.05, Devices(5)
    devices.weights[:] = 1.0
    chosen = [[0, 1, 2], [2, 3], [0, 4, 1, 3, 2], [1], [2, 3, 4]]
    driven = drive(FedDyn(alpha), devices, [{0: each} for each in chosen])
    theta, h, gradients = devices.start.copy(), np.zeros(3), np.zeros((5, 3))
    for given, members in zip(driven.models, chosen, strict=True):
        ends = []
        for k in members:
            local = theta.copy()
            for _ in range(devices.steps[k]):
                local -= RATE * (devices.gradient(k, local) - gradients[k] + alpha * (local - theta))
            gradients[k] = gradients[k] - alpha * (local - theta)
            ends.append(local)
        h = h - alpha / 5 * sum(end - theta for end in ends)
        theta = np.mean(ends, axis=0) - h / alpha
        np.testing.assert_allclose(given, theta, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(driven.states[-1]["h"], gradients.mean(axis=0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "method, message",
    [
        (Method(rule=RULE), r"training\.rule\.name: feddyn gives all devices .* aggregation\.weights = uniform"),
        (
            Method(rule=RULE, uniform=True, cloud=Spec("aggregator", "fedadam")),
            r"aggregation\.cloud\.name: got fedadam with the rule feddyn, .*; accepted with it: mean",
        ),
        (
            Method(rule=RULE, uniform=True, device_compressor=Spec("compressor", "sign")),
            r"compression\.device\.name: got sign with the rule feddyn, .* whole models; accepted with it: none",
        ),
        (
            Method(rule=Spec("local_rule", "feddyn", '{"alpha": 0}'), uniform=True),
            r"training\.rule\.options\.alpha: got 0; accepted: a number above 0",
        ),
    ],
)
def test_what_is_refused(method: Method, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        method.parts()


def test_only_an_edge_sends_a_further_vector() -> None:
    method = Method(rule=RULE, uniform=True)
    assert (method.device_bits((3, 2), 1), method.edge_bits((3, 2), 1)) == (6 * 32.0, 11 * 32.0)
