"""hflray.aggregation.fedavgm: two rounds by hand, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.fedavgm import FedAvgM
from hflray.errors import ConfigError
from tests.aggregation.places import combined
from tests.aggregation.updates import check


def test_two_rounds_by_hand() -> None:
    """From 1, both means are 3: Δ = 2, v = 2; then v = 0.9 · 2 + 2 = 3.8."""
    aggregator = FedAvgM()
    np.testing.assert_allclose(combined(aggregator, [[2.0], [4.0]], before=[1.0]), [3.0])
    first, state = aggregator.step(np.array([2.0]), aggregator.start(1))
    second, _ = aggregator.step(np.array([2.0]), state)
    assert (first.item(), second.item()) == pytest.approx((2.0, 3.8))


def test_it_is_the_published_algorithm() -> None:
    def published(update, state):
        state["v"] = 0.8 * state.get("v", 0.0) + update
        return 0.5 * state["v"]

    check(FedAvgM(learning_rate=0.5, momentum=0.8), published)


def test_statistics_are_those_of_the_mean() -> None:
    given = combined(FedAvgM(learning_rate=0.5), [[2.0, 7.0], [4.0, 9.0]], before=[1.0, 5.0], statistics=1)
    np.testing.assert_allclose(given, [2.0, 8.0])


@pytest.mark.parametrize("option, value", [("learning_rate", 0), ("momentum", 1.1), ("momentum", -0.1)])
def test_another_number_is_refused(option: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"aggregation\.cloud\.options\.{option}: got {value}; accepted: a number"):
        FedAvgM(**{option: value})
