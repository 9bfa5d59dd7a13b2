"""The Gymnasium environment of device assignment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hflray import ConfigError
from hflray.rl.env import ENV_ID, DeviceAssignmentEnv, open_pool
from hflray.rl.fleets import FleetSpec, assignment_objective
from hflray.rl.pool import FleetPool, prepare

SPEC = FleetSpec(num_scheduled=(3, 6), num_edges=(2, 4))
FIXED = FleetSpec(num_scheduled=(5, 5), num_edges=(3, 3))


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> FleetPool:
    return prepare(SPEC, 6, tmp_path_factory.mktemp("pool"))


@pytest.mark.filterwarnings("ignore:.*Box observation space.*:UserWarning")
@pytest.mark.parametrize("options", [{}, {"features": "paper"}, {"reward": "cost"}])
def test_the_environment_passes_gymnasiums_checker(options) -> None:
    check_env(gym.make(ENV_ID, spec=FIXED, **options).unwrapped, skip_render_check=True)
    # Without a specification the fleets are those of Table I, solved as episodes begin.
    check_env(gym.make(ENV_ID, **options).unwrapped, skip_render_check=True)


def play(env, actions=None):
    _, info = env.reset()
    observations, rewards, done = [], [], False
    while not done:
        edge = info["teacher"][len(rewards)] if actions is None else actions[len(rewards)]
        observation, reward, done, truncated, _ = env.step(edge)
        assert not truncated
        observations.append(observation)
        rewards.append(reward)
    return info, observations, np.array(rewards)


def test_observations_are_the_rows_of_the_feature_matrix(pool) -> None:
    env = DeviceAssignmentEnv(pool)
    first, info = env.reset(seed=1)
    assert np.array_equal(first, info["rows"][0])
    assert info["rows"].shape == (len(info["teacher"]), env.observation_space.shape[0])
    for t, edge in enumerate(info["teacher"]):
        row, reward, done, _, _ = env.step(edge)
        assert reward == 1.0
        assert done == (t == len(info["teacher"]) - 1)
        assert np.array_equal(row, np.zeros_like(row) if done else info["rows"][t + 1])


def test_the_teacher_reward_is_plus_or_minus_one(pool) -> None:
    env = DeviceAssignmentEnv(pool, shuffle=False, in_order=True)
    labels = pool[0].labels
    actions = labels.copy()
    actions[0] = (actions[0] + 1) % len(pool[0].problem.bandwidth)
    info, _, rewards = play(env, actions)
    assert info["fleet"] == 0
    assert rewards.tolist() == [-1.0] + [1.0] * (len(labels) - 1)


def test_the_cost_reward_adds_up_to_the_objective(pool) -> None:
    env = DeviceAssignmentEnv(pool, reward="cost")
    rng = np.random.default_rng(0)
    for _ in range(8):
        _, info = env.reset()
        solved = pool[info["fleet"]]
        h, m = len(solved.labels), len(solved.problem.bandwidth)
        actions = rng.integers(m, size=h)
        total = sum(env.step(edge)[1] for edge in actions)
        # The episode shuffles the devices. The rows identify each device; the labels could not.
        order = [int(np.flatnonzero((solved.rows("db", env.num_edges) == row).all(axis=1))[0]) for row in info["rows"]]
        assignment = np.empty(h, dtype=int)
        assignment[order] = actions
        assert -total * solved.objective / h == pytest.approx(
            assignment_objective(solved.problem, assignment), rel=1e-6
        )
    _, _, rewards = play(env)
    assert rewards.sum() == pytest.approx(-len(rewards), rel=1e-6)  # for the teacher's assignment


def test_devices_are_shuffled_together_with_their_labels(pool) -> None:
    env = DeviceAssignmentEnv(pool, shuffle=True)
    plain = pool[2].rows("db", env.num_edges)
    orders = set()
    for _ in range(10):
        _, info = env.reset(options={"fleet": 2})
        order = [int(np.flatnonzero((plain == row).all(axis=1))[0]) for row in info["rows"]]
        assert sorted(order) == list(range(len(plain)))
        assert np.array_equal(pool[2].labels[order], info["teacher"])
        orders.add(tuple(order))
    assert len(orders) > 3


def test_edges_that_a_fleet_lacks_are_masked_and_refused(pool) -> None:
    env = DeviceAssignmentEnv(pool, num_edges=6, shuffle=False)
    assert env.action_space.n == 6
    _, info = env.reset(options={"fleet": 0})
    m = len(pool[0].problem.bandwidth)
    assert info["action_mask"].tolist() == [1] * m + [0] * (6 - m)
    with pytest.raises(ConfigError, match=f"edge {m} of a fleet of {m}"):
        env.step(m)


def test_a_seed_repeats_a_fleet_unless_it_is_used_once(pool) -> None:
    def fleets(env, seeds):
        return [env.reset(seed=seed)[1]["rows"].tobytes() for seed in seeds]

    a, b = fleets(DeviceAssignmentEnv(pool), [7] * 2)
    assert a == b  # as Gymnasium requires
    # RLlib's stock runner passes one seed at every sample: without `seed_once` all its episodes would be the same.
    assert len(set(fleets(DeviceAssignmentEnv(pool, seed_once=True), [7] * 12))) > 6
    repeated = fleets(DeviceAssignmentEnv(pool, seed_once=True), [7] * 12)
    assert repeated == fleets(DeviceAssignmentEnv(pool, seed_once=True), [7] * 12)


def test_a_pools_folder_is_read_once(pool) -> None:
    one, two = DeviceAssignmentEnv(pool.folder, count=4), DeviceAssignmentEnv(str(pool.folder), count=4)
    assert one.pool is two.pool is open_pool(str(pool.folder), 4)
    assert len(one.pool) == 4


@pytest.mark.parametrize(
    "options, message",
    [
        ({"reward": "profit"}, "learning.reward: got 'profit'"),
        ({"features": "dbm"}, "unknown set 'dbm'"),
        ({"num_edges": 3}, "up to 4 edges"),
        ({"features": "paper"}, "cannot be padded"),
    ],
)
def test_bad_options_are_refused(pool, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DeviceAssignmentEnv(pool, **options)
