"""The published server algorithms, written plainly, beside the aggregators of the cloud in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hflray.aggregation import OfUpdate

ROUNDS = np.random.default_rng(5).normal(scale=0.1, size=(6, 4))  # the mean updates Δ of six rounds


def check(aggregator: OfUpdate, published: Callable[[np.ndarray, dict[str, np.ndarray]], np.ndarray]) -> None:
    """Compare the steps with those of `published`, which changes its own state in place, to 1e-12."""
    state, theirs = aggregator.start(4), {}
    for update in ROUNDS:
        before = {name: value.copy() for name, value in state.items()}
        change, following = aggregator.step(update, state)
        for name, value in before.items():
            np.testing.assert_array_equal(state[name], value)  # a repeated round begins with the same state
        np.testing.assert_allclose(change, published(update, theirs), rtol=1e-12, atol=1e-12)
        state = following
