"""hflray.training.privacy.accountant: ε in closed form, and the uploads that it counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.training.privacy import Accountant, delta_of, epsilon_of

FROZEN = json.loads((Path(__file__).parent / "dp_accounting.json").read_text(encoding="utf-8"))["cases"]


def config_of(**changes: object) -> ExperimentConfig:
    privacy = {"clip": 1.0, "noise_multiplier": 2.0, "delta": 1e-5}
    return ExperimentConfig.model_validate({"privacy": privacy, "fleet": {"num_devices": 50}, **changes})


def phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


@pytest.mark.parametrize("epsilon, ratio", [(0.0, 1.0), (0.5, 0.3), (1.0, 1.0), (3.0, 2.0), (8.0, 1.5)])
def test_delta_is_balle_and_wang_s_formula(epsilon: float, ratio: float) -> None:
    expected = phi(ratio / 2 - epsilon / ratio) - math.exp(epsilon) * phi(-ratio / 2 - epsilon / ratio)
    assert delta_of(epsilon, ratio) == pytest.approx(expected, rel=1e-9)


def test_epsilon_agrees_with_dp_accounting_to_one_per_cent() -> None:
    assert len(FROZEN) == 5 * 4 * 2
    for case in FROZEN:
        ratio = math.sqrt(case["releases"]) / case["noise_multiplier"]
        assert epsilon_of(ratio, case["delta"]) == pytest.approx(case["epsilon"], rel=0.01), case


@settings(deadline=None)
@given(st.floats(-6, 6), st.floats(-300, -0.01))
def test_epsilon_is_the_least_that_has_its_delta_for_small_and_large_noise(ratio: float, delta: float) -> None:
    ratio, delta = 10**ratio, 10**delta
    epsilon = epsilon_of(ratio, delta)
    assert math.isfinite(epsilon)
    assert delta_of(epsilon, ratio) <= delta
    if epsilon:
        assert delta_of(epsilon * (1 - 1e-6), ratio) > delta * (1 - 1e-6)


def test_nothing_released_costs_nothing_and_more_releases_cost_more() -> None:
    assert epsilon_of(0.0, 1e-5) == 0.0
    each = [epsilon_of(math.sqrt(k) / 2, 1e-5) for k in (1, 2, 3, 100)]
    assert each == sorted(each)
    assert len(set(each)) == 4


def test_every_row_that_arrived_counts_and_the_largest_device_decides() -> None:
    start = Accountant.of(config_of())
    assert start is not None
    arrived = np.array([[True, False, True], [True, False, False]])
    after = start.after(np.array([4, 7, 9]), arrived).after(np.array([4, 9]), np.array([[True, True]]))
    assert after.releases[[4, 7, 9]].tolist() == [3, 0, 2]
    assert after.releases.sum() == 5
    assert start.releases.sum() == 0
    assert after.epsilon == after.epsilon_of(3) == epsilon_of(math.sqrt(3) / 2, 1e-5)


def test_without_the_section_there_is_no_accountant() -> None:
    assert Accountant.of(ExperimentConfig()) is None


def test_a_limit_that_does_not_allow_one_round_is_refused() -> None:
    cost = epsilon_of(math.sqrt(5) / 2, 1e-5)  # Q = 5
    with pytest.raises(ConfigError, match=rf"target\.epsilon: got 1, but one round of 5 .* ε = {cost:.4g} .* raise it"):
        Accountant.of(config_of(target={"epsilon": 1.0}))
    accountant = Accountant.of(config_of(target={"epsilon": cost}))
    assert accountant is not None
    after = accountant.after(np.array([0]), np.ones((5, 1), dtype=bool))
    assert not after.exceeds
    assert after.after(np.array([0]), np.ones((1, 1), dtype=bool)).exceeds


def test_a_limit_without_privacy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"target\.epsilon: got 3 with privacy\.clip = null"):
        ExperimentConfig.model_validate({"target": {"epsilon": 3.0}})
