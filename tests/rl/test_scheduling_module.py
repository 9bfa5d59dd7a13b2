"""hflray.rl.scheduling_module: the episodes that the runner plays, and what PPO reads of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from hflray.rl.plackett_luce import PlackettLuce
from hflray.rl.scheduling_algorithm import environment, scheduling_algorithm_config
from hflray.rl.scheduling_env import SchedulingEnv
from hflray.seeding import stream
from tests.rl.test_scheduling_session import toy


@pytest.fixture(scope="module")
def algorithm(ray_session):  # type: ignore[no-untyped-def]
    algorithm = scheduling_algorithm_config(toy("agent.environments=3")).build_algo()
    yield algorithm
    algorithm.stop()


def test_the_episodes_are_those_of_the_environment(algorithm) -> None:  # type: ignore[no-untyped-def]
    """The first episode of environment 1, played again with the same actions, gives its rows and rewards."""
    episodes = algorithm.env_runner.sample()
    assert [len(episode) for episode in episodes] == [3, 3, 3]
    assert [(episode.is_terminated, episode.is_truncated) for episode in episodes] == [(False, True)] * 3
    env = SchedulingEnv(**environment(toy()))
    env.begin(stream(0, "scheduler/episodes", 0, 1))
    episode = episodes[1]
    assert np.array_equal(episode.get_observations(0), env.observation())
    for step in range(3):
        observation, reward, *_ = env.step(episode.get_actions(step))
        assert reward == pytest.approx(episode.get_rewards(step))
        assert np.array_equal(episode.get_observations(step + 1), observation)


def test_the_probabilities_are_those_of_the_network(algorithm) -> None:  # type: ignore[no-untyped-def]
    for episode in algorithm.env_runner.sample():
        rows = torch.as_tensor(np.array([episode.get_observations(step) for step in range(3)]))
        with torch.no_grad():
            scores = algorithm.network()(rows.view(3, 6, -1))
        actions = torch.as_tensor(np.array([episode.get_actions(step) for step in range(3)]))
        expected = PlackettLuce(scores, 2).logp(actions)
        saved = [float(episode.get_extra_model_outputs(Columns.ACTION_LOGP, step)) for step in range(3)]
        assert saved == pytest.approx(expected.tolist(), abs=1e-5)


def test_without_exploration_the_scores_decide(algorithm) -> None:  # type: ignore[no-untyped-def]
    episode = algorithm.env_runner.sample(explore=False)[0]
    scores = episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS, 0)
    assert np.argsort(episode.get_actions(0)).tolist() == np.argsort(scores).tolist()
