"""A loop over an experiment in Python leaves what a sweep of one trial leaves: a results folder and a run in MLflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hflray.config import validate
from hflray.experiment import Experiment
from hflray.experiment.fleets import Fleets
from hflray.experiment.record import RoundRecord
from hflray.sweep.results import claimed, new_folder
from hflray.sweep.sections import SweepFile
from hflray.sweep.tasks.experiment import ExperimentTask, result_of
from hflray.sweep.trials import expand
from hflray.tracking import Tracker, default_uri
from hflray.tracking.history import STOPPED


def keep(experiment: Experiment, name: str, results: str | Path = "hflray_results") -> Iterator[RoundRecord]:
    """Run the rounds of an experiment that are left, and keep each as a sweep of one trial would.

    ``hflray report NAME``, ``hflray export NAME`` and `hflray.read` find the sweep then, and so do the trackers of
    ``tracking.sinks``. A round is kept before it is yielded, so that a loop that ends early loses none; its run is one
    that was stopped. ``hflray tune --resume`` refuses the sweep, because it knows the configuration alone and not what
    the loop has given to the experiment or changed in it. With a scenario of the caller's own, devices and schedules
    are not kept, because no reader could draw its fleet again.

    Args:
        experiment: the experiment; the caller closes it.
        name: the sweep's name; its folder has the time appended.
        results: the folder of results.

    Raises:
        ConfigError: the name is none for a sweep, or a tracker of the user's own cannot be built.

    Examples:
        >>> import tempfile
        >>> from hflray import Experiment, keep, load_config, read
        >>> tiny = ["fleet.num_devices=4", "fleet.num_edges=2", "scheduling.name=fedavg", "scheduling.num_scheduled=2"]
        >>> tiny += ["assignment.name=geographic", "training.backend=serial", "model.name=logistic", "max_rounds=2"]
        >>> tiny += ["tracking.sinks=[]"]
        >>> with tempfile.TemporaryDirectory() as results, Experiment(load_config(None, tiny)) as experiment:
        ...     for record in keep(experiment, "mine", results):
        ...         print(record.round, record.devices.tolist())
        ...     print(read("mine", results)[["round", "seed"]].values.tolist())
        1 [2, 3]
        2 [2, 3]
        [[1, 0], [2, 0]]
    """
    config = experiment.resolve()
    content = SweepFile.model_construct(name=name, experiment=config.model_dump(mode="json", exclude_unset=True))
    file = validate(SweepFile, content.model_dump(exclude_unset=True))
    (trial,) = expand(file)
    tracking, task = config.tracking, ExperimentTask()
    uri = tracking.uri or default_uri(Path(results))
    folder = new_folder(Path(results), file, uri, tracking.experiment)
    folder.sinks, folder.by_loop = tracking.sinks, True
    with claimed(folder.path):
        folder.save()
        Fleets(folder.place).get(config, lambda: experiment.scenario.fleet)
        tracker = Tracker(uri, tracking.experiment, folder.path.name, folder.path, sinks=tracking.sinks)
        tracker.start(trial.name, trial.name, config, {"hflray.task": task.name})
        error, first, goes_on = None, True, True  # it still goes on after a break or Ctrl-C
        try:
            for record in experiment:
                detailed = not experiment.is_given_a_scenario
                goes_on = not experiment.finished
                result = result_of(experiment, record, not goes_on, detailed=detailed, with_devices=first)
                details = (result.schedule, result.devices, result.timeline, result.model_hash)
                tracker.round(trial.name, result.step, result.metrics, *details)
                first = False
                yield record
            goes_on = False
        except Exception as failure:
            error = str(failure) or type(failure).__name__
            raise
        finally:
            tracker.artifact(trial.name, "tables")
            tracker.timeline(trial.name)
            tracker.finish(trial.name, error, {STOPPED: "the loop ended"} if goes_on and error is None else None)
            tracker.close()
            folder.finished = True
            folder.save()
