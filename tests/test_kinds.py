"""Data of every kind are scheduled, trained, scored and stopped at a target of their own."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hflray import metrics
from hflray.experiment import Experiment
from hflray.experiment.record import RoundRecord
from hflray.training.local import DeviceHost
from tests.conftest import small_config

KINDS = {
    "friedman1": ("model.name=mlp", metrics.R2),
    "breast_cancer": ("model.name=logistic", metrics.ACCURACY),
    "pydoc_topics": ("model={name: gru, options: {embedding: 4, hidden: 8}}", metrics.TOKEN_ACCURACY),
}


def of_kind(name: str, *overrides: str) -> list[str]:
    sizes = "data.samples_per_device=[20, 30]"
    return [f"data.name={name}", KINDS[name][0], sizes, "training.learning_rate=0.05", *overrides]


@pytest.mark.parametrize("name", KINDS)
def test_a_round_is_logged_under_the_name_of_its_metric(name: str) -> None:
    main = KINDS[name][1]
    with Experiment(small_config(*of_kind(name))) as experiment:
        record = experiment.run_round()
    logged = record.metrics()
    assert [metric for metric in metrics.MAIN if metric in logged] == [main]
    assert logged[main] == record.score
    assert math.isfinite(record.score)
    assert math.isnan(record.accuracy) == (main != metrics.ACCURACY)
    assert RoundRecord.of_state(record.state_dict()).metrics() == logged


def test_a_regression_learns_and_stops_at_its_target() -> None:
    overrides = of_kind("friedman1", "max_rounds=30", "target={metric: r2, value: 0.4}", "scheduling.name=fedavg")
    experiment = Experiment(small_config(*overrides))
    records = list(experiment)
    assert records[-1].score >= 0.4 > max(record.score for record in records[:-1])
    assert len(records) < 30
    assert experiment.summary()[metrics.ROUNDS_TO_TARGET] == len(records)


def test_a_run_stops_when_its_loss_is_low_enough() -> None:
    overrides = of_kind("friedman1", "max_rounds=30", "target={metric: test_loss, value: 0.7}")
    records = list(Experiment(small_config(*overrides)))
    assert records[-1].test_loss <= 0.7 < min(record.test_loss for record in records[:-1])


@pytest.mark.parametrize(("name", "scheduler"), zip(KINDS, ("vkc", "ikc", "ikc"), strict=True))
def test_devices_of_every_kind_are_clustered(name: str, scheduler: str) -> None:
    overrides = of_kind(name, f"scheduling.name={scheduler}", "scheduling.num_clusters=3")
    experiment = Experiment(small_config(*overrides))
    clusters = experiment.cluster()
    assert len(clusters) == len(experiment.scenario.parts)
    assert set(clusters.tolist()) == {0, 1, 2}
    assert -1 <= experiment.clustering["ari"] <= 1


def test_clusters_of_a_regression_are_the_deciles_of_its_target() -> None:
    overrides = ["data.name=friedman1", "model.name=mlp", "data.samples_per_device=[100, 100]",
                 "fleet.num_devices=30", "training.local_iterations=5", "training.learning_rate=0.05",
                 "data.majority_fraction=0.9"]  # fmt: skip
    experiment = Experiment(small_config(*overrides))
    experiment.cluster()
    assert experiment.clustering["ari"] > 0.3  # about 0 for clusters that have nothing to do with the deciles


@pytest.mark.slow
@pytest.mark.parametrize("actors", [1, 2])
@pytest.mark.parametrize("name", ["friedman1", "pydoc_topics"])
def test_every_backend_has_the_same_bits(name: str, actors: int, ray_session: None) -> None:
    def rounds(*overrides: str) -> list[tuple[str, float, float]]:
        config = small_config(*of_kind(name, "training.kernel=eager", "training.threads=1", *overrides))
        with Experiment(config) as experiment:
            return [(record.model_hash, record.score, record.test_loss) for record in experiment]

    alone = rounds("training.backend=serial")
    assert rounds("training.backend=ray", f"training.num_actors={actors}") == alone


@pytest.mark.parametrize("name", ["friedman1", "breast_cancer"])
def test_the_kernel_of_gpus_makes_the_same_steps(name: str) -> None:
    experiment = Experiment(small_config(*of_kind(name, "training.kernel=eager", "training.threads=1")))
    job, data = experiment.job(), experiment.scenario.device_data()
    alone, stacked = (
        DeviceHost(replace(job, kernel=kernel), data).train_each(experiment.global_model, range(5))
        for kernel in ("eager", "batched")
    )
    assert np.abs(alone - experiment.global_model).max() > 1e-3
    np.testing.assert_allclose(stacked, alone, rtol=1e-3, atol=1e-5)
