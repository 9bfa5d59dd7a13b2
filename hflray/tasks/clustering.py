"""Task ``clustering``: Algorithm 2 alone, for Table II; one result: what the clustering costs and how good it is."""

from __future__ import annotations

from collections.abc import Mapping

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.tasks.base import Job, Progress, Result, Results, Shown, Task


class ClusteringTask(Task):
    """Trains the auxiliary models of all devices, clusters them, and ends."""

    name = "clustering"
    shown = Shown(counted=None, curves=False, table="clustering", figures=("clustering",))

    def run(self, job: Job) -> Results:
        """Yield the only result, step 0."""
        with job.make(job.config) as experiment:
            experiment.cluster()
            yield Result(0, experiment.summary(), last=True)

    def steps(self, config: ExperimentConfig) -> int:
        """One."""
        return 1

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> Progress:
        """All of it, and the adjusted Rand index."""
        return Progress(1, 1, "round", f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}")
