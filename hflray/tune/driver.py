"""A sweep in the driver: Tune runs the trials, a callback tells the display, the journal and the trackers.

What a trial reserves is in `hflray.tune.placement`. Every round is checkpointed; a sweep that was stopped or killed
goes on from there, bit for bit.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from hflray.compare import Outcome
from hflray.errors import ConfigError
from hflray.preflight import Checked
from hflray.progress import SweepProgress
from hflray.provenance import release
from hflray.results import SweepFolder, claimed
from hflray.sweep import SweepFile, Trial
from hflray.tasks import find_task
from hflray.tracking import Tracker, titles
from hflray.training.start import start_ray
from hflray.tune.callback import ResultFile, SweepCallback, current_callback
from hflray.tune.live import discoverable
from hflray.tune.mending import put_back, salvage, set_aside
from hflray.tune.nodes import check_nodes, check_resources
from hflray.tune.placement import Placement
from hflray.tune.population import Population
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage, check_storage
from hflray.tune.trial import NAME, run_trial

_current_callback = current_callback  # under this name in the states that Tune saved before `hflray.tune.callback`


def run_sweep(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    console: Console,
    *,
    resume: bool = False,
    require_tracking: bool = False,
    quiet: bool = False,
) -> tuple[list[Outcome], Tracker]:
    """Run every trial; return how each ended, in order, and the tracker that knows their MLflow runs.

    Raises:
        ConfigError: no cluster, nodes that differ, fewer CPUs or GPUs than a trial needs, a storage that cannot be
            written, or a tracking store that cannot be opened but must be.
    """
    file = folder.file
    count = file.tune.samples if file.tune.search else len(trials)
    with claimed(folder.path), SweepProgress(console, count, quiet) as progress:
        whole = resume and _mended(folder, progress)
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
        callback = SweepCallback(file, checked, progress, tracker, stop, storage, folder.path)
        if resume:
            for trial in trials:
                callback.take_over(trial)
        with stop, discoverable():
            _fit(folder, trials, checked, callback, placement, whole)
        known = [callback.outcomes.setdefault(t.name, Outcome(t.name)) for t in trials] if not file.tune.search else []
        outcomes = known or list(callback.outcomes.values())
        folder.finished = len(outcomes) >= count and all(outcome.ended for outcome in outcomes)
        folder.save()
        if storage:
            storage.send()
        with progress.phase(f"sending the rest to {titles(folder.sinks)} (Ctrl-C leaves it for later)"):
            tracker.close()
    return outcomes, tracker


def _mended(folder: SweepFolder, progress: SweepProgress) -> bool:
    """Mend Tune's state of a sweep that goes on; return whether Tune can go on from it.

    Raises:
        ConfigError: it is damaged, and the sweep cannot do without.
    """
    place, name = _place(folder), folder.path.name
    damaged, whole = set_aside(place, name)
    if damaged:
        what = f"Ray Tune's state ({', '.join(damaged)} in {place}/{name}) is damaged and set aside"
        chosen = "search" if folder.file.tune.search else "population" if folder.file.tune.population else None
        if not whole and chosen:
            raise ConfigError(
                f"{what}, and there is none before it, without which a {chosen} cannot go on; its rounds are kept, see "
                f"python -m hflray.report {name}; begin anew with --fresh"
            )
        after = "the one before" if whole else "the trials' own checkpoints"
        progress.line(f"{what}; going on from {after}")
    return whole


def _place(folder: SweepFolder) -> str:
    return folder.storage or str(folder.path.parent)


def _fit(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    callback: SweepCallback,
    placement: Placement,
    whole: bool,
) -> None:
    """Hand the trials to Tune, or have it go on from its `whole` state; without one, ended trials are left out.

    Its own reporters and log lines are off: the progress display says it all.
    """
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    # A trial that diverged reports no metrics; without this, that would end the whole sweep.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    # Of Tune's own records result.json is kept; TensorBoard's and a CSV's would cost time each round and say no more.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray
    from ray import tune
    from ray.air._internal import usage

    # To count the kinds of callbacks it imports MLflow and others, two seconds before the first trial.
    usage.tag_callbacks = lambda callbacks: False
    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    file = folder.file
    place = _place(folder)
    # Every trial takes the kernel measured here, on whatever node it runs. On a cluster, nodes that join later must run
    # the same code; on one machine somebody may well be editing it.
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
    )

    trainable = tune.with_resources(function, placement)
    try:
        if whole:
            put_back(place, folder.path.name)
            tuner = tune.Tuner.restore(
                f"{place}/{folder.path.name}", trainable=trainable, resume_unfinished=True, resume_errored=True
            )
        else:
            known = callback.outcomes  # empty, unless the sweep goes on without a state of Tune's
            left = [t for t in trials if t.name not in known or not known[t.name].ended or known[t.name].error]
            if not left:
                return
            if file.tune.population is None:  # whose members may have taken over another's state
                salvage(place, folder.path.name, [trial.name for trial in left if trial.name in known])
            tuner = tune.Tuner(
                trainable,
                param_space=_space(file, left),
                tune_config=_tune_config(file, left),
                run_config=tune.RunConfig(
                    name=folder.path.name,
                    storage_path=place,
                    callbacks=[callback, ResultFile()],
                    verbose=0,
                    stop={f"metrics/{name}": bound for name, bound in file.tune.stop.items()} or None,
                    failure_config=tune.FailureConfig(max_failures=file.tune.max_failures),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=_kept(file)),
                ),
            )
        tuner.fit()
    except KeyboardInterrupt:
        pass  # the second one; what is saved is saved


def _kept(file: SweepFile) -> int:
    """Checkpoints kept of a trial: the last, the one before, and in a population those that others may still take."""
    return 2 + (file.tune.population.every if file.tune.population is not None else 0)


def _space(file: SweepFile, trials: Sequence[Trial]) -> dict[str, Any]:
    from ray import tune

    if file.tune.search is None:
        # The name rides along with the values: trials that would be named alike have numbers in theirs.
        return {"values": tune.grid_search([{**trial.values, NAME: trial.name} for trial in trials])}
    kinds: dict[str, Any] = {
        "choice": tune.choice,
        "uniform": lambda ends: tune.uniform(*ends),
        "loguniform": lambda ends: tune.loguniform(*ends),
        "randint": lambda ends: tune.randint(ends[0], ends[1] + 1),  # Tune leaves the upper end out
    }
    return {"values": {key: kinds[axis.kind](getattr(axis, axis.kind)) for key, axis in file.sweep.items()}}


def _tune_config(file: SweepFile, trials: Sequence[Trial]) -> Any:
    from ray import tune

    settings = file.tune
    # A trial's process serves the next trial: starting one, with torch in it, takes seconds.
    options: dict[str, Any] = {"max_concurrent_trials": settings.max_concurrent, "reuse_actors": settings.reuse}
    if settings.search is not None:
        try:
            from ray.tune.search.optuna import OptunaSearch

            search = OptunaSearch(metric="search", mode=settings.search.mode, seed=settings.seed)
        except (ImportError, AssertionError) as error:
            raise ConfigError("tune.search: optuna is not installed; pip install 'hflray[search]'") from error
        options |= {"search_alg": search, "num_samples": settings.samples}
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
