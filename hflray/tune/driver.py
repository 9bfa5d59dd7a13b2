"""The driver of a sweep: Tune runs the trials, and a callback informs the display, the journal and the trackers.

`hflray.tune.placement` decides which resources a trial reserves. A sweep that was stopped or killed continues from its
trials' checkpoints, bit for bit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from hflray.errors import ConfigError, HflrayError, WriteError
from hflray.support.files import Failure, disk_failure, fullest
from hflray.support.provenance import release
from hflray.support.ray_private import count_no_callbacks, keep_no_rounds
from hflray.support.seal import refuse_links
from hflray.sweep import SweepFile, Trial
from hflray.sweep.compare import Outcome
from hflray.sweep.disk_space import Reserve, checkpoints_to_keep
from hflray.sweep.preflight import Checked
from hflray.sweep.progress import SweepProgress
from hflray.sweep.results import SweepFolder, claimed
from hflray.sweep.tasks import find_task
from hflray.tracking import Journal, Tracker, titles
from hflray.training import session
from hflray.training.start import start_ray
from hflray.tune.callback import ResultFile, SweepCallback, current_callback
from hflray.tune.digests import TuneDigests
from hflray.tune.disk_pause import Room, RoomWatch
from hflray.tune.live import discoverable
from hflray.tune.lost_head import head_watched
from hflray.tune.lost_state import completed, given_up, points, renamed
from hflray.tune.mending import mend, place_of, put_back, salvage
from hflray.tune.nodes import check_nodes, check_resources
from hflray.tune.placement import Placement
from hflray.tune.population import Population
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage, check_storage
from hflray.tune.trial import NAME, run_trial

_current_callback = current_callback  # states that Tune saved before `hflray.tune.callback` existed use this name


def run_sweep(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    console: Console,
    *,
    resume: bool = False,
    require_tracking: bool = False,
    quiet: bool = False,
    trust: bool = False,
) -> tuple[list[Outcome], Tracker]:
    """Run every trial; return the outcomes in the order of the trials, and the tracker that has their MLflow runs.

    Args:
        folder, trials, checked, console: the sweep, its trials, their checked settings, and where lines are printed.
        resume: whether to continue the sweep in `folder`.
        require_tracking: whether to raise if a tracker cannot be opened.
        quiet: whether to print only failures.
        trust: whether a resume may let Tune read its pickles although they do not carry this user's seal.

    Raises:
        ConfigError: there is no cluster, its nodes differ, it has fewer CPUs or GPUs than a trial needs, the storage
            cannot be written, or a required tracking store cannot be opened.
        NoRoomError: a disk has less room than the reserve.
        WriteError: a file cannot be written, because its disk is full, read-only or failing. The sweep can be resumed.
    """
    reserve = Reserve.of(folder, trials, checked)
    reserve.check()
    try:
        return _run(folder, trials, checked, console, reserve, resume, require_tracking, quiet, trust)
    except HflrayError:
        raise
    except Exception as error:
        failure = disk_failure(error)
        if failure is None:
            raise
        raise _write_error(folder, failure, reserve) from error


def _write_error(folder: SweepFolder, failure: Failure, reserve: Reserve) -> WriteError:
    place = fullest(Room.of(folder.path.name, reserve).folders())
    return WriteError(failure.line(place, folder.resume_command, reserve.size))


def _run(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    console: Console,
    reserve: Reserve,
    resume: bool,
    require_tracking: bool,
    quiet: bool,
    trust: bool,
) -> tuple[list[Outcome], Tracker]:
    """Do what `run_sweep` does, with the reserve of its disks."""
    file = folder.file
    count = file.tune.samples if file.tune.search else len(trials)
    if resume:
        refuse_links(folder.path)
    with claimed(folder.path), SweepProgress(console, count, quiet) as progress:
        digests, whole = mend(folder, progress.line, trust) if resume else (TuneDigests(folder.path), False)
        journal = Journal(folder.path)
        gone = given_up(journal)
        if file.tune.population is not None:
            trials = renamed(trials, checked, gone)
        with progress.phase("starting Ray"):
            cpus = start_ray()
            check_nodes(None if folder.storage else folder.path.parent)
        check_resources(file.tune.cpus_per_trial, cpus)
        placement = Placement(file, trials, checked)
        if folder.storage:
            check_storage(folder.storage)
        if placement.to_measure:
            with progress.phase("measuring the GPU"):
                placement.measure()
        with progress.phase(f"opening {titles(folder.sinks)}"):
            tracker = Tracker(
                folder.uri, folder.experiment, folder.path.name, folder.path, require_tracking, folder.sinks
            )
        folder.save()
        storage = Storage(folder.storage, folder.path) if folder.storage else None
        if storage:
            storage.send()
        saves = find_task(file.task).saves and any(trial.config.checkpoint.every for trial in trials)
        stop = CleanStop(folder.path.name, saves, progress.line)
        watch = RoomWatch(Room.of(folder.path.name, reserve), progress)
        callback = SweepCallback(file, checked, progress, tracker, stop, storage, folder.path, digests, watch)
        if resume:
            for name in completed(journal) if file.tune.search else [trial.name for trial in trials]:
                callback.take_over(name)
        with stop, watch, discoverable(), head_watched(folder.resume_command):
            try:
                _fit(folder, trials, checked, callback, placement, whole, watch.room)
            except Exception:
                if callback.failure is None:  # otherwise this error is a consequence
                    raise
        if callback.failure is not None:
            raise _write_error(folder, callback.failure, reserve)
        listed = [callback.outcomes.setdefault(t.name, Outcome(t.name)) for t in trials] if not file.tune.search else []
        outcomes = listed or list(callback.outcomes.values())
        if any(outcome.error for outcome in outcomes):
            session.keep()  # the tracebacks are in Ray's temporary folder
        with progress.phase(f"sending the rest to {titles(folder.sinks)} (Ctrl-C leaves it for later)"):
            tracker.close()
        # The sweep is finished only now. If the driver is killed while it sends the rest, --resume sends it.
        folder.finished = len(outcomes) >= count and all(outcome.ended for outcome in outcomes)
        folder.save()
        if storage:
            storage.send()
    return outcomes, tracker


def _fit(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    callback: SweepCallback,
    placement: Placement,
    whole: bool,
    room: Room,
) -> None:
    """Run the trials with Tune, which continues from its own state if `whole` says that this state is complete.

    Otherwise Tune begins anew, without the trials that have ended. Its reporters and log lines are off, because the
    progress display has their information.
    """
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    # A trial that diverged reports no metrics, which would otherwise end the whole sweep.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    # Tune writes only result.json. Its TensorBoard and CSV files would cost time each round and contain the same data.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray
    from ray import tune

    count_no_callbacks()
    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    keep_no_rounds()
    file = folder.file
    place = place_of(folder)
    # Every trial uses the kernel measured by the driver, whatever its node. In a cluster, nodes that join later must
    # run the same code. On a single machine this is not checked, because the user may edit the code meanwhile.
    settled = {
        name: {key: getattr(config.training, key) for key in ("kernel", "threads", "device")}
        for name, config in checked.resolved.items()
    }
    function = tune.with_parameters(
        run_trial,
        file=file.model_dump(mode="json", exclude_unset=True),
        datasets={key: ray.put(dataset) for key, dataset in checked.datasets.items()},
        settled=settled,
        expected=release() if os.environ.get("RAY_ADDRESS") else None,
        room=room,
        sources=folder.sources,
    )

    trainable = tune.with_resources(function, placement)
    logged = {name: outcome.round or 0 for name, outcome in callback.outcomes.items()}  # as the journals have it
    step_of = find_task(file.task).saved_step
    try:
        if whole:
            put_back(place, folder.path.name, step_of, logged)
            tuner = tune.Tuner.restore(
                f"{place}/{folder.path.name}", trainable=trainable, resume_unfinished=True, resume_errored=True
            )
        else:
            outcomes = callback.outcomes  # empty, unless the sweep continues without a state of Tune
            remaining = [
                t for t in trials if t.name not in outcomes or not outcomes[t.name].ended or outcomes[t.name].error
            ]
            samples = file.tune.samples - len(callback.outcomes)  # of a search
            if not remaining or (file.tune.search is not None and samples <= 0):
                return
            if file.tune.population is None:  # members of a population may have adopted another trial's state
                begun = [trial.name for trial in remaining if trial.name in outcomes]
                salvage(place, folder.path.name, begun, step_of, logged)
            tuner = tune.Tuner(
                trainable,
                param_space=_space(file, remaining),
                tune_config=_tune_config(file, remaining, samples, points(file, Journal(folder.path))),
                run_config=tune.RunConfig(
                    name=folder.path.name,
                    storage_path=place,
                    callbacks=[ResultFile(), callback],  # so that Tune's record has every round of the journal
                    verbose=0,
                    stop={f"metrics/{name}": bound for name, bound in file.tune.stop.items()} or None,
                    failure_config=tune.FailureConfig(max_failures=file.tune.max_failures),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=checkpoints_to_keep(file)),
                ),
            )
        callback.record_tuner(place)
        tuner.fit()
    except KeyboardInterrupt:
        pass  # the second Ctrl-C stops without saving; earlier states are on the disk


def _space(file: SweepFile, trials: Sequence[Trial]) -> dict[str, Any]:
    from ray import tune

    if file.tune.search is None:
        # The name is passed with the values, because trials with equal values have a number in their names.
        return {"values": tune.grid_search([{**trial.values, NAME: trial.name} for trial in trials])}
    kinds: dict[str, Any] = {
        "choice": tune.choice,
        "uniform": lambda ends: tune.uniform(*ends),
        "loguniform": lambda ends: tune.loguniform(*ends),
        "randint": lambda ends: tune.randint(ends[0], ends[1] + 1),  # Tune excludes the upper end
    }
    return {"values": {key: kinds[axis.kind](getattr(axis, axis.kind)) for key, axis in file.sweep.items()}}


def _tune_config(
    file: SweepFile, trials: Sequence[Trial], samples: int, results: Sequence[tuple[dict[str, Any], float]]
) -> Any:
    """Return Tune's settings. A search makes `samples` trials and learns from `results`; see `anew.points`."""
    from ray import tune

    settings = file.tune
    # The next trial reuses a trial's process, because starting a process that imports torch takes seconds.
    options: dict[str, Any] = {"max_concurrent_trials": settings.max_concurrent, "reuse_actors": settings.reuse}
    if settings.search is not None:
        try:
            from ray.tune.search.optuna import OptunaSearch

            search = OptunaSearch(
                metric="search",
                mode=settings.search.mode,
                seed=settings.seed + len(results),  # with the first seed it would draw the same points again
                points_to_evaluate=[{f"values/{key}": value for key, value in point.items()} for point, _ in results],
                evaluated_rewards=[result for _, result in results],
            )
        except (ImportError, AssertionError) as error:
            raise ConfigError("tune.search: optuna is not installed; pip install 'hflray[search]'") from error
        options |= {"search_alg": search, "num_samples": samples}
    else:
        options["trial_dirname_creator"] = lambda trial: str(trial.config["values"][NAME])
    if settings.early_stopping is not None:
        from ray.tune.schedulers import ASHAScheduler

        halving = settings.early_stopping
        options["scheduler"] = ASHAScheduler(
            time_attr="round",
            metric=f"metrics/{halving.metric}",
            mode=halving.mode,
            max_t=max(trial.config.max_rounds for trial in trials),
            grace_period=halving.grace_rounds,
            reduction_factor=halving.reduction,
        )
    if settings.population is not None:
        options["scheduler"] = Population(file, NAME)
    return tune.TuneConfig(**options)
