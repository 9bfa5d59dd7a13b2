"""hflray.aggregation.fedyogi: the sign by hand, and the published algorithm."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.aggregation.fedyogi import FedYogi
from tests.aggregation.updates import check


def test_the_second_moment_moves_towards_the_squares_by_hand() -> None:
    """Δ² = 4 is above v = 1 and adds 0.04; Δ² = 0.25 is below it and takes away 0.0025."""
    given = FedYogi().second(np.array([1.0, 1.0, 1.0]), np.array([4.0, 0.25, 1.0]))
    assert given == pytest.approx([1.04, 0.9975, 1.0])


def test_it_is_the_published_algorithm() -> None:
    def published(update, state):
        v = state.get("v", np.full(4, 1e-1**2))
        state["m"] = 0.8 * state.get("m", 0.0) + 0.2 * update
        state["v"] = v - 0.05 * update**2 * np.sign(v - update**2)
        return 0.3 * state["m"] / (np.sqrt(state["v"]) + 1e-1)

    check(FedYogi(learning_rate=0.3, beta_1=0.8, beta_2=0.95, tau=1e-1), published)
