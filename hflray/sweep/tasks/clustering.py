"""Task ``clustering``: Algorithm 2 alone, for Table II. Its one result has the clustering's cost and quality."""

from __future__ import annotations

from collections.abc import Mapping

from hflray import metrics
from hflray.config import ExperimentConfig
from hflray.sweep.tasks.base import Job, Progress, Result, Results, Shown, Task


class ClusteringTask(Task):
    """Train the auxiliary models of all devices, cluster the devices, and end."""

    name = "clustering"
    consecutive = False  # its one result is step 0
    shown = Shown(counted=None, curves=False, table="clustering", figures=("clustering",))

    def run(self, job: Job) -> Results:
        """Yield the only result, which has step 0."""
        with job.make(job.config) as experiment:
            experiment.cluster()
            yield Result(0, experiment.summary(), last=True)

    def steps(self, config: ExperimentConfig) -> int:
        """Return 1: there is one result."""
        return 1

    def progress(self, config: ExperimentConfig, step: int, values: Mapping[str, float]) -> Progress:
        """Return complete progress with the adjusted Rand index."""
        return Progress(1, 1, "round", f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}")
