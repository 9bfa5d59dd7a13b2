"""The driver of a sweep: Tune runs the trials, and a callback informs the journal, the display and the trackers.

A trial owns its state, which is its journal and its checkpoints. Tune only launches trials: each start of a sweep makes
a new Tune in a folder of its own (``start-<number>``) for the trials that have not ended, and nothing that Tune has
written is ever read again. A sweep that was stopped or killed therefore continues bit for bit.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from hflray.errors import ConfigError, HflrayError, RefusedError, WriteError
from hflray.experiment.fleets import Fleets
from hflray.experiment.scenario import Scenario, data_key
from hflray.support.checkpoint import Checkpoints
from hflray.support.files import disk_failure, refuse_links
from hflray.support.provenance import release
from hflray.support.ray_private import count_no_callbacks, keep_no_rounds, pass_no_keys
from hflray.support.reader import read_json
from hflray.support.store import Store
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.sweep.compare import Outcome
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.progress import SweepProgress
from hflray.sweep.results import SweepFolder, claimed
from hflray.sweep.tasks import find_task
from hflray.tracking import Journal, Tracker, titles
from hflray.tracking.mlflow import import_soon
from hflray.training import session
from hflray.training.start import start_ray
from hflray.tune.callback import SweepCallback
from hflray.tune.launch import TRIAL, Placement, name_of, parameters
from hflray.tune.live import discoverable
from hflray.tune.nodes import check_nodes, check_resources
from hflray.tune.population import Population, standing
from hflray.tune.search import Halving, SettingSearch, drawn
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage, check_storage
from hflray.tune.trial import SharedSettings, run_trial

START = "start-"  # the name of the folder of a start's Tune, before a number
# Where a task's checkpoint of hflray 0.1 or 0.2 says after which step it was saved.
STEP_FILES = {"state/state.json": "round", "training/training.json": "env_steps"}


def run_sweep(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: CheckedTrials,
    console: Console,
    *,
    resume: bool = False,
    require_tracking: bool = False,
    quiet: bool = False,
    until_s: float | None = None,
) -> tuple[list[Outcome], Tracker]:
    """Run every trial; return the outcomes in the order of the trials, and the tracker that has their MLflow runs.

    Args:
        folder, trials, checked, console: the sweep, its trials, their checked settings, and where lines are printed.
        resume: whether to continue the sweep in `folder`.
        require_tracking: whether to raise if a tracker cannot be opened.
        quiet: whether to print only failures.
        until_s: the time of `time.monotonic` at which the sweep is stopped, as by Ctrl-C; None: there is no limit.

    Raises:
        ConfigError: there is no cluster, its nodes differ, it has fewer CPUs or GPUs than a trial needs, the storage
            cannot be written or another process runs the sweep, or a required tracking store cannot be opened.
        RefusedError: trials cannot go on from their checkpoints, which another hflray has made.
        WriteError: a file cannot be written, because its disk is full, read-only or failing. The sweep can be resumed.
        HflrayError: Ray, or the lease on the storage, was lost. The sweep can be resumed.
    """
    if resume:
        refuse_links(folder.path)  # the first thing that is written is the lock
    try:
        with claimed(folder.path), SweepProgress(console, _count(folder.file, trials), quiet) as progress:
            return _run(folder, trials, checked, progress, resume, require_tracking, until_s)
    except HflrayError:
        raise
    except Exception as error:
        failure = disk_failure(error)
        if failure is None:
            raise
        raise WriteError(failure.line(folder.path, folder.resume_command)) from error


def _count(file: SweepFile, trials: Sequence[Trial]) -> int:
    """Return the number of trials; of a search of settings, of which some have not all seeds, the largest."""
    return file.tune.samples * file.tune.search.seeds if file.tune.search else len(trials)


def _run(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: CheckedTrials,
    progress: SweepProgress,
    resume: bool,
    require_tracking: bool,
    until_s: float | None,
) -> tuple[list[Outcome], Tracker]:
    file = folder.file
    with progress.phase("starting Ray"):
        if "mlflow" in folder.sinks:
            import_soon()
        cpus = start_ray()
        check_nodes(None if folder.storage else folder.path.parent)
    check_resources("tune.cpus_per_trial", "CPU", file.tune.cpus_per_trial, cpus)
    placement = Placement(file, trials, checked)
    with _stored(folder, progress, resume) as storage:
        journal = Journal(folder.path) if storage is None else Journal(folder.path, storage.send, storage.held)
        if resume:
            mend(folder, trials, journal, progress.line)
            check_data(begun(file, trials, journal), checked, journal)
        if storage is not None:
            storage.begin()
        _save(folder, storage)
        fleets = Fleets(folder.place)
        for trial in trials:
            checked.fleets.copy(trial.config, fleets)
        with progress.phase(f"opening {titles(folder.sinks)}"):
            tracker = Tracker(
                folder.uri, folder.experiment, folder.path.name, folder.path, require_tracking, folder.sinks, journal,
                folder.place, lambda config: checked.datasets.get(data_key(config)),
            )  # fmt: skip
        saves = find_task(file.task).saves and any(trial.config.checkpoint.every for trial in trials)
        stop = CleanStop(folder.place, saves, progress.line, until_s)
        check = (lambda: None) if storage is None else storage.check
        callback = SweepCallback(folder, checked, progress, tracker, stop, check)
        for name in journal.run_keys():
            callback.take_over(name)
        with stop, discoverable():
            try:
                _fit(folder, trials, checked, callback, placement, journal)
            except Exception:
                if callback.failure is None:  # otherwise this error is a consequence
                    raise
        if callback.failure is not None:
            raise callback.failure
        listed = [] if file.tune.search else [callback.outcomes.setdefault(t.name, Outcome(t.name)) for t in trials]
        outcomes = listed or list(callback.outcomes.values())
        if any(outcome.error for outcome in outcomes):
            session.keep()  # the tracebacks are in Ray's temporary folder
        with progress.phase(f"sending the rest to {titles(folder.sinks)} (Ctrl-C leaves it for later)"):
            tracker.close()
        # The sweep is finished only now. If the driver is killed while it sends the rest, --resume sends it.
        whole = file.tune.search is not None and file.tune.search.seeds > 1 and not stop.requested
        whole = whole or len(outcomes) >= _count(file, trials)
        folder.finished = whole and all(outcome.ended for outcome in outcomes)
        _save(folder, storage)
        if callback.refused:
            raise RefusedError("\n".join(f"{name}: {reason}" for name, reason in sorted(callback.refused.items())))
        return outcomes, tracker


@contextmanager
def _stored(folder: SweepFolder, progress: SweepProgress, resume: bool) -> Iterator[Storage | None]:
    """Hold the lease on the storage during the block, if there is one, and begin with what the storage has.

    Raises:
        ConfigError: another process runs the sweep, the storage cannot be written, the sweep is finished there, or its
            settings are others there than this machine had.
    """
    if not folder.storage:
        yield None
        return
    check_storage(folder.storage)
    storage = Storage(folder.storage, folder.path)
    with progress.phase("claiming the storage"):
        storage.claim(progress.line)
    try:
        if resume:
            own_file = SweepFolder.load(folder.path).file  # without the rounds that this command adds
            storage.receive(progress.line)
            stored = SweepFolder.load(folder.path)
            if stored.finished and stored.file == folder.file:
                raise ConfigError(f"--resume {folder.path.name}: that sweep is finished; its rounds are here now")
            if stored.file != own_file:
                raise ConfigError(
                    f"--resume {folder.path.name}: another machine has changed the settings in the storage, such as "
                    "max_rounds, and this machine had the old ones; the new ones are here now; give the command again"
                )
        yield storage
    finally:
        storage.release()


def _save(folder: SweepFolder, storage: Storage | None) -> None:
    folder.save()
    if storage is not None:
        storage.save(folder.content())


def mend(folder: SweepFolder, trials: Sequence[Trial], journal: Journal, say: Callable[[str], None]) -> None:
    """Cut the journals of a sweep that goes on off where they are damaged, and say which rounds are made again.

    Raises:
        OSError: a journal cannot be read or written.
    """
    population = folder.file.tune.population
    for name in sorted({*journal.run_keys(), *(trial.name for trial in trials)}):
        lost, last = journal.cut(name), journal.last_round(name)
        adopt_older(folder, name)
        if lost:
            say(f"{name}: its journal is damaged (lines lost: {lost}); its rounds after {last} are made again")
        elif not last and Checkpoints(folder.place, name).rounds():
            say(f"{name}: its journal has no round any more; its rounds are made again")
    if population is not None and (problem := standing(journal, folder.file, trials).again):
        say(problem)
        for trial in trials:
            journal.cut(trial.name, after=0)


def begun(file: SweepFile, trials: Sequence[Trial], journal: Journal) -> Sequence[Trial]:
    """Return the trials of a sweep; of a search, those that it has drawn."""
    if file.tune.search is None:
        return trials
    return [replace(make_trial(file, trial.values), name=trial.name) for trial in drawn(journal, file)]


def check_data(trials: Sequence[Trial], checked: CheckedTrials, journal: Journal) -> None:
    """Raise ConfigError if a trial has begun with other samples than its data set has now.

    The data sets are those of `checked`, and those of the trials that a search has drawn, which are loaded.
    """
    for trial in trials:
        run = journal.run(trial.name)
        before = None if run is None or run.dataset is None else run.dataset.get("digest")
        if before and data_key(trial.config) not in checked.datasets:
            scenario = Scenario.build(trial.config, fleets=checked.fleets)
            checked.datasets[data_key(trial.config)] = scenario.dataset
        now = checked.described(trial.config)
        if before and now and before != now["digest"]:
            raise ConfigError(
                f"data.name: {trial.config.data.name} has other samples than when {trial.name} began; accepted with "
                "--resume: the same; put them back, or begin anew with --fresh"
            )


def adopt_older(folder: SweepFolder, trial: str) -> None:
    """Save the checkpoints of a trial that hflray 0.1 or 0.2 has begun as those of today, unless it has some already.

    They were Ray Tune's folders ``<sweep>/<trial>/checkpoint_<number>``, and what a task saves has not changed. A
    folder that names no step, because it is damaged, is left out. The old folders stay.

    Raises:
        OSError: a checkpoint cannot be written.
    """
    checkpoints = Checkpoints(folder.place, trial)
    older = sorted((folder.path / trial).glob("checkpoint_*"))
    if older and not checkpoints.rounds():
        for path in older:
            for name, key in STEP_FILES.items():
                with suppress(OSError, ValueError, KeyError, TypeError):
                    step = int(read_json(path / name, inside=folder.path)[key])
                    checkpoints.save(step, partial(_copy, path))


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


def _fit(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: CheckedTrials,
    callback: SweepCallback,
    placement: Placement,
    journal: Journal,
) -> None:
    """Run the trials that have not ended with a new Tune. Its reporters and log lines are off: the display has them."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    # A trial that diverged reports no metrics, which would otherwise end the whole sweep.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    # The journal has what Tune's own files of a trial would have.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray
    from ray import tune

    count_no_callbacks()
    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    keep_no_rounds()
    pass_no_keys()
    file, outcomes, bound = folder.file, callback.outcomes, folder.file.tune.bound
    remaining = [t for t in trials if t.name not in outcomes or not outcomes[t.name].ended or outcomes[t.name].error]
    options = _tune_config(file, remaining, trials, journal)
    if not options:
        return
    # Every trial uses the kernel chosen by the driver, whatever its node. In a cluster, nodes that join later must
    # run the same code. On a single machine this is not checked, because the user may edit the code meanwhile.
    shared = SharedSettings(
        folder.path.name,
        file.model_dump(mode="json", exclude_unset=True),
        folder.place,
        settled={
            name: {key: getattr(config.training, key) for key in ("kernel", "threads", "device")}
            for name, config in checked.resolved.items()
        },
        expected=release() if os.environ.get("RAY_ADDRESS") else None,
        sources=folder.sources,
        inputs=folder.inputs,
    )
    datasets = {key: ray.put(dataset) for key, dataset in checked.datasets.items()}
    function = tune.with_parameters(run_trial, shared=shared, datasets=datasets)
    base = f"{folder.storage.rstrip('/')}/{folder.path.name}" if folder.storage else str(folder.path)
    tuner = tune.Tuner(
        tune.with_resources(function, placement),
        param_space=options.pop("param_space"),
        tune_config=tune.TuneConfig(
            # A population sees to it itself, because its members wait for each other.
            max_concurrent_trials=None if file.tune.population else file.tune.max_concurrent,
            # The next trial reuses a trial's process, because starting a process that imports torch takes seconds.
            reuse_actors=file.tune.reuse,
            trial_dirname_creator=name_of,
            **options,
        ),
        run_config=tune.RunConfig(
            name=_start_name(base),
            storage_path=base,
            callbacks=[callback],
            verbose=0,
            stop=(lambda trial_id, result: bound(result.get("metrics", {})) is not None) if file.tune.stop else None,
            failure_config=tune.FailureConfig(max_failures=file.tune.max_failures),
        ),
    )
    with suppress(KeyboardInterrupt):  # the second Ctrl-C stops without saving; earlier states are on the disk
        tuner.fit()


def _start_name(base: str) -> str:
    """Return the name of a folder that this start's Tune has for itself."""
    numbers = [int(name[len(START) :]) for name in Store(base).names() if re.fullmatch(rf"{START}\d+", name)]
    return f"{START}{max(numbers, default=0) + 1}"


def _tune_config(
    file: SweepFile, remaining: Sequence[Trial], trials: Sequence[Trial], journal: Journal
) -> dict[str, Any]:
    """Return the settings of Tune by which it chooses what to launch; empty if nothing remains."""
    from ray import tune

    settings = file.tune
    options: dict[str, Any] = {}
    if settings.search is not None:
        search = SettingSearch(file, drawn(journal, file), journal.write)
        if not search.remaining:
            return {}
        options |= {"search_alg": search, "num_samples": search.remaining, "param_space": {}}
    elif not remaining:
        return {}
    else:
        starts = [parameters(t.name, t.values, journal.last_round(t.name)) for t in remaining]
        if settings.population is not None:
            options["scheduler"] = Population(file, standing(journal, file, trials), journal.write)
        options["param_space"] = {TRIAL: tune.grid_search([start[TRIAL] for start in starts])}
    if settings.early_stopping is not None:
        rounds = [trial.config.max_rounds for trial in trials]
        if settings.search is not None and "max_rounds" in file.sweep:  # the only trial has the first value
            rounds = file.sweep["max_rounds"].values
        options["scheduler"] = Halving(file, max(rounds), journal)
    return options
