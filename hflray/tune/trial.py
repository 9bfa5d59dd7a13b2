"""A trial of a sweep runs a task in a process of Tune, reports its results, and saves its state when that is due."""

from __future__ import annotations

import os
import platform
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, FileType

from hflray.config import ExperimentConfig
from hflray.errors import HflrayError, WorkerLostError
from hflray.experiment import Experiment
from hflray.experiment.scenario import Scenario, data_key
from hflray.support import references
from hflray.support.files import disk_failure
from hflray.support.provenance import differences, release
from hflray.sweep import SweepFile, make_trial
from hflray.sweep.tasks import Job, Result, Saved, find_task
from hflray.tune.disk_pause import Room
from hflray.tune.live import LiveTrial
from hflray.tune.lost_state import worst
from hflray.tune.mending import SALVAGED
from hflray.tune.population import score
from hflray.tune.shared_data import share
from hflray.tune.stopping import stop_requested

NAME = "name"  # the key of a trial's name among its values; no key of the configuration has this name


def trial_config(sweep: SweepFile, params: dict[str, Any]) -> ExperimentConfig:
    """Return the configuration of the trial with Tune's parameters ``{"values": {dotted key: value}}``."""
    return make_trial(sweep, {key: value for key, value in params["values"].items() if key != NAME}).config


def trial_name(sweep: SweepFile, params: dict[str, Any], trial_id: str) -> str:
    """Return the name of the trial with Tune's parameters. A search may draw equal values, so its names get an id."""
    values = dict(params["values"])
    return str(values.pop(NAME, "")) or f"{make_trial(sweep, values).name}-{trial_id.rpartition('_')[2]}"


def trial_experiment(
    config: ExperimentConfig, sweep: SweepFile, datasets: dict[Any, Any], measured: dict[str, Any]
) -> Experiment:
    """Make a trial's experiment in the trial's process.

    Args:
        config: the trial's configuration.
        sweep: the sweep file of the trial.
        datasets: Ray references to the data sets, by `data_key`; the driver has loaded each once.
        measured: settings of `training` that the driver has measured, such as the kernel.
    """
    import ray

    source = datasets.get(data_key(config))
    if source is None:  # the trial needs no data, or its own node loads them
        scenario = Scenario.build(config)
    else:
        scenario = Scenario.build(config, dataset=ray.get(source))
        scenario = replace(scenario, share=partial(share, source))
    # The driver has chosen the GPUs and the number of actors on them; both follow from the bundles that it reserved.
    group = ray.util.get_current_placement_group()
    holding = [bundle["GPU"] for bundle in group.bundle_specs if bundle.get("GPU")] if group else []
    settled = dict(measured)
    if holding and config.training.backend == "ray":
        settled |= {"num_actors": len(holding), "devices_per_actor": None}
    cpus, gpus = sweep.tune.cpus_per_trial, sum(holding, 0.0)
    return Experiment(config, scenario, cpus=cpus, gpus=gpus, settled=settled, keep_actors=sweep.tune.reuse)


def run_trial(
    params: dict[str, Any],
    file: dict[str, Any],
    datasets: dict[Any, Any],
    settled: dict[str, dict[str, Any]] | None = None,
    expected: dict[str, str] | None = None,
    room: Room | None = None,
    sources: tuple[references.Source, ...] = (),
) -> None:
    """Run the trial with the values ``params["values"]`` of the sweep `file`. This is the function that Tune calls.

    A mistake, also one in a file of the user's own, or a diverged model is reported as a result, ``{"error": …}``,
    because another attempt would fail in the same way. An error from a lost process or actor reaches Tune, which
    restarts the trial from its last checkpoint. A disk that is full or fails ends the sweep: the trial tells the
    driver, and waits for its end.

    Args:
        params: Tune's parameters of the trial.
        file: the contents of the sweep file.
        datasets: Ray references to the data sets, by `data_key`; the driver has loaded each once.
        settled: settings of `training` that the driver has measured, such as the kernel, by the trial's name.
        expected: the driver's `release`. A node that joined later may run another one.
        room: the disks at whose reserve the trial pauses; None: it never pauses.
        sources: the texts behind the sweep's references.
    """
    from ray import cloudpickle, tune

    references.adopt(sources)
    references.pickle_by_value(cloudpickle.register_pickle_by_value)

    # The next trial reuses this process, so the last calls of this trial get time to end first.
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")
    sweep = SweepFile.model_validate(file)
    measured = (settled or {}).get(str(params["values"].get(NAME, "")), {})
    try:
        if expected is not None and (difference := differences(expected, release())):
            raise HflrayError(
                f"node {platform.node()} runs {difference}; run cluster/setup_node.sh there, then --resume"
            )
        config = trial_config(sweep, params)
        every, name = config.checkpoint.every, tune.get_context().get_experiment_name()
        job = Job(
            config,
            cpus=sweep.tune.cpus_per_trial,
            saved=_saved(),
            mutable=tuple(sweep.sweep) if sweep.tune.population is not None else (),
            make=lambda config: trial_experiment(config, sweep, datasets, measured),
            watch=lambda experiment: LiveTrial(name, trial_name(sweep, params, trial_id()), experiment).round,
        )
        with closing(find_task(sweep.task).run(job)) as results:
            for result in results:
                if room is not None:
                    room.wait(trial_id())
                saves = result.save is not None and (result.due or (bool(every) and stop_requested(name)))
                _report(result, sweep, saves)
    except WorkerLostError:
        raise
    except Exception as error:
        failure = disk_failure(error)
        if failure is not None and room is not None:
            room.fail(failure)
        mistake = str(error) if isinstance(error, HflrayError) else references.blame(error)
        if mistake is None:
            raise
        traceback.print_exception(error)  # into the worker's log, which is kept if a trial fails
        tune.report({"round": -1, "metrics": {}, "error": mistake})


def trial_id() -> str:
    """Return Tune's id of the trial that runs in this process."""
    from ray import tune

    return str(tune.get_context().get_trial_id())


def _saved() -> Iterator[Saved]:
    """Yield Tune's checkpoint for this trial, then the earlier ones, newest first, and last the salvaged one."""
    from ray import tune

    latest = tune.get_checkpoint()
    if latest is not None:
        system, (parent, _, newest) = latest.filesystem, str(latest.path).rpartition("/")
        trial = parent.rpartition("/")[2]
        yield Saved(trial, latest.as_directory)  # it is downloaded if it is not on this disk
        names = [info.base_name for info in system.get_file_info(FileSelector(parent, allow_not_found=True))]
        for name in sorted((name for name in names if name.startswith("checkpoint_") and name < newest), reverse=True):
            yield Saved(trial, tune.Checkpoint(f"{parent}/{name}", system).as_directory)
    storage = tune.get_context().get_storage()
    salvaged = tune.Checkpoint(f"{storage.trial_fs_path}/{SALVAGED}", storage.storage_filesystem)
    if salvaged.filesystem.get_file_info(salvaged.path).type == FileType.Directory:
        yield Saved(storage.trial_dir_name, salvaged.as_directory)


def _report(result: Result, sweep: SweepFile, saves: bool) -> None:
    """Report a result to Tune, with a checkpoint if `saves` is true."""
    from ray import tune

    search, population = sweep.tune.search, sweep.tune.population
    entries: dict[str, Any] = {"round": result.step, "metrics": result.metrics}
    for key in ("model_hash", "note", "schedule", "timeline", "devices"):
        if getattr(result, key) is not None:
            entries[key] = getattr(result, key)
    if search is not None:  # a search needs a number even if a trial never reaches its target
        entries["search"] = result.metrics.get(search.metric, worst(search.mode))
    if population is not None:
        entries |= {"changes": list(result.changes), **score(result, population)}
    if not saves or result.save is None:
        tune.report(entries)
        return
    with tempfile.TemporaryDirectory() as folder:
        result.save(Path(folder))
        tune.report(entries, checkpoint=tune.Checkpoint.from_directory(folder))
