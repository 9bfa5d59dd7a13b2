"""hflray.aggregation.fedadam: a round by hand, and the published algorithm, which corrects no bias."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.fedadam import FedAdam
from hflray.errors import ConfigError
from tests.aggregation.updates import check


def test_a_round_by_hand() -> None:
    """m = 0.1 · 2, v = 0.99 · 1e-6 + 0.01 · 4, and no bias is corrected: the step is near 0.01 · 0.2/0.2."""
    step, state = FedAdam().step(np.array([2.0]), FedAdam().start(1))
    assert state["m"].item() == pytest.approx(0.2)
    assert state["v"].item() == pytest.approx(0.99e-6 + 0.04)
    assert step.item() == pytest.approx(0.01 * 0.2 / (np.sqrt(0.04 + 0.99e-6) + 1e-3), rel=1e-12)


def test_it_is_the_published_algorithm() -> None:
    def published(update, state):
        state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * update
        state["v"] = 0.95 * state.get("v", 1e-2**2) + 0.05 * update**2
        return 0.3 * state["m"] / (np.sqrt(state["v"]) + 1e-2)

    check(FedAdam(learning_rate=0.3, beta_1=0.8, beta_2=0.95, tau=1e-2), published)


@pytest.mark.parametrize(
    "option, value", [("learning_rate", 0), ("beta_1", 1.1), ("beta_1", -0.1), ("beta_2", -1), ("tau", 0)]
)
def test_another_number_is_refused(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"aggregation\.cloud\.options\.{option}: got {value}; accepted: a number"):
        FedAdam(**{option: value})
