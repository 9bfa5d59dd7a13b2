"""Task ``clustering`` yields one result and ends."""

from __future__ import annotations

from hflray import metrics
from hflray.experiment import Experiment
from hflray.sweep.tasks import Job
from hflray.sweep.tasks.studies import ClusteringTask
from tests.conftest import small_config


def test_it_clusters_as_an_experiment_does_and_trains_no_round() -> None:
    config = small_config("scheduling.name=ikc")
    (result,) = ClusteringTask().run(Job(config))
    with Experiment(config) as experiment:
        experiment.cluster()
        assert result.metrics == experiment.summary()
    assert {metrics.CLUSTERING_ARI, metrics.CLUSTERING_DELAY_S, metrics.CLUSTERING_ENERGY_J} == set(result.metrics)
    assert (result.step, result.last, result.save) == (0, True, None)


def test_its_first_result_completes_it() -> None:
    task, config = ClusteringTask(), small_config("max_rounds=50")
    assert task.total(config) == task.steps(config) == 1
    assert task.progress(config, 0, {metrics.CLUSTERING_ARI: 0.98765}) == (1, 1, "round", "ARI 0.988")
