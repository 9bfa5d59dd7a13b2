"""hflray.aggregation.fedadagrad: two rounds by hand, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.fedadagrad import FedAdagrad
from tests.aggregation.updates import check


def test_two_rounds_by_hand() -> None:
    """Δ = 3 and 4: v = 9 and 25 (τ² = 1e-6 apart), so that the steps are 0.1 · 3/3 and 0.1 · 4/5."""
    aggregator = FedAdagrad()
    first, state = aggregator.step(np.array([3.0]), aggregator.start(1))
    second, _ = aggregator.step(np.array([4.0]), state)
    assert (first.item(), second.item()) == pytest.approx((0.1, 0.08), rel=1e-3)


def test_it_is_the_published_algorithm() -> None:
    def published(update, state):
        state["v"] = state.get("v", 1e-2**2) + update**2
        return 0.3 * update / (np.sqrt(state["v"]) + 1e-2)

    check(FedAdagrad(learning_rate=0.3, tau=1e-2), published)
