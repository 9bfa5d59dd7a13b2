"""The replay buffer of whole episodes and of single transitions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from hflray import checkpoint
from hflray.rl.learner import TEACHER
from hflray.rl.replay import WholeEpisodeReplayBuffer, whole_episode

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


def test_an_episode_holds_each_row_once() -> None:
    finished = episode(7, 4)
    assert len(finished) == 4
    assert finished.is_terminated
    assert finished.observations.data.shape == (5, 2)
    assert not finished.observations.data[4].any()
    assert finished.get_return() == 4 * 3 / 3.0
    assert finished.extra_model_outputs[TEACHER].data.tolist() == [3] * 4


def test_the_oldest_episodes_are_dropped_first() -> None:
    buffer = filled(capacity=30)
    assert numbers(buffer.episodes) == [8, 9]  # 11 + 12 transitions; 10 more would make 33
    assert len(buffer) == buffer.get_num_timesteps() == 23
    one = WholeEpisodeReplayBuffer(2)
    one.add([episode(0, 9)])
    assert len(one) == 9  # an episode is not cut


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


def test_the_seed_decides_the_samples() -> None:
    one, two, other = filled(), filled(), WholeEpisodeReplayBuffer(100, seed=6)
    other.add(list(filled().episodes))
    first, second, third = ([numbers(b.sample(30)) for _ in range(5)] for b in (one, two, other))
    assert first == second != third


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


def test_an_empty_buffer_has_a_state(tmp_path) -> None:
    checkpoint.save(tmp_path / "b", WholeEpisodeReplayBuffer(10).state_dict())
    copy = WholeEpisodeReplayBuffer(10)
    copy.load_state_dict(checkpoint.load(tmp_path / "b"), SPACES)
    assert len(copy) == 0
