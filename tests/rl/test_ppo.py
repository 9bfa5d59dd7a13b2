"""hflray.rl.ppo: the episodes that the runner plays, and what PPO reads of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from ray.rllib.core.columns import Columns

from hflray.rl.ppo import PlackettLuce, noisy, ppo_config
from hflray.rl.scheduling_env import SchedulingEnv, environment
from hflray.seeding import stream
from tests.rl.small import toy


@pytest.fixture(scope="module")
def algorithm(ray_session):  # type: ignore[no-untyped-def]
    algorithm = ppo_config(toy("agent.environments=3")).build_algo()
    yield algorithm
    algorithm.stop()


def test_the_episodes_are_those_of_the_environment(algorithm) -> None:  # type: ignore[no-untyped-def]
    """The first episode of environment 1, played again with the same actions, gives its rows and rewards."""
    episodes = algorithm.env_runner.sample()
    assert [len(episode) for episode in episodes] == [3, 3, 3]
    assert [(episode.is_terminated, episode.is_truncated) for episode in episodes] == [(False, True)] * 3
    env = SchedulingEnv(**environment(toy()))
    assert env.target == 0.99
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


SCORES = torch.tensor([1.0, 0.0, -0.5, 0.3])


def action_of(order: tuple[int, ...]) -> torch.Tensor:
    """Return an action whose largest numbers are those of the devices of `order`, in this order."""
    action = torch.full((len(SCORES),), -1.0)
    action[list(order)] = torch.linspace(0.9, 0.1, len(order))
    return action


def test_the_probability_of_a_draw_by_hand() -> None:
    weights = SCORES.exp()
    first, second = weights[2] / weights.sum(), weights[0] / (weights.sum() - weights[2])
    logp = PlackettLuce(SCORES, 2).logp(action_of((2, 0)))
    assert logp.exp().item() == pytest.approx((first * second).item(), rel=1e-6)


def test_the_probabilities_of_all_draws_add_up_to_1() -> None:
    draws = torch.stack([action_of(order) for order in itertools.permutations(range(4), 2)])
    assert PlackettLuce(SCORES.expand(12, 4), 2).logp(draws).exp().sum().item() == pytest.approx(1.0, rel=1e-6)


def test_noise_draws_with_these_probabilities() -> None:
    uniform = torch.as_tensor(np.random.default_rng(0).random((20_000, 4), dtype=np.float32))
    actions = noisy(SCORES.expand(20_000, 4), uniform)
    assert actions.abs().max() < 1
    order = actions.argsort(descending=True)[:, :2]
    for pair in ((0, 3), (2, 1)):
        share = (order == torch.tensor(pair)).all(dim=1).float().mean().item()
        expected = PlackettLuce(SCORES, 2).logp(action_of(pair)).exp().item()
        assert share == pytest.approx(expected, abs=4 * (expected / 20_000) ** 0.5)  # four standard errors


def test_extreme_uniform_numbers_give_finite_actions() -> None:
    assert torch.isfinite(noisy(torch.zeros(3), torch.tensor([0.0, 0.5, 1.0]))).all()


def test_the_entropy_is_that_of_the_first_draw() -> None:
    assert PlackettLuce(torch.zeros(2, 8), 3).entropy().tolist() == pytest.approx([np.log(8)] * 2)
