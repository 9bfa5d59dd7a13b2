"""hflray.scheduling.ranking: the highest scores, draws by weight, and the nominal iteration by hand."""

from __future__ import annotations

import numpy as np
import pytest

from hflray.scheduling.ranking import best_edges, highest, nominal_iteration, weighted_draw
from tests.scheduling import toy


def test_the_highest_scores_and_ties_by_chance() -> None:
    devices = np.array([3, 5, 8, 9])
    assert set(highest(np.array([1.0, 4.0, 2.0, 3.0]), devices, 2, np.random.default_rng(0))) == {5, 9}
    ties = {int(highest(np.zeros(4), devices, 1, np.random.default_rng(seed))[0]) for seed in range(40)}
    assert ties == {3, 5, 8, 9}
    assert len(highest(np.zeros(4), devices, 9, np.random.default_rng(0))) == 4


def test_draws_follow_the_weights() -> None:
    devices, rng = np.arange(3), np.random.default_rng(1)
    first = [int(weighted_draw(np.array([1.0, 3.0, 0.0]), devices, 1, rng)[0]) for _ in range(4000)]
    shares = np.bincount(first, minlength=3) / 4000
    assert shares == pytest.approx([0.25, 0.75, 0.0], abs=0.03)
    assert sorted(weighted_draw(np.array([1.0, 3.0, 0.0]), devices, 3, rng).tolist()) == [0, 1, 2]


def test_the_nominal_iteration_by_hand() -> None:
    # 5 local iterations of 100 samples and 1e4 cycles at 1 GHz take 5 ms. Each of two devices gets 1e6·2/2 Hz, and a
    # signal-to-noise ratio of 3 gives 2 bits per Hz: 4e6 bits in 2 s.
    gain = 3 * 1e-18 * 1e6 / 0.1
    context = toy.context(toy.fleet([[gain, 1e-20], [1e-20, gain]]))
    delay_s, energy_j = nominal_iteration(context, 2)
    assert delay_s == pytest.approx([2.005, 2.005])
    compute_j = 2e-28 / 2 * 5 * 1e18 * 1e4 * 100
    assert energy_j == pytest.approx([compute_j + 0.2] * 2)
    assert best_edges(context).tolist() == [0, 1]
    down = toy.context(context.fleet, edges_up=[False, True])
    assert best_edges(down).tolist() == [1, 1]
    assert nominal_iteration(down, 1)[0][1] == pytest.approx(2.005)
