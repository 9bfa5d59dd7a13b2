"""A trial of a sweep: an `Experiment` (or another task) in a process of Tune's, reporting and saving every round."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector

from hflray import checkpoint
from hflray.config import ExperimentConfig
from hflray.errors import ConfigError, HflrayError, WorkerLostError
from hflray.experiment import Experiment
from hflray.preflight import data_key
from hflray.provenance import differences, release
from hflray.record import RoundRecord
from hflray.scenario import Scenario
from hflray.study import run_study
from hflray.sweep import SweepFile, make_trial
from hflray.tune.learning import train_trial
from hflray.tune.live import LiveTrial
from hflray.tune.population import score
from hflray.tune.shared import share
from hflray.tune.stopping import asked

WORST = 1e12  # what a search is told of a trial without its metric
DETAILED_DEVICES = 10_000  # fleets up to which every round's schedule is kept: a line of the journal stays under 1 MB
NAME = "name"  # rides along with the values of a trial; no key of the configuration is called so


def trial_config(sweep: SweepFile, params: dict[str, Any]) -> ExperimentConfig:
    """The configuration of the trial with Tune's parameters ``{"values": {dotted key: value}}``."""
    return make_trial(sweep, {key: value for key, value in params["values"].items() if key != NAME}).config


def trial_name(sweep: SweepFile, params: dict[str, Any], trial_id: str) -> str:
    """The name of the trial with Tune's parameters; a search makes its own trials, of which two may be named alike."""
    values = dict(params["values"])
    return str(values.pop(NAME, "")) or f"{make_trial(sweep, values).name}-{trial_id.rpartition('_')[2]}"


@dataclass(frozen=True)
class Job:
    """What a task gets: the sweep, Tune's parameters, the trial's configuration, and what the driver knows already.

    Attributes:
        sweep, params, config: see above.
        datasets: references to the data sets, by `data_key`; the driver has loaded each once.
        known: what was measured in the driver (``training.kernel`` and the like).
    """

    sweep: SweepFile
    params: dict[str, Any]
    config: ExperimentConfig
    datasets: dict[Any, Any]
    known: dict[str, Any]

    def experiment(self) -> Experiment:
        """The trial's experiment."""
        import ray

        source = self.datasets.get(data_key(self.config))
        if source is None:  # no data is needed, or the trial's node loads it
            scenario = Scenario.build(self.config)
        else:
            scenario = Scenario.build(self.config, dataset=ray.get(source))
            scenario = replace(scenario, share=partial(share, source))
        # The driver has decided on GPUs and measured the pool on them: what it reserved tells.
        group = ray.util.get_current_placement_group()
        holding = [bundle["GPU"] for bundle in group.bundle_specs if bundle.get("GPU")] if group else []
        settled = dict(self.known)
        if holding and self.config.training.backend == "ray":
            settled |= {"num_actors": len(holding), "devices_per_actor": None}
        return Experiment(
            self.config, scenario, cpus=self.sweep.tune.cpus_per_trial, gpus=sum(holding, 0.0), settled=settled
        )


def run_trial(
    params: dict[str, Any],
    file: dict[str, Any],
    datasets: dict[Any, Any],
    settled: dict[str, dict[str, Any]] | None = None,
    expected: dict[str, str] | None = None,
) -> None:
    """What Tune runs: the trial with the values ``params["values"]`` of the sweep `file`.

    Args:
        params, file: see above.
        datasets: references to the data sets, by `data_key`; the driver has loaded each once.
        settled: by trial, what was measured in the driver (``training.kernel`` and the like).
        expected: the driver's `release`; a node that joined later may run another one.

    A mistake or a diverged model is reported as a result, ``{"error": …}``: trying again would end the same way. What
    a lost process or actor raises is left to Tune, which starts the trial again from its last checkpoint.
    """
    from ray import tune

    # The process serves the next trial too; this one's last calls are given time to end first.
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")
    sweep = SweepFile.model_validate(file)
    known = (settled or {}).get(str(params["values"].get(NAME, "")), {})
    try:
        if expected is not None and (what := differences(expected, release())):
            raise HflrayError(f"node {platform.node()} runs {what}; run cluster/setup_node.sh there, then --resume")
        TASKS[sweep.task](Job(sweep, params, trial_config(sweep, params), datasets, known))
    except WorkerLostError:
        raise
    except HflrayError as error:
        tune.report({"round": -1, "metrics": {}, "error": str(error)})


def _rounds(job: Job) -> None:
    """Task experiment."""
    from ray import tune

    with job.experiment() as experiment:
        note, first, context = _restore(experiment, job.sweep), True, tune.get_context()
        name = trial_name(job.sweep, job.params, context.get_trial_id())
        live = LiveTrial(context.get_experiment_name(), name, experiment)
        for record in experiment:
            live.round(record)
            _report(experiment, record, note, job.sweep, first)
            note, first = None, False


def _clustering(job: Job) -> None:
    """Task clustering: Algorithm 2 alone."""
    from ray import tune

    with job.experiment() as experiment:
        experiment.cluster()
        tune.report({"round": 0, "metrics": experiment.summary()})


def _study(job: Job) -> None:
    """Task assignment: no training; a result for each fleet."""
    from ray import tune

    for fleet in run_study(job.config):
        tune.report({"round": fleet.fleet, "metrics": fleet.metrics()})


def _learning(job: Job) -> None:
    """Task train_assigner: Algorithm 5."""
    train_trial(job.config, job.sweep.tune.cpus_per_trial)


TASKS: dict[str, Callable[[Job], None]] = {
    "experiment": _rounds,
    "clustering": _clustering,
    "assignment": _study,
    "train_assigner": _learning,
}


def _restore(experiment: Experiment, sweep: SweepFile) -> str | None:
    """Go on from Tune's checkpoint, if there is one; a damaged one is passed over for the one before, with a note.

    In a population it may be another trial's, and was made with other settings; that is noted as well.
    """
    from ray import tune

    latest = tune.get_checkpoint()
    if latest is None:
        return None
    system, (parent, _, newest) = latest.filesystem, str(latest.path).rpartition("/")
    names = [info.base_name for info in system.get_file_info(FileSelector(parent, allow_not_found=True))]
    older = sorted((name for name in names if name.startswith("checkpoint_") and name < newest), reverse=True)
    mutable = tuple(sweep.sweep) if sweep.tune.population is not None else ()
    said: list[str] = []
    for name in (newest, *older):
        try:
            with tune.Checkpoint(f"{parent}/{name}", system).as_directory() as folder:  # fetched, if not on this disk
                experiment.load_state_dict(checkpoint.load(Path(folder) / "state"), may_change=mutable)
            if experiment.changes and experiment.changes[-1]["after_round"] == experiment.round:
                change = experiment.changes[-1]
                change["from"] = str(parent).rpartition("/")[2]
                what = ", ".join(f"{key} {old:g} → {new:g}" for key, (old, new) in change["changed"].items())
                said.append(f"takes over {change['from']} after round {experiment.round}, with {what}")
                return "; ".join(said)
            return "; ".join([*said, f"going on after round {experiment.round}"]) if said else None
        except (ConfigError, OSError) as error:
            said.append(str(error))
    return "; ".join([*said, "starting from round 1"])


def _report(experiment: Experiment, record: RoundRecord, note: str | None, sweep: SweepFile, first: bool) -> None:
    from ray import tune

    search, population = sweep.tune.search, sweep.tune.population

    values = record.metrics() | (experiment.summary() if experiment.finished else {})
    result = {"round": record.round, "metrics": values, "model_hash": record.model_hash}
    if note:
        result["note"] = note
    if experiment.config.fleet.num_devices <= DETAILED_DEVICES:
        result["schedule"] = record.schedule()
        if first:
            result["devices"] = experiment.devices()
    if search is not None:  # it needs a number even of a trial that never reached its target
        result["search"] = values.get(search.metric, WORST if search.mode == "min" else -WORST)
    if population is not None:
        result |= {"changes": experiment.changes, **score(experiment, record, population)}
    every = experiment.config.checkpoint.every
    due = every and (not record.round % every or experiment.finished or asked(tune.get_context().get_experiment_name()))
    if not due:
        tune.report(result)
        return
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "state", experiment.state_dict())
        tune.report(result, checkpoint=tune.Checkpoint.from_directory(folder))
