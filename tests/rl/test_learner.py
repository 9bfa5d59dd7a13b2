"""Episodes become the columns of a batch; test_algorithm tests the losses."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from ray.rllib.core.columns import Columns

from hflray.rl.learner import TEACHER, Drawn, EpisodesToBatch, padded
from hflray.rl.module import LENGTHS, NUMBERS
from hflray.rl.replay import whole_episode

SPACES = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32), gym.spaces.Discrete(4)


def episode(length: int, number: int):
    rows = np.arange(length * 3, dtype=np.float32).reshape(length, 3) + 100 * number
    return whole_episode(rows, np.arange(length) % 4, np.linspace(-1, 1, length), np.arange(length) % 3, SPACES)


def laid_out(episodes):
    columns = EpisodesToBatch()(rl_module=None, batch={}, episodes=episodes)
    return {name: np.stack([np.asarray(v[0]) for v in column.values()]) for name, column in columns.items()}


def test_columns_are_padded_to_the_longest() -> None:
    episodes = [episode(2, 0), episode(5, 1)]
    batch = laid_out(episodes)
    assert batch[Columns.OBS].shape == (2, 5, 3)
    assert batch[LENGTHS].tolist() == [2, 5]
    assert batch[Columns.LOSS_MASK].sum(axis=1).tolist() == [2, 5]
    for i, e in enumerate(episodes):
        n = len(e)
        np.testing.assert_array_equal(batch[Columns.OBS][i, :n], e.observations.data[:n])
        np.testing.assert_array_equal(batch[Columns.ACTIONS][i, :n], e.actions.data)
        np.testing.assert_allclose(batch[Columns.REWARDS][i, :n], e.rewards.data, rtol=1e-6)
        np.testing.assert_array_equal(batch[TEACHER][i, :n], np.arange(n) % 3)
        assert not batch[Columns.OBS][i, n:].any()
        # The last device ends the episode. Padding is terminal too, so that no value flows back from it.
        assert batch[Columns.TERMINATEDS][i].tolist() == [False] * (n - 1) + [True] * (5 - n + 1)
    assert not batch[Columns.TRUNCATEDS].any()


def test_an_episode_drawn_twice_has_two_rows() -> None:
    one = episode(3, 0)
    assert laid_out([one, one])[Columns.OBS].shape == (2, 3, 3)


def test_drawn_transitions_are_weighted_by_how_often() -> None:
    episodes = [episode(2, 0), episode(5, 1)]
    counts = [np.array([0, 3]), np.array([1, 0, 0, 2, 0])]
    batch = laid_out(Drawn(episodes, counts, [7, 9]))
    assert batch[Columns.LOSS_MASK].tolist() == [[False, True, False, False, False], [True, False, False, True, False]]
    assert batch[NUMBERS].tolist() == [7, 9]
    # RLlib's masked mean is then the mean over the six drawn transitions.
    losses = np.arange(10.0).reshape(2, 5)
    mask = batch[Columns.LOSS_MASK]
    mean = (batch["weights"] * losses)[mask].sum() / mask.sum()
    assert mean == np.float32((3 * 1 + 1 * 5 + 2 * 8) / 6)
    assert NUMBERS not in laid_out(episodes)


def test_one_device_still_has_a_time_dimension() -> None:
    batch = laid_out([episode(1, 0), episode(1, 1)])
    assert batch[Columns.OBS].shape == (2, 2, 3)
    assert batch[Columns.LOSS_MASK].tolist() == [[True, False]] * 2


def test_padding_appends_zeros() -> None:
    assert padded([1, 2], 4, np.int64).tolist() == [1, 2, 0, 0]
    assert padded(np.ones((2, 3)), 2, np.float32).shape == (2, 3)
