"""A trial of a sweep runs a task in a process of Tune, saves its state when that is due, and reports its results.

A data set is in Ray's object store once for all trials of a sweep and all their actors. A trial distributes its samples
to devices by an index and does not copy the images.
"""

from __future__ import annotations

import os
import platform
import traceback
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray

from hflray.config import ExperimentConfig
from hflray.data import Dataset
from hflray.data.resampled import ResampledParts
from hflray.errors import HflrayError, RefusedError, WorkerLostError
from hflray.experiment import Experiment
from hflray.experiment.fleets import Fleets
from hflray.experiment.scenario import Scenario, data_key
from hflray.support import references
from hflray.support.checkpoint import Checkpoints
from hflray.support.files import disk_failure
from hflray.support.pinned import Input
from hflray.support.provenance import differences, release
from hflray.sweep import SweepFile, make_trial
from hflray.sweep.tasks import Job, Result, Saved, find_task
from hflray.training.job import DeviceData
from hflray.tune.launch import ADOPTED, LAST, NAME, TRIAL, VALUES
from hflray.tune.live import LiveTrial
from hflray.tune.population import score
from hflray.tune.search import RESULT, figure
from hflray.tune.stopping import stop_requested


@dataclass(frozen=True)
class SharedSettings:
    """What all trials of a sweep share. It is pickled for each trial, so it is kept small.

    Attributes:
        name: the name of the sweep's folder.
        file: the contents of the sweep file.
        place: the folder of the checkpoints, see `hflray.sweep.results.SweepFolder.place`.
        settled: settings of `training` that the driver has measured, such as the kernel, by the trial's name.
        expected: the driver's `release`, or None. A node that joined later may run another one.
        sources: the texts behind the sweep's references.
        inputs: the files of data that the configurations name, which a process holds when it unpickles them.
    """

    name: str
    file: dict[str, Any]
    place: str
    settled: Mapping[str, Mapping[str, Any]]
    expected: dict[str, str] | None = None
    sources: tuple[references.Source, ...] = ()
    inputs: tuple[Input, ...] = ()


def trial_experiment(
    config: ExperimentConfig, sweep: SweepFile, datasets: dict[Any, Any], measured: Mapping[str, Any], fleets: Fleets
) -> Experiment:
    """Make a trial's experiment in the trial's process.

    Args:
        config: the trial's configuration.
        sweep: the sweep file of the trial.
        datasets: Ray references to the data sets, by `data_key`; the driver has loaded each once.
        measured: settings of `training` that the driver has measured, such as the kernel.
        fleets: where the sweep keeps its fleets.
    """
    source = datasets.get(data_key(config))
    if source is None:  # the trial needs no data, or its own node loads them
        scenario = Scenario.build(config, fleets=fleets)
    else:
        scenario = Scenario.build(config, dataset=ray.get(source), fleets=fleets)
        scenario = replace(scenario, share=partial(share, source))
    # The driver has chosen the GPUs and the number of actors on them; both follow from the bundles that it reserved.
    group = ray.util.get_current_placement_group()
    holding = [bundle["GPU"] for bundle in group.bundle_specs if bundle.get("GPU")] if group else []
    settled = dict(measured)
    if holding and config.training.backend == "ray":
        settled |= {"num_actors": len(holding), "devices_per_actor": None}
    cpus, gpus = sweep.tune.cpus_per_trial, sum(holding, 0.0)
    return Experiment(config, scenario, cpus=cpus, gpus=gpus, settled=settled, keep_actors=sweep.tune.reuse)


def run_trial(params: dict[str, Any], shared: SharedSettings, datasets: dict[Any, Any]) -> None:
    """Run the trial ``params["trial"]`` (`hflray.tune.launch`). This is the function that Tune calls.

    A mistake, also one in a file of the user's own, or a diverged model is reported as a result, ``{"error": …}``,
    because another attempt would fail in the same way. A trial that must not begin (`RefusedError`) says so with
    ``{"refused": True}`` beside it, and a disk that is full or fails with ``{"disk": [number, path, bytes needed]}``.
    An error from a lost process or actor reaches Tune, which restarts the trial.

    Args:
        params: Tune's parameters of the trial.
        shared: what all trials of the sweep share.
        datasets: Ray references to the data sets, by `data_key`; the driver has loaded each once.
    """
    from ray import cloudpickle, tune

    references.adopt(shared.sources)
    references.pickle_by_value(cloudpickle.register_pickle_by_value)
    # The next trial reuses this process, so the last calls of this trial get time to end first.
    os.environ.setdefault("TUNE_FUNCTION_THREAD_TIMEOUT_S", "60")
    sweep, start = SweepFile.model_validate(shared.file), params[TRIAL]
    population = sweep.tune.population
    try:
        if shared.expected is not None and (difference := differences(shared.expected, release())):
            raise HflrayError(
                f"node {platform.node()} runs {difference}; run cluster/setup_node.sh there, then --resume"
            )
        config = make_trial(sweep, start[VALUES]).config
        checkpoints = Checkpoints(shared.place, start[NAME], population.every if population else 0)
        job = Job(
            config,
            cpus=sweep.tune.cpus_per_trial,
            saved=_saved(shared.place, start),
            mutable=tuple(sweep.sweep) if population is not None else (),
            make=lambda config: trial_experiment(
                config, sweep, datasets, shared.settled.get(start[NAME], {}), Fleets(shared.place)
            ),
            watch=lambda experiment: LiveTrial(shared.name, start[NAME], experiment).round,
        )
        with closing(find_task(sweep.task).run(job)) as results:
            for result in results:
                stops = not result.due and bool(config.checkpoint.every) and stop_requested(shared.place)
                saves = result.save is not None and (result.due or stops)
                if saves and result.save is not None:  # before its report, so that no reported state is lost
                    checkpoints.save(result.step, result.save)
                tune.report(_entries(result, sweep, saves))
    except WorkerLostError:
        raise
    except Exception as error:
        failure = disk_failure(error)
        mistake = str(error) if isinstance(error, HflrayError) else references.blame(error)
        report = {"round": -1, "metrics": {}, "error": mistake, "refused": isinstance(error, RefusedError)}
        if failure is not None:
            report |= {"error": failure.reason, "disk": [failure.number, str(failure.path or ""), failure.needed_bytes]}
        elif mistake is None:
            raise
        else:
            traceback.print_exception(error)  # into the worker's log, which is kept if a trial fails
        tune.report(report)


def _saved(place: str, start: Mapping[str, Any]) -> Iterator[Saved]:
    """Yield the checkpoints from which the trial may go on, the newest first.

    A state is saved before its round is in the journal. If the driver is killed between the two, a trial that went on
    from it would leave that round out, so that a checkpoint after the journal's last round is not used. After an
    exchange a member of a population has the state of its donor, until it has saved one of its own.
    """
    checkpoints, adopted = Checkpoints(place, start[NAME]), start.get(ADOPTED)
    for round in checkpoints.rounds():
        if (adopted[1] if adopted else 0) < round <= start[LAST]:
            yield Saved(start[NAME], partial(checkpoints.open, round))
    if adopted:
        donor, round = adopted
        yield Saved(donor, partial(Checkpoints(place, donor).open, round))


def _entries(result: Result, sweep: SweepFile, saved: bool) -> dict[str, Any]:
    """Return what is reported to Tune."""
    entries: dict[str, Any] = {"round": result.step, "metrics": result.metrics, "saved": saved, "last": result.last}
    for key in ("model_hash", "note", "schedule", "timeline", "devices"):
        if getattr(result, key) is not None:
            entries[key] = getattr(result, key)
    search, population = sweep.tune.search, sweep.tune.population
    if search is not None:
        entries[RESULT] = figure(search, result.metrics)
    if population is not None:
        entries |= {"changes": list(result.changes), **score(result, population)}
    return entries


class SharedData(DeviceData):
    """Samples that are pickled as a reference to their data set in the object store."""

    source: Any

    def __reduce__(self) -> tuple[Any, ...]:
        return _fetch_images, (self.source, self.index, self.offsets, self.drawn, self.validation)


def share(source: Any, data: DeviceData) -> DeviceData:
    """Return `data` in a form that is pickled with `source`, the Ray reference to its `Dataset`, instead of images."""
    shared = SharedData(**{field.name: getattr(data, field.name) for field in fields(data)})
    object.__setattr__(shared, "source", source)
    return shared


def _fetch_images(
    source: Any,
    index: NDArray[np.int64],
    offsets: NDArray[np.int64],
    drawn: ResampledParts | None,
    validation: NDArray[np.int64],
) -> DeviceData:
    d: Dataset = ray.get(source)
    test, moments = (d.x_test, d.y_test), (d.channel_mean, d.channel_std)
    return DeviceData(d.x_train, d.y_train, index, offsets, *test, *moments, drawn, validation)
