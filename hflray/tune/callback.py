"""The driver's callback, which passes Tune's events to the display, the journal and the trackers."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from ray.air.constants import EXPR_RESULT_FILE
from ray.tune import Callback
from ray.tune.logger import JsonLoggerCallback
from ray.tune.utils.util import SafeFallbackEncoder

from hflray import metrics
from hflray.experiment.scenario import data_key
from hflray.support.files import Failure, append_line, disk_failure, write
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.sweep.compare import Outcome
from hflray.sweep.preflight import Checked
from hflray.sweep.progress import SweepProgress
from hflray.sweep.tasks import find_task
from hflray.sweep.tasks.base import Product
from hflray.tracking import Tracker
from hflray.tune.digests import TUNER, TuneDigests
from hflray.tune.disk_pause import RoomWatch
from hflray.tune.mending import DAMAGED, read_tuner
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage
from hflray.tune.trial import NAME, trial_name

# Tags of a run.
STOPPED = "hflray.stopped"  # why the run was stopped early
CHANGES = "hflray.population"  # settings that changed between rounds, [{"after_round", "changed", "from"}] in JSON


def _ends_the_sweep(method: Callable[..., None]) -> Callable[..., None]:
    """Let a file that `method` cannot write end the sweep, and not only Tune's present step.

    The error still reaches Tune, which then does not regard the trial as ended.
    """

    @wraps(method)
    def guarded(self: SweepCallback | ResultFile, *arguments: Any, **options: Any) -> None:
        try:
            method(self, *arguments, **options)
        except OSError as error:
            path = Path(str(error.filename)) if error.filename else None
            self.fail(disk_failure(error) or Failure(error.errno or errno.EIO, path))
            raise

    return guarded


class SweepCallback(Callback):  # type: ignore[misc]  # Ray ships no types for it
    """Pass Tune's events to the progress display, the tracker and the outcomes.

    Attributes:
        outcomes: the trials' outcomes by name.
        failure: why a file of the sweep could not be written; None if all could.
    """

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
        digests: TuneDigests | None = None,
        watch: RoomWatch | None = None,
    ) -> None:
        self.file, self._checked, self._progress, self._tracker = file, checked, progress, tracker
        self._stop, self._storage, self._folder, self._watch = stop, storage, folder, watch
        self.failure: Failure | None = None
        self._task = find_task(file.task)
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        self._digests, self._staging = digests or TuneDigests(folder), Path()
        SweepCallback.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks into the sweep's folder and loads them to resume. Screens and connections cannot be
        # pickled, so the pickle loads as the callback of the process that resumes.
        return current_callback, ()

    def take_over(self, name: str) -> None:
        """Restore a trial's outcome of a resumed sweep from its journal, whether or not Tune runs the trial again."""
        outcome = self.outcomes.setdefault(name, Outcome(name))
        for index, values in self._tracker.history(name):
            _add(outcome, index, values, keep=self._task.keeps_history)
        outcome.ended, outcome.error = self._tracker.ended(name)
        outcome.stopped = self._tracker.end_tags(name).get(STOPPED)
        self._progress.resumed(name, outcome.round or 0)
        if outcome.ended:
            self._progress.ended(name, name, outcome.error, outcome.stopped)

    def fail(self, failure: Failure) -> None:
        """End the sweep, because a file could not be written."""
        self.failure = self.failure or failure
        self._stop.at_once()

    def record_tuner(self, place: str) -> None:
        """Record the digest of the file that Tune has written at its start into the folder or bucket `place`."""
        self._digests.add(TUNER, read_tuner(place, self._folder.name))
        self._save_digests()

    def get_state(self) -> None:
        """Record the digests of Tune's state. Tune calls this when it has staged its state, before it copies it."""
        if self._staging == Path():  # Tune has not made its trials yet
            return
        with suppress(OSError):  # without a record, a resume uses the trials' own checkpoints
            if self._digests.add_staged(self._staging):
                self._save_digests()

    def _save_digests(self) -> None:
        self._digests.save()
        if self._storage is not None:
            self._storage.send()

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        if self._staging == Path() and trials:
            self._staging = Path(trials[0].storage.experiment_driver_staging_path)
            self.get_state()  # Tune has staged its first state already
        failure = None if self._watch is None else self._watch.step()
        if failure is not None:
            self.fail(failure)
        self._stop.step(trials)

    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Keep Tune from opening the pickles of the trials' errors, which may be a stranger's."""
        for trial in trials:
            trial.run_metadata.pickled_error_filename = None

    def on_trial_save(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        self._stop.saved(trial)

    @_ends_the_sweep
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._opened(trial)
        outcome.ended, outcome.error = False, None
        self._progress.started(sweep_trial.name, sweep_trial.name, self._task.total(sweep_trial.config))

    def _opened(self, trial: Any) -> tuple[Trial, Outcome]:
        """Return a trial and its outcome, and begin its run with the first event, which need not be its start.

        A trial whose actor is lost while it is created only fails, and one that is stopped before only ends.
        """
        sweep_trial = self._sweep_trial(trial)
        outcome = self.outcomes.setdefault(sweep_trial.name, Outcome(sweep_trial.name))
        if not outcome.opened:
            dataset = self._checked.described(sweep_trial.config)
            tags = {"hflray.task": self._task.name}
            self._tracker.start(
                sweep_trial.name, sweep_trial.name, sweep_trial.config, tags, dataset, self._task.learns
            )
            self._send(sweep_trial)
            outcome.opened = True
        return sweep_trial, outcome

    @_ends_the_sweep
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        sweep_trial, outcome = self._opened(trial)
        index, values = int(result["round"]), result["metrics"]
        if result.get("error"):
            outcome.error = result["error"]
            return
        if result.get("note"):
            self._progress.line(f"{sweep_trial.name}: {result['note']}")
        if outcome.round is not None and index <= outcome.round:
            return  # a trial that continues from its checkpoint repeats a round, bit for bit
        _add(outcome, index, values, keep=self._task.keeps_history)
        outcome.changes = result.get("changes", outcome.changes)
        details = (result.get(key) for key in ("schedule", "devices", "timeline"))
        self._tracker.round(sweep_trial.name, index, values, *details)
        self._send(sweep_trial)
        done, total, unit, text = self._task.progress(sweep_trial.config, index, values)
        self._progress.round(sweep_trial.name, sweep_trial.name, done, total, text, unit)

    @_ends_the_sweep
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._opened(trial)
        self._stop.saved(trial)
        if outcome.error is None:
            outcome.stopped = stopped_by(self.file, sweep_trial, outcome)
            self._tracker.artifact(sweep_trial.name, "tables")
            self._tracker.timeline(sweep_trial.name)
            saved, dataset = trial.checkpoint, self._checked.datasets.get(data_key(sweep_trial.config))
            if saved and self._task.product is not None:
                path = keep(self._task.product, saved, self._folder, sweep_trial.name)
                self._progress.line(f"{sweep_trial.name}: {self._task.product.label} in {path}")
                self._tracker.artifact(sweep_trial.name, "file", str(path.relative_to(self._folder)))
            if saved and self._task.trains_model and dataset is not None:
                self._tracker.artifact(sweep_trial.name, "model")
        self._end(sweep_trial, outcome.error)
        if self.file.tune.population is None:  # in a population other trials may still adopt this trial's state
            slim(trial)
        self._trials.pop(trial.trial_id, None)

    @_ends_the_sweep
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._opened(trial)
        self._stop.saved(trial)
        outcome.error = _reason(trial)
        self._end(sweep_trial, outcome.error)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial failed and starts again."""
        again = f"it starts again ({trial.num_failures} of {self.file.tune.max_failures} times)"
        self._progress.line(f"{self._sweep_trial(trial).name}: failed: {_reason(trial)}; {again}")

    def _end(self, sweep_trial: Trial, error: str | None) -> None:
        outcome = self.outcomes[sweep_trial.name]
        outcome.ended = True
        tags = {STOPPED: outcome.stopped} if outcome.stopped else {}
        if outcome.changes:
            tags[CHANGES] = json.dumps(outcome.changes, ensure_ascii=False)
        self._tracker.finish(sweep_trial.name, error=error, tags=tags)
        self._send(sweep_trial)
        self._progress.ended(sweep_trial.name, sweep_trial.name, error, outcome.stopped)

    def _send(self, sweep_trial: Trial) -> None:
        """Send the journal to the storage. Tune saves its state of a round only afterwards, so no round is missing."""
        if self._storage is not None:
            self._storage.send(sweep_trial.name)

    def _sweep_trial(self, trial: Any) -> Trial:
        if trial.trial_id not in self._trials:
            name = trial_name(self.file, trial.config, trial.trial_id)
            point = make_trial(self.file, {k: v for k, v in trial.config["values"].items() if k != NAME})
            config = self._checked.resolved.get(name, point.config)
            self._trials[trial.trial_id] = Trial(name, point.values, config)
        return self._trials[trial.trial_id]


class ResultFile(JsonLoggerCallback):  # type: ignore[misc]
    """Tune's record of a trial's results, ``result.json``, in whole lines.

    Tune's own class writes it into Ray's temporary folder, from which Tune copies it to the results' folder every few
    seconds, and a trial that continues begins with that copy. The rounds since the last copy were therefore missing
    after a kill. This class adds each line to the file in the results' folder itself. A round that is repeated is in it
    twice. Only a file for a bucket, to which nothing can be added, is written and copied as Tune does it.
    """

    def log_trial_start(self, trial: Any) -> None:
        """Write the trial's parameters, and begin or fetch a file that is copied. A file of no use is set aside."""
        path = _result_path(trial)
        if path is None:
            super().log_trial_start(trial)
            return
        trial.init_local_path()
        self.update_config(trial, trial.config)
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            path.replace(path.with_name(DAMAGED + path.name))  # the journal has all rounds, so that it stops nothing

    @_ends_the_sweep
    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        """Append a line, all of it or nothing."""
        path = _result_path(trial)
        if path is None and trial not in self._trial_files:
            self.log_trial_start(trial)
        path = path or Path(trial.local_path, EXPR_RESULT_FILE)
        slim_result = {key: value for key, value in result.items() if key != "timeline"}  # the journal has it
        append_line(path, json.dumps(slim_result, cls=SafeFallbackEncoder))

    def fail(self, failure: Failure) -> None:
        """End the sweep, because a line could not be written."""
        if SweepCallback.current is not None:
            SweepCallback.current.fail(failure)

    def _restore_from_remote(self, file_name: str, trial: Any) -> None:
        if not Path(trial.local_path, file_name).exists():  # the copy is seconds old
            super()._restore_from_remote(file_name, trial)


def _result_path(trial: Any) -> Path | None:
    """Return the path of a trial's ``result.json`` in the results' folder, or None if that is a bucket."""
    if not isinstance(trial.storage.storage_filesystem, LocalFileSystem):
        return None
    folder = Path(str(trial.storage.trial_fs_path))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / str(EXPR_RESULT_FILE)


def slim(trial: Any) -> None:
    """Drop the data of an ended trial's results that Tune keeps in memory but does not use.

    These are the complete last results and the averages of every metric: 100 to 200 kB for each trial, and the same
    again as text in each saved state of Tune.
    """
    data = trial.run_metadata
    needed = ("trial_id", "training_iteration", "round", "done", "config")
    data.last_result = {key: data.last_result[key] for key in needed if key in data.last_result}
    data.metric_analysis, data.metric_n_steps = {}, {}
    for saved in data.checkpoint_manager.best_checkpoint_results:
        saved.metrics = {}
    trial.invalidate_json_state()


def current_callback() -> SweepCallback | None:
    """Return the callback of this process, or None if it has none."""
    return SweepCallback.current


def _add(outcome: Outcome, index: int, values: dict[str, float], keep: bool) -> None:
    outcome.round = index
    outcome.values = outcome.values | values
    if keep:  # only the study's report needs it, and thousands of trials must not fill the driver's memory
        outcome.history.append(values)


def keep(product: Product, checkpoint: Any, folder: Path, trial: str) -> Path:
    """Copy the task's product from a trial's last checkpoint into the sweep's folder and return the copy's path."""
    path = product_path(product, folder, trial)
    with checkpoint.as_directory() as source:
        return write(path, (Path(source) / product.file).read_bytes())


def product_path(product: Product, folder: Path, trial: str) -> Path:
    """Return the path of the copy of a trial's product in the sweep's folder."""
    return folder / product.folder / f"{trial}{Path(product.file).suffix}"


def stopped_by(file: SweepFile, trial: Trial, outcome: Outcome) -> str | None:
    """Return the reason why a trial ended early, or None if it reached its last round or its target."""
    if outcome.round is None or outcome.round >= trial.config.max_rounds:
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
    """Return one line with the reason of a trial's last failure and the path of Tune's text of all of them.

    A traceback ends with the reason. What Ray says of a lost process begins with it, and lists the machine's memory.
    """
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8").rpartition("Failure # ")[2].partition("\n")[2]
    except (OSError, TypeError):
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = "Traceback" in text or ' File "' in text
    reason = lines[-1 if last else 0] if lines else "the trial ended without a message"
    return f"{reason} (traceback: {trial.error_file})"
