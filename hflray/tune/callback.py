"""What the driver hears of a sweep while it runs: Tune's events, for the display, the journal and the trackers."""

from __future__ import annotations

import ctypes
import json
import math
import shutil
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.logger import JsonLoggerCallback

from hflray import metrics
from hflray.compare import Outcome
from hflray.preflight import Checked
from hflray.progress import SweepProgress
from hflray.scenario import data_key
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.tasks import find_task
from hflray.tasks.base import Product
from hflray.tracking import Files, FinalModel, Tracker
from hflray.tune.stopping import CleanStop
from hflray.tune.storage import Storage
from hflray.tune.trial import NAME, trial_name

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
        self._task = find_task(file.task)
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        self._trimmed = time.monotonic()
        SweepCallback.current = self

    def __reduce__(self) -> tuple[Any, ...]:
        # Tune pickles its callbacks into the sweep's folder and takes them from there to resume. Screens and
        # connections do not go there: what comes back is the callback of the process that resumes.
        return current_callback, ()

    def take_over(self, trial: Trial) -> None:
        """Know a trial of a resumed sweep from its journal, whether or not Tune runs it again."""
        outcome = self.outcomes.setdefault(trial.name, Outcome(trial.name))
        for index, values in self._tracker.history(trial.name):
            _add(outcome, index, values, keep=self._task.keeps_history)
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
            tags = {"hflray.task": self._task.name}
            self._tracker.start(mine.name, mine.name, mine.config, tags, dataset, self._task.learns)
            self._send(mine)
            outcome.opened = True
        self._progress.started(mine.name, mine.name, self._task.total(mine.config))

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
        _add(outcome, index, values, keep=self._task.keeps_history)
        outcome.changes = result.get("changes", outcome.changes)
        self._tracker.round(mine.name, index, values, result.get("schedule"), result.get("devices"))
        self._send(mine)
        done, total, unit, text = self._task.progress(mine.config, index, values)
        self._progress.round(mine.name, mine.name, done, total, text, unit)

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
            if saved and self._task.product is not None:
                path = keep(self._task.product, saved, self._folder, mine.name)
                self._progress.line(f"{mine.name}: {self._task.product.label} in {path}")
                self._tracker.artifact(mine.name, Files(lambda folder: [path]))
            if saved and self._task.trains_model and dataset is not None:
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


def current_callback() -> SweepCallback | None:
    return SweepCallback.current


def _add(outcome: Outcome, index: int, values: dict[str, float], keep: bool) -> None:
    outcome.round = index
    outcome.values = outcome.values | values
    if keep:  # only the study's report reads it; a sweep of thousands of trials must not fill the driver's memory
        outcome.history.append(values)


def keep(product: Product, checkpoint: Any, folder: Path, trial: str) -> Path:
    """Copy what a task keeps of a trial's last checkpoint, wherever that lies, into the sweep's folder."""
    path = folder / product.folder / f"{trial}{Path(product.file).suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    with checkpoint.as_directory() as source:
        shutil.copyfile(Path(source) / product.file, path)
    return path


def stopped_by(file: SweepFile, trial: Trial, outcome: Outcome) -> str | None:
    """What ended a trial before its last round, in words; None if it reached that round or its target."""
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
    """One line that says why a trial failed, and where the traceback is."""
    try:
        text = Path(trial.error_file).read_text(encoding="utf-8")
    except (OSError, TypeError):
        text = ""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return f"{lines[-1] if lines else 'the trial ended without a word'} (traceback: {trial.error_file})"
