"""A sweep in the driver: Tune runs the trials, a callback tells the display, the journal and the trackers.

What a trial reserves is in `hflray.tune.placement`. Every round is checkpointed; a sweep that was stopped or killed
goes on from there, bit for bit.
"""

from __future__ import annotations

import ctypes
import json
import logging
import math
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.logger import JsonLoggerCallback
from rich.console import Console

from hflray import metrics
from hflray.compare import Outcome
from hflray.errors import ConfigError
from hflray.preflight import Checked, data_key
from hflray.progress import SweepProgress
from hflray.provenance import release
from hflray.results import SweepFolder, claimed
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.tracking import Files, FinalModel, Tracker, titles
from hflray.training.hierarchy import start_ray
from hflray.tune import learning
from hflray.tune.live import discoverable
from hflray.tune.mending import put_back
from hflray.tune.nodes import check_nodes, check_resources
from hflray.tune.placement import Placement
from hflray.tune.population import Population
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage, check_storage
from hflray.tune.trial import NAME, run_trial, trial_name

# Tags of a run that say what happened to it.
STOPPED = "hflray.stopped"
CHANGES = "hflray.population"  # settings that changed between rounds, [{"after_round", "changed", "from"}] in JSON
TRIM_EVERY_S = 5.0


class SweepCallback(Callback):  # type: ignore[misc]  # Ray ships no types for it
    """Tune's events to the progress display, the tracker and the outcomes."""

    current: SweepCallback | None = None

    def __init__(
        self,
        file: SweepFile,
        checked: Checked,
        progress: SweepProgress,
        tracker: Tracker,
        stop: CleanStop,
        storage: Storage | None = None,
        folder: Path = Path(),
    ) -> None:
        self.file, self._checked, self._progress, self._tracker = file, checked, progress, tracker
        self._stop, self._storage, self._folder = stop, storage, folder
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        self._trimmed = time.monotonic()
        SweepCallback.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks into the sweep's folder and takes them from there to resume. Screens and
        # connections do not go there: what comes back is the callback of the process that resumes.
        return _current_callback, ()

    def take_over(self, trial: Trial) -> None:
        """Know a trial of a resumed sweep from its journal, whether or not Tune runs it again."""
        outcome = self.outcomes.setdefault(trial.name, Outcome(trial.name))
        for index, values in self._tracker.history(trial.name):
            _add(outcome, index, values, keep=self.file.task == "assignment")
        outcome.ended, outcome.error = self._tracker.ended(trial.name)
        outcome.stopped = self._tracker.end_tags(trial.name).get(STOPPED)
        self._progress.resumed(trial.name, outcome.round or 0)
        if outcome.ended:
            self._tracker.adopt(trial.name)
            self._progress.ended(trial.name, trial.name, outcome.error, outcome.stopped)

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        self._stop.step(trials)

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._stop.saved(trial)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        outcome = self.outcomes.setdefault(mine.name, Outcome(mine.name))
        outcome.ended, outcome.error = False, None
        if not outcome.opened:
            dataset = self._checked.described(mine.config)
            self._tracker.start(mine.name, mine.name, mine.config, {"hflray.task": self.file.task}, dataset)
            self._send(mine)
            outcome.opened = True
        total = {"clustering": 1, "train_assigner": learning.total_of(mine.config)}
        self._progress.started(mine.name, mine.name, total.get(self.file.task, mine.config.max_rounds))

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        mine = self._of(trial)
        outcome, index, values = self.outcomes[mine.name], int(result["round"]), result["metrics"]
        if result.get("error"):
            outcome.error = result["error"]
            return
        if result.get("note"):
            self._progress.line(f"{mine.name}: {result['note']}")
        if outcome.round is not None and index <= outcome.round:
            return  # a trial that came back from its checkpoint repeats a round, bit for bit
        _add(outcome, index, values, keep=self.file.task == "assignment")
        outcome.changes = result.get("changes", outcome.changes)
        self._tracker.round(mine.name, index, values, result.get("schedule"), result.get("devices"))
        self._send(mine)
        if self.file.task == "clustering":
            self._progress.round(mine.name, mine.name, 1, 1, f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}")
            return
        if self.file.task == "train_assigner":
            done, total, unit, text = learning.progress_of(mine.config, index, values)
            self._progress.round(mine.name, mine.name, done, total, text, unit)
            return
        accuracy = f"accuracy {values[metrics.ACCURACY]:.1%}, " if metrics.ACCURACY in values else ""
        text = f"{accuracy}objective {values[metrics.ROUND_OBJECTIVE]:,.1f}"
        self._progress.round(mine.name, mine.name, index, mine.config.max_rounds, text)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        self._stop.saved(trial)
        outcome = self.outcomes[mine.name]
        if outcome.error is None:
            outcome.stopped = stopped_by(self.file, mine, outcome)
            # Read when it is sent: a sweep may be far ahead of its trackers.
            tables = Files(lambda folder: self._tracker.tables(mine.name).write(folder))
            self._tracker.artifact(mine.name, tables)
            saved, dataset = trial.checkpoint, self._checked.datasets.get(data_key(mine.config))
            if saved and self.file.task == "train_assigner":
                policy = self._folder / learning.POLICIES / f"{mine.name}.safetensors"
                learning.take_policy(saved, policy)
                self._progress.line(f"{mine.name}: policy in {policy}")
                self._tracker.artifact(mine.name, Files(lambda folder: [policy]))
            if saved and dataset is not None:
                self._tracker.artifact(mine.name, FinalModel(saved.as_directory, dataset))
        self._end(mine, outcome.error)
        if self.file.tune.population is None:  # whose trials may still take over this one's state
            slim(trial)
        self._trials.pop(trial.trial_id)
        if time.monotonic() - self._trimmed > TRIM_EVERY_S:
            self._trimmed = time.monotonic()
            trim()

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        self._stop.saved(trial)
        self.outcomes[mine.name].error = _reason(trial)
        self._end(mine, self.outcomes[mine.name].error)

    def _end(self, mine: Trial, error: str | None) -> None:
        outcome = self.outcomes[mine.name]
        outcome.ended = True
        tags = {STOPPED: outcome.stopped} if outcome.stopped else {}
        if outcome.changes:
            tags[CHANGES] = json.dumps(outcome.changes, ensure_ascii=False)
        self._tracker.finish(mine.name, error=error, tags=tags)
        self._send(mine)
        self._progress.ended(mine.name, mine.name, error, outcome.stopped)

    def _send(self, mine: Trial) -> None:
        """The journal to the storage: Tune saves what follows from a round only after it, so no round is missing."""
        if self._storage is not None:
            self._storage.send(mine.name)

    def _of(self, trial: Any) -> Trial:
        if trial.trial_id not in self._trials:
            name = trial_name(self.file, trial.config, trial.trial_id)
            made = make_trial(self.file, {k: v for k, v in trial.config["values"].items() if k != NAME})
            config = self._checked.resolved.get(name, made.config)
            self._trials[trial.trial_id] = Trial(name, made.values, config)
        return self._trials[trial.trial_id]


class ResultFile(JsonLoggerCallback):  # type: ignore[misc]
    """Tune's record of a trial's results, ``result.json``.

    Tune's own begins again with the copy in the results' folder whenever a trial goes on, although that lags behind by
    seconds: rounds were missing of the members of a population.
    """

    def _restore_from_remote(self, file_name: str, trial: Any) -> None:
        if not Path(trial.local_path, file_name).exists():
            super()._restore_from_remote(file_name, trial)


def slim(trial: Any) -> None:
    """Let go of what Tune remembers of an ended trial's results, of which it makes no use.

    That is the last results, in full, and the averages of every metric: 100 to 200 kB a trial, and again as text for
    each of its own saved states.
    """
    data = trial.run_metadata
    kept = ("trial_id", "training_iteration", "round", "done", "config")
    data.last_result = {key: data.last_result[key] for key in kept if key in data.last_result}
    data.metric_analysis, data.metric_n_steps = {}, {}
    for saved in data.checkpoint_manager.best_checkpoint_results:
        saved.metrics = {}
    trial.invalidate_json_state()


def trim() -> None:
    """Give freed memory back to the system: glibc keeps the gaps that ended trials leave in its many threads' heaps.

    Without it the driver of 200 short trials grows by 20 to 70 kB with each, although it holds on to nothing.
    """
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def _current_callback() -> SweepCallback | None:
    return SweepCallback.current


def _add(outcome: Outcome, index: int, values: dict[str, float], keep: bool) -> None:
    outcome.round = index
    outcome.values = outcome.values | values
    if keep:  # only the study's report reads it; a sweep of thousands of trials must not fill the driver's memory
        outcome.history.append(values)


def stopped_by(file: SweepFile, trial: Trial, outcome: Outcome) -> str | None:
    """What ended a trial before its last round, in words; None if it reached that round or its target."""
    if file.task != "experiment" or outcome.round is None or outcome.round >= trial.config.max_rounds:
        return None
    if metrics.ROUNDS_TO_TARGET in outcome.values:
        return None
    for name, bound in file.tune.stop.items():
        if outcome.values.get(name, -math.inf) >= bound:
            return f"{name} reached {bound:g} in round {outcome.round}"
    if file.tune.early_stopping is not None:
        return f"{file.tune.early_stopping.name} after round {outcome.round}"
    return None


def _reason(trial: Any) -> str:
    """One line that says why a trial failed, and where the traceback is."""
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8")
    except (OSError, TypeError):
        text = ""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'the trial ended without a word'} (traceback: {trial.error_file})"


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
        saves = file.task in ("experiment", "train_assigner") and any(trial.config.checkpoint.every for trial in trials)
        stop = CleanStop(folder.path.name, saves, progress.line)
        callback = SweepCallback(file, checked, progress, tracker, stop, storage, folder.path)
        if resume:
            for trial in trials:
                callback.take_over(trial)
        with stop, discoverable():
            _fit(folder, trials, checked, callback, placement, resume)
        known = [callback.outcomes.setdefault(t.name, Outcome(t.name)) for t in trials] if not file.tune.search else []
        outcomes = known or list(callback.outcomes.values())
        folder.finished = len(outcomes) >= count and all(outcome.ended for outcome in outcomes)
        folder.save()
        if storage:
            storage.send()
        with progress.phase(f"sending the rest to {titles(folder.sinks)} (Ctrl-C leaves it for later)"):
            tracker.close()
    return outcomes, tracker


def _fit(
    folder: SweepFolder,
    trials: Sequence[Trial],
    checked: Checked,
    callback: SweepCallback,
    placement: Placement,
    resume: bool,
) -> None:
    """Hand the trials to Tune. Its own reporters and log lines are off: the progress display says it all."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    # A trial that diverged reports no metrics; without this, that would end the whole sweep.
    os.environ["TUNE_DISABLE_STRICT_METRIC_CHECKING"] = "1"
    # Of Tune's own records result.json is kept; TensorBoard's and a CSV's would cost time each round and say no more.
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    import ray
    from ray import tune

    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    file = folder.file
    place = folder.storage or str(folder.path.parent)
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
        if resume and tune.Tuner.can_restore(f"{place}/{folder.path.name}"):
            put_back(place, folder.path.name)
            tuner = tune.Tuner.restore(
                f"{place}/{folder.path.name}", trainable=trainable, resume_unfinished=True, resume_errored=True
            )
        else:
            tuner = tune.Tuner(
                trainable,
                param_space=_space(file, trials),
                tune_config=_tune_config(file, trials),
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
