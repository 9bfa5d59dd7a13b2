"""Sampling of whole episodes; test_algorithm tests exploration and seeds."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.core.columns import Columns

from hflray.rl.algorithm import algorithm_config
from hflray.rl.fleets import FleetSpec
from hflray.rl.module import LENGTHS, TEACHER
from hflray.rl.runner import batch_of
from hflray.rl.solved_fleets import prepare
from tests.rl.small import small


def test_rows_of_several_fleets_form_one_padded_batch() -> None:
    rows = [np.full((n, 2), n, dtype=np.float32) for n in (3, 1)]
    batch = batch_of(rows)
    assert batch[LENGTHS].tolist() == [3, 1]
    assert batch[Columns.OBS].shape == (2, 3, 2)
    assert batch[Columns.OBS][1, 1:].abs().max() == 0
    assert batch[Columns.OBS][1, 0].tolist() == [1, 1]


@pytest.mark.usefixtures("ray_session")
def test_the_environment_gives_every_reward(tmp_path) -> None:
    config = small(tmp_path, "learning.num_scheduled=[2, 8]", "learning.environments=3")
    pool = prepare(FleetSpec.of(config), 12, config.learning.cache)
    algorithm = algorithm_config(config, pool).build_algo()
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
