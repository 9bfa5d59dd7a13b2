"""Sampling of whole episodes, and the replay buffer of whole episodes and of single transitions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from hflray.rl.dqn import dqn_config
from hflray.rl.fleets import FleetSpec
from hflray.rl.sampling import TEACHER, WholeEpisodeReplayBuffer, whole_episode
from hflray.rl.solved_fleets import prepare
from hflray.support import checkpoint
from tests.rl.small import small

SPACES = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.spaces.Discrete(4)


def episode(number: int, length: int):
    values = np.full(length, number % 4)
    rows = np.full((length, 2), number, dtype=np.float32)
    return whole_episode(rows, values, values / 3.0, values, SPACES)


def filled(capacity: int = 100, count: int = 10) -> WholeEpisodeReplayBuffer:
    buffer = WholeEpisodeReplayBuffer(capacity, seed=5)
    buffer.add([episode(number, 3 + number) for number in range(count)])
    return buffer


def numbers(episodes) -> list[int]:
    return [int(e.observations.data[0, 0]) for e in episodes]


def test_samples_are_just_large_enough_and_uniform() -> None:
    buffer = filled()
    counts = np.zeros(10)
    for _ in range(600):
        drawn = buffer.sample(20)
        assert sum(map(len, drawn)) >= 20 > sum(map(len, drawn[:-1]))
        counts[numbers(drawn)] += 1
    share = counts / counts.sum()
    # Each draw takes every episode with equal probability, whatever its length.
    assert abs(share - 0.1).max() < 0.03


def test_single_transitions_are_drawn_uniformly() -> None:
    buffer = WholeEpisodeReplayBuffer(60, seed=5, transitions=True)
    buffer.add([episode(number, 3 + number) for number in range(10)])  # lengths 3 to 12; the first two were dropped
    held = numbers(buffer.episodes)
    lengths = np.array([3 + number for number in held])
    counts = {number: np.zeros(3 + number) for number in held}
    for _ in range(400):
        drawn = buffer.sample(50)
        assert sum(int(c.sum()) for c in drawn.counts) == 50
        assert len(set(drawn.numbers)) == len(drawn)  # each episode once
        for e, episode_counts, number in zip(drawn, drawn.counts, drawn.numbers, strict=True):
            assert numbers([e]) == [number]
            assert len(episode_counts) == len(e)
            counts[number] += episode_counts
    share = np.concatenate([counts[number] for number in held]) / (400 * 50)
    # All transitions are equally likely, whatever their episode's length.
    assert abs(share * lengths.sum() - 1).max() < 0.25
    assert buffer.sampled_timesteps == 400 * 50


def test_a_state_saved_without_pickle_continues_the_draws(tmp_path) -> None:
    buffer = filled(capacity=60)
    buffer.sample(30)
    checkpoint.save(tmp_path / "b", buffer.state_dict())
    copy = WholeEpisodeReplayBuffer(60, seed=99)
    copy.load_state_dict(checkpoint.load(tmp_path / "b"), SPACES)
    assert len(copy) == len(buffer)
    for restored, original in zip(copy.episodes, buffer.episodes, strict=True):
        for name in ("observations", "actions", "rewards"):
            assert np.array_equal(getattr(restored, name).data, getattr(original, name).data)
        assert np.array_equal(restored.extra_model_outputs[TEACHER].data, original.extra_model_outputs[TEACHER].data)
        assert restored.is_terminated
    for b in (buffer, copy):
        b.add([episode(20, 9)])
    assert [numbers(copy.sample(40)) for _ in range(4)] == [numbers(buffer.sample(40)) for _ in range(4)]
    assert (copy.sampled_timesteps, copy._num_episodes_evicted) == (
        buffer.sampled_timesteps,
        buffer._num_episodes_evicted,
    )


def test_a_buffer_is_full_at_its_capacity_and_keeps_at_least_the_last_episode() -> None:
    buffer = WholeEpisodeReplayBuffer(7)
    buffer.add([episode(0, 3), episode(1, 4)])
    assert numbers(buffer.episodes) == [0, 1]  # 3 + 4 = 7 transitions fit
    buffer.add([episode(2, 1)])
    assert numbers(buffer.episodes) == [1, 2]
    buffer.add([episode(3, 8)])
    assert numbers(buffer.episodes) == [3]  # too long, but the only one
    assert len(buffer) == 8
    assert buffer.get_num_episodes_evicted() == 3
    assert buffer.get_added_timesteps() == 3 + 4 + 1 + 8


@pytest.mark.usefixtures("ray_session", "one_thread")
def test_the_environment_gives_every_reward(tmp_path) -> None:
    config = small(tmp_path, "learning.num_scheduled=[2, 8]", "learning.environments=3")
    pool = prepare(FleetSpec.of(config), 12, config.learning.cache)
    algorithm = dqn_config(config, pool).build_algo()
    runner = algorithm.env_runner
    assert len(runner.raw) == 3
    for options, least in (({}, 3), ({"num_episodes": 5}, 5), ({"num_timesteps": 40}, 0)):
        episodes = runner.sample(**options)
        assert len(episodes) >= least
        assert sum(map(len, episodes)) >= options.get("num_timesteps", 0)
        for episode in episodes:
            correct = episode.actions.data == episode.extra_model_outputs[TEACHER].data
            assert np.array_equal(episode.rewards.data, np.where(correct, 1.0, -1.0))
            assert 2 <= len(episode) <= 8
    before = runner.generators()
    first = [e.actions.data.tolist() for e in runner.sample(random_actions=True)]
    runner.set_generators(before)
    assert [e.actions.data.tolist() for e in runner.sample(random_actions=True)] == first
    algorithm.stop()
