"""A sweep in the driver: Tune runs the trials, a callback tells the display, the journal and MLflow.

A trial's device actors reserve one CPU each in the trial's placement group, the trial itself and its edges none, so
that trials queue for CPUs instead of waiting for each other for ever. Every round is checkpointed; a sweep that was
stopped or killed goes on from there, bit for bit.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ray.tune import Callback
from rich.console import Console

from hflray import metrics
from hflray.compare import Outcome
from hflray.errors import ConfigError
from hflray.preflight import Checked, data_key
from hflray.progress import SweepProgress
from hflray.results import SweepFolder
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.tracking import Tracker, log_final_model, log_rounds
from hflray.training.hierarchy import start_ray
from hflray.training.plan import pool_size
from hflray.tune.trial import NAME, run_trial, trial_config


class SweepCallback(Callback):  # type: ignore[misc]  # Ray ships no types for it
    """Tune's events to the progress display, the tracker and the outcomes."""

    current: SweepCallback | None = None

    def __init__(self, file: SweepFile, checked: Checked, progress: SweepProgress, tracker: Tracker) -> None:
        self.file, self._checked, self._progress, self._tracker = file, checked, progress, tracker
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        SweepCallback.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks into the sweep's folder and takes them from there to resume. Screens and
        # connections do not go there: what comes back is the callback of the process that resumes.
        return _current_callback, ()

    def take_over(self, trial: Trial) -> None:
        """Know a trial of a resumed sweep from its journal, whether or not Tune runs it again."""
        outcome = self.outcomes.setdefault(trial.name, Outcome(trial.name))
        for index, values in self._tracker.history(trial.name):
            _add(outcome, index, values)
        outcome.ended, outcome.error = self._tracker.ended(trial.name)
        if outcome.ended:
            self._tracker.adopt(trial.name)
            self._progress.ended(trial.name, trial.name, error=outcome.error)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        outcome = self.outcomes.setdefault(mine.name, Outcome(mine.name))
        outcome.ended, outcome.error = False, None
        if not outcome.opened:
            dataset = self._checked.described(mine.config)
            self._tracker.start(mine.name, mine.name, mine.config, {"hflray.task": self.file.task}, dataset)
            outcome.opened = True
        self._progress.started(mine.name, mine.name, 1 if self.file.task == "clustering" else mine.config.max_rounds)

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
        _add(outcome, index, values)
        self._tracker.round(mine.name, index, values)
        if self.file.task == "clustering":
            self._progress.round(mine.name, mine.name, 1, 1, f"ARI {values.get(metrics.CLUSTERING_ARI, 0):.3f}")
            return
        accuracy = f"accuracy {values[metrics.ACCURACY]:.1%}, " if metrics.ACCURACY in values else ""
        text = f"{accuracy}objective {values[metrics.ROUND_OBJECTIVE]:,.1f}"
        self._progress.round(mine.name, mine.name, index, mine.config.max_rounds, text)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        outcome = self.outcomes[mine.name]
        if outcome.error is None:
            history = self._tracker.history(mine.name)
            self._tracker.extra(mine.name, lambda client, run_id: log_rounds(client, run_id, history))
            state = Path(trial.checkpoint.path) / "state" if trial.checkpoint else None
            dataset = self._checked.datasets.get(data_key(mine.config))
            if state is not None and dataset is not None:
                self._tracker.extra(mine.name, lambda client, run_id: log_final_model(client, run_id, state, dataset))
        self._end(mine, outcome.error)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        mine = self._of(trial)
        self.outcomes[mine.name].error = _reason(trial)
        self._end(mine, self.outcomes[mine.name].error)

    def _end(self, mine: Trial, error: str | None) -> None:
        self.outcomes[mine.name].ended = True
        self._tracker.finish(mine.name, error=error)
        self._progress.ended(mine.name, mine.name, error=error)

    def _of(self, trial: Any) -> Trial:
        if trial.trial_id not in self._trials:
            values = dict(trial.config["values"])
            name = values.pop(NAME, None)  # a search makes its own trials, of which two may be named alike
            made = make_trial(self.file, values)
            name = name or f"{made.name}-{trial.trial_id.rpartition('_')[2]}"
            config = self._checked.resolved.get(name, made.config)
            self._trials[trial.trial_id] = Trial(name, made.values, config)
        return self._trials[trial.trial_id]


def _current_callback() -> SweepCallback | None:
    return SweepCallback.current


def _add(outcome: Outcome, index: int, values: dict[str, float]) -> None:
    outcome.round = index
    outcome.values = outcome.values | values
    outcome.history.append(values)


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
        ConfigError: fewer CPUs than a trial needs, or a tracking store that cannot be opened but must be.
    """
    file = folder.file
    count = file.tune.samples if file.tune.search else len(trials)
    with SweepProgress(console, count, quiet) as progress:
        with progress.phase("starting Ray"):
            cpus = start_ray()
        if file.tune.cpus_per_trial > cpus:
            raise ConfigError(
                f"tune.cpus_per_trial: a trial needs {file.tune.cpus_per_trial} CPUs, Ray has {cpus}; "
                f"accepted: 1 to {cpus}; lower it, or add machines"
            )
        with progress.phase("opening MLflow"):
            tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path, require_tracking)
        folder.save()
        callback = SweepCallback(file, checked, progress, tracker)
        if resume:
            for trial in trials:
                callback.take_over(trial)
        _fit(folder, trials, checked, callback, resume)
        known = [callback.outcomes.setdefault(t.name, Outcome(t.name)) for t in trials] if not file.tune.search else []
        outcomes = known or list(callback.outcomes.values())
        folder.finished = len(outcomes) >= count and all(outcome.ended for outcome in outcomes)
        folder.save()
        with progress.phase("sending the rest to MLflow"):
            tracker.close()
    return outcomes, tracker


def _fit(folder: SweepFolder, trials: Sequence[Trial], checked: Checked, callback: SweepCallback, resume: bool) -> None:
    """Hand the trials to Tune. Its own reporters and log lines are off: the progress display says it all."""
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # the new reporter prints its banner at any verbosity
    from ray import tune
    from ray.tune.execution.placement_groups import PlacementGroupFactory

    for name in ("ray.tune", "ray.train", "ray.air", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    file = folder.file
    function = tune.with_parameters(
        run_trial, file=file.model_dump(mode="json", exclude_unset=True), datasets=checked.datasets
    )

    def resources(params: dict[str, Any]) -> PlacementGroupFactory:
        config, cpus = trial_config(file, params), file.tune.cpus_per_trial
        if config.training.backend == "serial" or file.task == "assignment":
            return PlacementGroupFactory([{"CPU": cpus}])
        actors, share = pool_size(config.training, config.scheduling.num_scheduled, cpus)
        return PlacementGroupFactory([{"CPU": 0}, *[{"CPU": share}] * actors])

    trainable = tune.with_resources(function, resources)
    # SIGTERM as Ctrl-C: Tune stops its trials, which lose the round they are in, and saves where they are.
    before = signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
    try:
        if resume and tune.Tuner.can_restore(str(folder.path)):
            tuner = tune.Tuner.restore(
                str(folder.path), trainable=trainable, resume_unfinished=True, resume_errored=True
            )
        else:
            tuner = tune.Tuner(
                trainable,
                param_space=_space(file, trials),
                tune_config=_tune_config(file, trials),
                run_config=tune.RunConfig(
                    name=folder.path.name,
                    storage_path=str(folder.path.parent),
                    callbacks=[callback],
                    verbose=0,
                    stop={f"metrics/{name}": bound for name, bound in file.tune.stop.items()} or None,
                    failure_config=tune.FailureConfig(max_failures=file.tune.max_failures),
                    checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
                ),
            )
        tuner.fit()
    except KeyboardInterrupt:
        pass  # the second one; what is saved is saved
    finally:
        signal.signal(signal.SIGTERM, before)


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
    options: dict[str, Any] = {"max_concurrent_trials": settings.max_concurrent}
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
    return tune.TuneConfig(**options)
