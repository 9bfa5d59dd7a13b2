"""The driver's callback, which passes Tune's events to the display, the journal and the trackers."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from ray.tune import Callback

from hflray import metrics
from hflray.errors import HflrayError, WriteError
from hflray.experiment.fleets import Fleets
from hflray.support.checkpoint import Checkpoints
from hflray.support.files import Failure, disk_failure, write
from hflray.sweep import SweepFile, Trial, make_trial
from hflray.sweep.compare import Outcome
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.progress import SweepProgress
from hflray.sweep.results import SweepFolder
from hflray.sweep.tasks import find_task
from hflray.sweep.tasks.base import Product
from hflray.tracking import Tracker
from hflray.tracking.history import STOPPED
from hflray.tracking.journal import run_of
from hflray.training import session
from hflray.tune.launch import LAST, NAME, TRIAL, VALUES, Unsaved
from hflray.tune.stopping import CleanStop

# The tag of a run with the settings that changed between rounds, [{"after_round", "changed", "from"}] in JSON.
CHANGES = "hflray.population"

HEAD = ("raylet", "gcs_server")  # Ray's processes without which no trial can go on


def _ends_the_sweep(method: Callable[..., None]) -> Callable[..., None]:
    """Let a journal that `method` cannot write, or may no longer write, end the sweep, and not only Tune's step.

    The error still reaches Tune, which then does not regard the trial as ended.
    """

    @wraps(method)
    def guarded(self: SweepCallback, *arguments: Any, **options: Any) -> None:
        try:
            method(self, *arguments, **options)
        except HflrayError as error:
            self.fail(error)
            raise
        except OSError as error:
            path = Path(str(error.filename)) if error.filename else None
            self.fail(self.unwritten(disk_failure(error) or Failure(error.errno or errno.EIO, path)))
            raise

    return guarded


class SweepCallback(Unsaved, Callback):  # type: ignore[misc]  # Ray ships no types for it
    """Pass Tune's events to the journal, the progress display, the tracker and the outcomes.

    Attributes:
        outcomes: the trials' outcomes by name.
        failure: the error that ends the sweep; None if there is none.
        refused: why trials cannot go on from their checkpoints, by name.
    """

    def __init__(
        self,
        folder: SweepFolder,
        checked: CheckedTrials,
        progress: SweepProgress,
        tracker: Tracker,
        stop: CleanStop,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.file, self._folder = folder.file, folder
        self._checked, self._progress, self._tracker, self._stop = checked, progress, tracker, stop
        self._check = check  # raises HflrayError once the lease on the storage is lost
        self.failure: HflrayError | None = None
        self.refused: dict[str, str] = {}
        self._task = find_task(self.file.task)
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, Trial] = {}
        self._head = head_processes()

    def take_over(self, name: str) -> None:
        """Restore a trial's outcome from its journal, whether or not Tune runs the trial again."""
        entries = self._tracker.journal.entries(name)
        outcome = self.outcomes[name] = Outcome.of(name, entries)
        self._progress.resumed(name, outcome.round or 0)
        if outcome.ended and self._prolonged(outcome, entries):
            outcome.ended, outcome.error, outcome.stopped = False, None, None
        if outcome.ended and outcome.error is None:
            self._progress.ended(name, name, stopped=outcome.stopped)

    def _prolonged(self, outcome: Outcome, entries: list[dict[str, Any]]) -> bool:
        """Return whether a run ended at its last round, and the sweep has got more rounds since (`sweep.prolong`)."""
        run, rounds = run_of(outcome.name, entries), self.file.experiment.get("max_rounds", 0)
        had = None if run is None or self.file.tune.bound(outcome.values) else run.params.get("max_rounds")
        return had is not None and outcome.round == had < rounds

    def fail(self, error: HflrayError) -> None:
        """End the sweep."""
        self.failure = self.failure or error
        self._stop.at_once()

    def unwritten(self, failure: Failure) -> WriteError:
        """Return the error of a file that cannot be written."""
        return WriteError(failure.line(self._folder.path, self._folder.resume_command))

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """React to Ctrl-C, and to the end of one of Ray's own processes, for which Tune would wait."""
        if lost := [name for pid, name in self._head.items() if not _runs(pid)]:
            session.keep()
            print(
                f"\nerror: Ray's {lost[0]} has ended, so no trial can go on; every finished round is saved; go on "
                f"with: {self._folder.resume_command}", file=sys.stderr, flush=True,
            )  # fmt: skip
            os._exit(1)  # Ray would wait for its lost process, and then end this one with a stack trace of C++
        if self.failure is None:
            try:
                self._check()
            except HflrayError as error:
                self.fail(error)
        self._stop.step(trials)

    @_ends_the_sweep
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._trial_of(trial)
        outcome.ended, outcome.error = False, None
        if outcome.round is None:
            self._open(sweep_trial, outcome)
        self._progress.started(sweep_trial.name, sweep_trial.name, self._task.total(sweep_trial.config))

    def _trial_of(self, trial: Any) -> tuple[Trial, Outcome]:
        """Return a trial and its outcome. Its first event need not be its start.

        A trial whose actor is lost while it is created only fails, and one that is stopped before only ends.
        """
        name, values = trial.config[TRIAL][NAME], trial.config[TRIAL][VALUES]
        if name not in self._trials:
            config = self._checked.resolved.get(name) or make_trial(self.file, values).config
            self._trials[name] = Trial(name, values, config)
        return self._trials[name], self.outcomes.setdefault(name, Outcome(name))

    def _open(self, trial: Trial, outcome: Outcome) -> None:
        """Begin the trial's run in the journal; one that goes on begins with its first event after the start."""
        if not outcome.opened:
            dataset, tags = self._checked.described(trial.config), {"hflray.task": self._task.name}
            self._tracker.start(trial.name, trial.name, trial.config, tags, dataset, self._task.learns)
            outcome.opened = True

    @_ends_the_sweep
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        sweep_trial, outcome = self._trial_of(trial)
        name, index, values = sweep_trial.name, int(result["round"]), result["metrics"]
        if result.get("saved"):
            self._stop.saved(trial)
        if result.get("disk"):
            number, path, needed_bytes = result["disk"]
            self.fail(self.unwritten(Failure(number, Path(path) if path else None, needed_bytes)))
        if result.get("refused"):
            self.refused[name] = result["error"]
        if result.get("error"):
            outcome.error = result["error"]
            return
        self._open(sweep_trial, outcome)
        if result.get("note"):
            self._progress.line(f"{name}: {result['note']}")
        outcome.by_itself = bool(result.get("last"))
        if outcome.round is not None and index <= outcome.round:
            self._compare_repeated(name, index, result.get("model_hash"))
            return
        outcome.add(index, values)
        outcome.changes = result.get("changes", outcome.changes)
        if result.get("devices") and self._folder.storage:
            Fleets(self._folder.place).copy(sweep_trial.config, Fleets(str(self._folder.path)))
        details = (result.get(key) for key in ("schedule", "devices", "timeline", "model_hash"))
        self._tracker.round(name, index, values, *details)
        done, total, unit, text = self._task.progress(sweep_trial.config, index, values)
        self._progress.round(name, name, done, total, text, unit)

    def _compare_repeated(self, name: str, round: int, model_hash: str | None) -> None:
        """Say if a round that is made again, after the last checkpoint, gives another model than the journal has."""
        entries = self._tracker.journal.entries(name)
        before = [entry.get("model_hash") for entry in entries if entry.get("round") == round]
        if model_hash and before and before[-1] not in (None, model_hash):
            self._progress.line(
                f"{name}: round {round} was made again and gives another model than before, which another CPU or "
                "library can do; the run's later rounds go on from the new one; --fresh begins anew"
            )

    @_ends_the_sweep
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._trial_of(trial)
        name = sweep_trial.name
        self._stop.saved(trial)
        if self.failure is not None or name in self.refused:
            return  # it has not ended, and goes on with a resume
        if outcome.error is None:
            self._open(sweep_trial, outcome)
            outcome.error = self._gap(name)
        if outcome.error is None:
            outcome.stopped = stopped_by(self.file, sweep_trial, outcome)
            self._tracker.artifact(name, "tables")
            self._tracker.timeline(name)
            checkpoints = Checkpoints(self._folder.place, name)
            saved = checkpoints.rounds()[:1] if self._task.saves else []
            if saved and self._task.product is not None:
                path = keep(self._task.product, checkpoints, saved[0], self._folder.path)
                self._progress.line(f"{name}: {self._task.product.label} in {path}")
                self._tracker.artifact(name, "file", str(path.relative_to(self._folder.path)))
            if saved and self._task.trains_model:
                self._tracker.artifact(name, "model")
        self._end(sweep_trial, outcome)
        slim(trial)
        self._trials.pop(name, None)

    @_ends_the_sweep
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        sweep_trial, outcome = self._trial_of(trial)
        self._stop.saved(trial)
        if self.failure is not None:
            return
        outcome.error = _reason(trial)
        self._end(sweep_trial, outcome)

    def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Say that a trial failed, and let it start again after the last round of its journal."""
        sweep_trial, outcome = self._trial_of(trial)
        trial.set_config(trial.config | {TRIAL: trial.config[TRIAL] | {LAST: outcome.round or 0}})
        again = f"it starts again ({trial.num_failures} of {self.file.tune.max_failures} times)"
        self._progress.line(f"{sweep_trial.name}: failed: {_reason(trial)}; {again}")

    def _gap(self, name: str) -> str | None:
        """Return what is wrong with a trial whose rounds in the journal are not 1, 2, 3 and so on."""
        numbers = [round.number for round in self._tracker.journal.rounds(name)]
        if not self._task.consecutive or numbers == list(range(1, len(numbers) + 1)):
            return None
        missing = sorted({*range(1, max(numbers) + 1)} - {*numbers})
        return f"its journal lacks the rounds {missing[0]} to {missing[-1]}; begin the sweep anew with --fresh"

    def _end(self, trial: Trial, outcome: Outcome) -> None:
        self._open(trial, outcome)
        outcome.ended = True
        tags = {STOPPED: outcome.stopped} if outcome.stopped else {}
        if outcome.changes:
            tags[CHANGES] = json.dumps(outcome.changes, ensure_ascii=False)
        self._tracker.finish(trial.name, error=outcome.error, tags=tags)
        self._progress.ended(trial.name, trial.name, outcome.error, outcome.stopped)


def slim(trial: Any) -> None:
    """Drop the data of an ended trial's results that Tune keeps in memory but does not use.

    These are the complete last results and the averages of every metric: 100 to 200 kB for each trial, and the same
    again as text in each saved state of Tune.
    """
    data = trial.run_metadata
    needed = ("trial_id", "training_iteration", "round", "done", "config")
    data.last_result = {key: data.last_result[key] for key in needed if key in data.last_result}
    data.metric_analysis, data.metric_n_steps = {}, {}
    trial.invalidate_json_state()


def head_processes() -> dict[int, str]:
    """Return the processes of `HEAD` that this process has started, by id; none for a Ray of somebody else."""
    states = {pid: _state(pid) for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*"))}
    return {pid: name for pid, (name, _, parent) in states.items() if name in HEAD and parent == os.getpid()}


def _state(pid: int) -> tuple[str, str, int]:
    """Return a process's name, its state and its parent; empty if there is no such process, or no such system."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        return name, rest.split()[0], int(rest.split()[1])
    except (OSError, IndexError):
        return "", "", 0


def _runs(pid: int) -> bool:
    return _state(pid)[1] not in ("", "Z", "X")


def keep(product: Product, checkpoints: Checkpoints, round: int, folder: Path) -> Path:
    """Copy the task's product from a trial's checkpoint into the sweep's folder and return the copy's path."""
    path = folder / product.folder / f"{checkpoints.trial}{Path(product.file).suffix}"
    with checkpoints.open(round) as source:
        return write(path, (source / product.file).read_bytes())


def stopped_by(file: SweepFile, trial: Trial, outcome: Outcome) -> str | None:
    """Return the reason why a trial ended early, or None if it reached its last round or its target."""
    if outcome.round is None or outcome.round >= trial.config.max_rounds:
        return None
    if metrics.ROUNDS_TO_TARGET in outcome.values:
        return None
    name = file.tune.bound(outcome.values)
    if name is not None:
        judged = metrics.on_validation(name) if metrics.on_validation(name) in outcome.values else name
        return f"{judged} reached {file.tune.stop[name]:g} in round {outcome.round}"
    if file.tune.early_stopping is not None and not outcome.by_itself:
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
