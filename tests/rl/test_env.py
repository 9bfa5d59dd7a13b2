"""The Gymnasium environment of device assignment."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from hflray import ConfigError
from hflray.assignment.state import assigned_objective
from hflray.rl.env import ENV_ID, DeviceAssignmentEnv, open_pool
from hflray.rl.fleets import FleetSpec
from hflray.rl.solved_fleets import FleetPool, prepare
from tests.conftest import refusals

SPEC = FleetSpec(num_scheduled=(3, 6), num_edges=(2, 4))
FIXED = FleetSpec(num_scheduled=(5, 5), num_edges=(3, 3))


@pytest.fixture(scope="module")
def pool(tmp_path_factory) -> FleetPool:
    return prepare(SPEC, 6, tmp_path_factory.mktemp("pool"))


@pytest.mark.filterwarnings("ignore:.*Box observation space.*:UserWarning")
@pytest.mark.parametrize("options", [{}, {"features": "paper"}, {"features": "paper_db"}, {"reward": "cost"}])
def test_the_environment_passes_gymnasiums_checker(options) -> None:
    check_env(gym.make(ENV_ID, spec=FIXED, **options).unwrapped, skip_render_check=True)
    # Without a specification the fleets are those of Table I, solved as episodes begin.
    check_env(gym.make(ENV_ID, **options).unwrapped, skip_render_check=True)


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


def test_a_pools_folder_is_read_once(pool) -> None:
    one, two = DeviceAssignmentEnv(pool.folder, count=4), DeviceAssignmentEnv(str(pool.folder), count=4)
    assert one.pool is two.pool is open_pool(str(pool.folder), 4)
    assert len(one.pool) == 4


@pytest.mark.parametrize("options, message", refusals("rl/env"))
def test_bad_options_are_refused(pool, options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        DeviceAssignmentEnv(pool, **options)


def test_fleets_without_a_pool_are_numbered_up_to_two_to_the_31() -> None:
    env = DeviceAssignmentEnv(spec=FIXED, shuffle=False)
    numbers = [env.reset(seed=3)[1]["fleet"], *(env.reset()[1]["fleet"] for _ in range(11))]
    assert len(set(numbers)) == 12
    assert 2**30 < max(numbers) < 2**31
    assert np.array_equal(env.reset(seed=3)[1]["rows"], FIXED.solve(numbers[0]).rows("db", 3))


def test_the_spaces_are_those_of_the_rows_and_edges(pool) -> None:
    env = DeviceAssignmentEnv(pool)
    assert env.action_space == gym.spaces.Discrete(4)  # the largest fleet has four edges
    assert env.observation_space == gym.spaces.Box(-np.inf, np.inf, (4 * 9 + 8,), np.float32)
    paper = DeviceAssignmentEnv(spec=FIXED, features="paper")
    assert paper.observation_space == gym.spaces.Box(0.0, 1.0, (3 + 3,), np.float32)  # scaled to [0, 1]
    assert DeviceAssignmentEnv(pool, num_edges=4).num_edges == 4


def test_edges_that_a_fleet_lacks_are_masked_and_refused_and_change_nothing(pool) -> None:
    env = DeviceAssignmentEnv(pool, num_edges=6, shuffle=False)
    assert env.action_space.n == 6
    _, info = env.reset(options={"fleet": 1})
    m = len(pool[1].problem.bandwidth)
    assert info["action_mask"].tolist() == [1] * m + [0] * (6 - m)
    for bad in (-1, m):
        with pytest.raises(ConfigError, match=f"action: edge {bad} of a fleet of {m} edges; accepted: 0 to {m - 1}$"):
            env.step(bad)
    row, reward, *_ = env.step(info["teacher"][0])
    assert np.array_equal(row, info["rows"][1])
    assert reward == 1.0


def test_the_cost_reward_of_each_device_is_what_it_adds_to_the_objective(pool) -> None:
    env = DeviceAssignmentEnv(pool, reward="cost", shuffle=False)
    env.reset(options={"fleet": 3})
    solved = pool[3]
    h, m = len(solved.labels), len(solved.problem.bandwidth)
    actions = [t % m for t in range(h)]
    before = 0.0
    for t, edge in enumerate(actions):
        reward = env.step(edge)[1]
        # The devices after t have no edge yet (-1), so that only their hops to the cloud are paid.
        assignment = np.array([*actions[: t + 1], *[-1] * (h - t - 1)])
        after = assigned_objective(solved.problem, assignment)
        assert reward == pytest.approx((before - after) * h / solved.objective, rel=1e-9)
        before = after
