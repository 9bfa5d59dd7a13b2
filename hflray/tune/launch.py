"""What a trial is started with: the parameters that Ray Tune hands to its function, and its resources.

The parameters are ``{"trial": {"name", "values", "last", "adopted"}}``. Tune is started anew at each start of a sweep,
so that they say all that a trial needs to go on: it continues from its newest whole checkpoint that is not after
``last`` and, if it has ``adopted`` a state, after that one's round. Without such a checkpoint it continues from the
adopted state, or begins with round 1.

The resources are CPUs, and GPUs if its devices train on them. A trial's device actors reserve them in the trial's
placement group. The trial itself and its edges reserve nothing, so that trials queue for CPUs and GPUs instead of
waiting for each other for ever. A trial that reserves half a GPU shares the card with another trial. Several actors of
a trial share a GPU if `training.num_actors` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.tune.execution.placement_groups import PlacementGroupFactory

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.sweep.tasks import find_task
from hflray.training.plan import pool_size
from hflray.tune.nodes import check_resources

if TYPE_CHECKING:
    from hflray.sweep.preflight import CheckedTrials

TRIAL = "trial"  # the only key of Tune's parameters, whose value has the following keys
NAME = "name"
VALUES = "values"  # the swept values by dotted key
LAST = "last"  # the last round in the trial's journal, 0 if there is none
ADOPTED = "adopted"  # [trial, round] of the state that a member of a population adopted last, or None

Write = Callable[[str, Mapping[str, Any]], None]  # writes a line into the journal of a trial; raises OSError


def parameters(
    name: str, values: Mapping[str, Any], last: int = 0, adopted: tuple[str, int] | None = None
) -> dict[str, Any]:
    """Return Tune's parameters of a trial."""
    return {TRIAL: {NAME: name, VALUES: dict(values), LAST: last, ADOPTED: None if adopted is None else list(adopted)}}


def name_of(trial: Any) -> str:
    """Return the name of one of Tune's trials."""
    return str(trial.config[TRIAL][NAME])


class Unsaved:
    """A part of Tune of which Tune's files get nothing but an empty text.

    Tune pickles its searcher and its scheduler when it starts. Nothing reads these pickles, and a journal with its
    connections could not be pickled.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ()


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
        self._file = file
        self._cluster_gpus = float(ray.cluster_resources().get("GPU", 0.0))
        self._devices = {name: config.training.device for name, config in checked.resolved.items()}
        gpu_trials = [trial for trial in trials if self._gpus(trial.config, trial.name)]
        if gpu_trials:
            needed = self._gpus(gpu_trials[0].config, gpu_trials[0].name)
            check_resources("tune.gpus_per_trial", "GPU", needed, self._cluster_gpus)
        elif file.tune.gpus_per_trial is not None:
            raise ConfigError(
                f"tune.gpus_per_trial: got {file.tune.gpus_per_trial:g}, but no trial trains on a GPU; set "
                "training.device to cuda, or leave tune.gpus_per_trial out"
            )

    def bundles(self, config: ExperimentConfig, name: str = "") -> list[dict[str, float]]:
        """Return the bundles of a trial: the first for the trial itself, then one for each device actor."""
        cpus, gpus = self._file.tune.cpus_per_trial, self._gpus(config, name)
        if config.training.backend == "serial" or not find_task(self._file.task).trains_devices:
            return [{"CPU": cpus} | ({"GPU": min(1.0, gpus)} if gpus else {})]
        pool = pool_size(config.training, config.scheduling.num_scheduled, cpus, gpus)
        bundle = {"CPU": pool.cpus} | ({"GPU": pool.gpus} if gpus else {})
        return [{"CPU": 0.0}, *[bundle] * pool.actors]

    def __call__(self, params: dict[str, Any]) -> Any:
        """Return the placement group of the trial with Tune's parameters."""
        start = params[TRIAL]
        return PlacementGroupFactory(self.bundles(make_trial(self._file, start[VALUES]).config, start[NAME]))

    def _gpus(self, config: ExperimentConfig, name: str) -> float:
        """Return the GPUs of a trial, or 0 if it trains on CPUs. An unresolved ``auto`` uses GPUs if Ray has any."""
        device = self._devices.get(name, config.training.device)
        on_cpus = device == "cpu" or (device == "auto" and not self._cluster_gpus)
        if on_cpus or not find_task(self._file.task).trains_devices:
            return 0.0
        return self._file.tune.gpus_per_trial or 1.0
