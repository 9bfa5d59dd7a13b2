"""Settings of the assigner's training that contradict each other are refused."""

from __future__ import annotations

import pytest

from hflray.config import ExperimentConfig, load_config, validate
from hflray.errors import ConfigError
from tests.config.mistake import line_of


def test_only_one_setting_paces_the_updates():
    message = line_of("learning.update_every=1", "learning.training_intensity=4")
    assert all(w in message for w in ("learning", "update_every = 1", "training_intensity = 4", "one of", "remove"))
    assert "both are null" in line_of("learning.training_intensity=null")
    by_step = load_config(overrides=["learning.update_every=2"])
    assert (by_step.learning.update_every, by_step.learning.training_intensity) == (2, None)
    # A saved configuration has all keys and loads again. So does one saved by a version without update_every.
    for config in (by_step, load_config(), load_config(overrides=["learning.training_intensity=16"])):
        tree = config.model_dump(mode="json")
        assert validate(ExperimentConfig, tree) == config
    del tree["learning"]["update_every"]
    assert validate(ExperimentConfig, tree).learning.training_intensity == 16
    assert load_config().learning.training_intensity == 4.0


@pytest.mark.parametrize(
    "override, words",
    [
        ("fleet.edge_bandwidths_mhz=[1, 2]", ["edge_bandwidths_mhz: 2 values for num_edges = 5", "one for each edge"]),
        ("fleet.edge_bandwidths_mhz=[1, 2, 0, 1, 1]", ["fleet.edge_bandwidths_mhz", "above 0, one for each edge"]),
        ("learning.teacher.name=hefl", ["learning.teacher.name", "unknown assigner 'hefl'", "did you mean 'hfel'"]),
        ("learning.num_edges=[2, 8]", ["num_edges: got [2, 8] for the bilstm network", "architecture: shared"]),
        ("learning.num_scheduled=[0, 8]", ["learning.num_scheduled", "above 0"]),
        ("learning={architecture: shared, features: paper}", ["needs each edge's bandwidth", "features: db"]),
        ("learning.td=0", ["td, ce: both weights are 0"]),
        ("learning.minutes=null", ["minutes, env_steps: both are null"]),
        ("learning.epsilon=[1, 2]", ["learning.epsilon", "from 0 to 1"]),
        ("learning.model_kb=[]", ["learning.model_kb", "a list of numbers above 0"]),
        ("learning.reward=profit", ["learning.reward: got 'profit'", "'teacher' or 'cost'"]),
    ],
)
def test_impossible_learning_settings_are_refused(override, words):
    with pytest.raises(ConfigError) as error:
        load_config(None, [override])
    for word in words:
        assert word in str(error.value)
