"""hflray/Scheduling-v0: Gymnasium's checker, observations and rewards by hand, and schedulers in the agent's place."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hflray.allocation import allocate_round
from hflray.cost import round_cost
from hflray.errors import ConfigError
from hflray.rl.scheduling_env import ENV_ID, LearningCurve, SchedulingEnv

SMALL = {"num_devices": 8, "num_edges": 2, "num_scheduled": 3, "num_classes": 4}


@pytest.mark.parametrize("reward", ["cost", "accuracy_per_joule"])
def test_the_environment_passes_gymnasiums_checker(reward: str) -> None:
    env = gym.make(ENV_ID, reward=reward, **SMALL)
    check_env(env.unwrapped, skip_render_check=True)


def test_the_best_scores_train_at_the_exact_bill() -> None:
    env = SchedulingEnv(**SMALL)
    env.reset(seed=1)
    scores = np.array([0.1, -0.5, 0.9, 0.2, 0.2, -1.0, 0.2, 0.8], dtype=np.float32)
    _, reward, ended, cut, info = env.step(scores)
    devices = np.array([2, 3, 7])  # the lowest index of the three with 0.2
    assert np.flatnonzero(env.history.participation).tolist() == devices.tolist()
    edges = env.history.edge_of[devices]
    cost = round_cost(env.fleet, env.work, devices, edges, allocate_round(env.fleet, env.work, devices, edges))
    assert info["objective"] == cost.objective
    assert info["energy_j"] == cost.energy_j
    assert reward == pytest.approx(-cost.objective / env._unit_objective)
    assert not ended
    assert not cut


def test_the_other_reward_is_accuracy_per_joule() -> None:
    env = SchedulingEnv(reward="accuracy_per_joule", **SMALL)
    env.reset(seed=1)
    _, first, *_, info = env.step(np.zeros(8, dtype=np.float32))
    assert first == pytest.approx(100 * info["accuracy"] * env._unit_j / info["energy_j"])
    _, second, *_ = env.step(np.zeros(8, dtype=np.float32))  # the same devices again teach less
    assert 0 < second < first


def test_an_observation_by_hand() -> None:
    env = SchedulingEnv(**SMALL)
    rows = env.reset(seed=3)[0].reshape(8, 10)
    assert rows[:, 3:6].tolist() == [[0.0, 0.0, 0.0]] * 8
    assert rows[:, :3].mean(axis=0) == pytest.approx(np.zeros(3), abs=1e-6)
    assert rows[:, 6:].sum(axis=1) == pytest.approx(np.ones(8))
    assert np.bincount(rows[:, 6:].argmax(axis=1), minlength=4).tolist() == [2] * 4  # majority classes are dealt evenly
    for _ in range(2):
        observation, *_, info = env.step(env.scores_of(np.array([0, 1, 2])))
    rows = observation.reshape(8, 10)
    assert rows[:, 3].tolist() == [1.0] * 3 + [0.0] * 5
    assert rows[:, 4] == pytest.approx([0.0] * 3 + [0.2] * 5)
    assert rows[:, 5] == pytest.approx(info["accuracy"] / env.target)


def test_an_episode_ends_at_the_target_and_is_cut_off_at_the_last_round() -> None:
    quick = SchedulingEnv(curve=LearningCurve(1.0, 0.01, 1.0, 0.0), **SMALL)
    quick.reset(seed=0)
    assert quick.step(np.zeros(8, dtype=np.float32))[2:4] == (True, False)
    slow = SchedulingEnv(max_rounds=2, **SMALL)
    slow.reset(seed=0)
    assert [slow.step(np.zeros(8, dtype=np.float32))[2:4] for _ in range(2)] == [(False, False), (False, True)]


@pytest.mark.parametrize("options", [{"reward": "teacher"}, {"num_scheduled": 9}])
def test_options_that_mean_nothing_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SchedulingEnv(**(SMALL | options))


def test_the_accuracy_of_two_rounds_by_hand() -> None:
    """The accuracy is A · c^γ · (1 − exp(−(x/τ)^κ)) after balances of x in all, by devices that hold a share c."""
    curve = LearningCurve(best=0.9, pace=2.0, shape=1.0, breadth=0.5)
    assert curve.accuracy(2.0, 0.25) == pytest.approx(0.9 * 0.5 * (1 - np.exp(-1)))
    assert curve.accuracy(0.0, 0.0) == 0
    env = SchedulingEnv(curve=curve, **SMALL)
    env.reset(seed=4)
    env.num_scheduled, env.observation = 2, lambda: np.zeros(1, dtype=np.float32)  # the rows have four classes
    env.class_counts = np.array([[10, 0], [0, 10], [30, 0], [0, 10], *[[0, 0]] * 4])
    for devices, balance, coverage in (([0, 1], 1.0, 20 / 60), ([0, 2], 1.0, 50 / 60)):  # then one class only
        *_, info = env.step(env.scores_of(np.array(devices)))
        assert env.balance == pytest.approx(balance)
        assert info["accuracy"] == curve.accuracy(balance, coverage)
