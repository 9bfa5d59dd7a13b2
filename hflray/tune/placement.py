"""The resources that a trial reserves in the cluster: CPUs, and GPUs if its devices train on them.

A trial's device actors reserve the resources in the trial's placement group. The trial itself and its edges reserve
nothing, so that trials queue for CPUs and GPUs instead of waiting for each other for ever. A trial that reserves half a
GPU shares the card with another trial. Several actors of a trial share a GPU if `training.num_actors` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.tasks import find_task
from hflray.training.plan import pool_size
from hflray.tune.launch import NAME, TRIAL, VALUES
from hflray.tune.nodes import check_gpus


class Placement:
    """Decide which resources every trial of a sweep reserves. It is pickled with the sweep, so it is kept small.

    Args:
        file: the sweep file.
        trials: the trials of the sweep; for a search, one trial that represents them.
        checked: the results of the checks of these trials.

    Raises:
        ConfigError: the cluster has fewer GPUs than a trial needs, or ``tune.gpus_per_trial`` is set and no trial
            trains on a GPU.
    """

    def __init__(self, file: SweepFile, trials: Sequence[Trial], checked: CheckedTrials) -> None:
        import ray

        self._file = file
        self._there = float(ray.cluster_resources().get("GPU", 0.0))  # the cluster's GPUs; pickled under this name
        self._devices = {name: config.training.device for name, config in checked.resolved.items()}
        gpu_trials = [trial for trial in trials if self._gpus(trial.config, trial.name)]
        if gpu_trials:
            check_gpus(self._gpus(gpu_trials[0].config, gpu_trials[0].name), self._there)
        elif file.tune.gpus_per_trial is not None:
            raise ConfigError(
                f"tune.gpus_per_trial: got {file.tune.gpus_per_trial:g}, but no trial trains on a GPU; set "
                "training.device to cuda, or leave tune.gpus_per_trial out"
            )

    def bundles(self, config: ExperimentConfig, name: str = "") -> list[dict[str, float]]:
        """Return the bundles of a trial: the first for the trial itself, then one for each device actor."""
        cpus, gpus = self._file.tune.cpus_per_trial, self._gpus(config, name)
        if config.training.backend == "serial" or not self._trains_devices:
            return [{"CPU": cpus} | ({"GPU": min(1.0, gpus)} if gpus else {})]
        pool = pool_size(config.training, config.scheduling.num_scheduled, cpus, gpus)
        bundle = {"CPU": pool.cpus} | ({"GPU": pool.gpus} if gpus else {})
        return [{"CPU": 0.0}, *[bundle] * pool.actors]

    def __call__(self, params: dict[str, Any]) -> Any:
        """Return the placement group of the trial with Tune's parameters."""
        from ray.tune.execution.placement_groups import PlacementGroupFactory

        start = params[TRIAL]
        return PlacementGroupFactory(self.bundles(make_trial(self._file, start[VALUES]).config, start[NAME]))

    @property
    def _trains_devices(self) -> bool:
        return find_task(self._file.task).trains_devices

    def _gpus(self, config: ExperimentConfig, name: str) -> float:
        """Return the GPUs of a trial, or 0 if it trains on CPUs. An unresolved ``auto`` uses GPUs if Ray has any."""
        device = self._devices.get(name, config.training.device)
        if not self._trains_devices or device == "cpu" or (device == "auto" and not self._there):
            return 0.0
        return self._file.tune.gpus_per_trial or 1.0
