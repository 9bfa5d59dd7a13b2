"""hflray.experiment.grouping: Algorithm 2 in an experiment."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hflray.cost import Workload
from hflray.data.partition import majority_classes
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.experiment.grouping import adjusted_rand_index, group_devices
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.seeding import stream
from tests.conftest import refusal, small_config
from tests.models.samples import build_model


def test_more_devices_at_an_edge_than_blocks_are_refused_before_they_train() -> None:
    config = small_config("cost.access.name=ofdma", "cost.access.options.blocks=4", "scheduling.num_scheduled=4")
    with Experiment(config) as experiment:
        most = np.bincount(experiment.scenario.fleet.nearest_edges(np.arange(config.fleet.num_devices))[:, 0]).max()
        assert most > 4
        with refusal(ConfigError, "blocks: got 4", "the scheduler's clustering", f"accepted: {most} or more", "fedavg"):
            group_devices(config, experiment.scenario, experiment.work, "mini", pytest.fail)
    with Experiment(small_config("cost.access.name=ofdma", f"cost.access.options.blocks={most}")) as experiment:
        assert experiment.cluster().shape == (config.fleet.num_devices,)


@pytest.mark.parametrize("auxiliary, shape", [("mini", (1, 10, 10)), ("global", None)])
def test_the_auxiliary_model_is_trained_and_billed(auxiliary: str, shape: tuple[int, int, int] | None) -> None:
    config = small_config()
    scenario = Experiment(config).scenario
    dataset = scenario.dataset
    truth = majority_classes(scenario.parts, dataset.y_train, dataset.num_classes)
    calls = []

    def train_each(model, data, vector):  # type: ignore[no-untyped-def]
        """Return weights that reveal each device's majority class."""
        calls.append((model, data.x.shape[1:], vector))
        trained = np.tile(vector, (len(truth), 1))
        trained[:, 0] += 10 * truth
        return trained

    work = Workload.of(config, 1e6)
    grouping = group_devices(config, scenario, work, auxiliary, train_each)
    ((model, images, vector),) = calls
    module = build_model("mini" if shape else "hfl", shape or dataset.image_shape, dataset.num_classes)
    name = "mini-model" if shape else "model"
    assert model == Problem(images, dataset.num_classes, model=ModelSpec("mini" if shape else "paper_cnn"))
    assert images == (shape or dataset.image_shape)
    np.testing.assert_array_equal(vector, init_vector(module, stream(config.seed, name)))
    assert grouping.bill["ari"] == adjusted_rand_index(grouping.clusters, truth)
    assert len(np.unique(grouping.clusters)) == config.scheduling.num_clusters
    larger = group_devices(small_config("cost.model_kb=900"), scenario, work, auxiliary, train_each)
    assert (larger.bill["delay_s"] > grouping.bill["delay_s"]) == (shape is None)  # the mini model has its own z


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=14))
def test_ari_is_equation_28(labels):
    predicted, truth = map(np.array, zip(*labels, strict=True))
    s = np.zeros((2, 2))  # σ counts pairs that are apart (0) or together (1) in the prediction and in the truth
    for i, j in itertools.combinations(range(len(labels)), 2):
        s[int(predicted[i] == predicted[j]), int(truth[i] == truth[j])] += 1
    # σ_11 counts pairs together in both, σ_00 apart in both. The formula is symmetric in the other two.
    below = (s[0, 0] + s[0, 1]) * (s[0, 1] + s[1, 1]) + (s[0, 0] + s[1, 0]) * (s[1, 0] + s[1, 1])
    expected = 1.0 if below == 0 else 2 * (s[0, 0] * s[1, 1] - s[0, 1] * s[1, 0]) / below
    assert adjusted_rand_index(predicted, truth) == pytest.approx(expected, abs=1e-12)
