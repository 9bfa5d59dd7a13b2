"""`hflray.tune.callback`: what becomes of a trial's events, in any order, and of a journal that cannot be written."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.trainable.metadata import _TrainingRunMetadata

from hflray.support.checkpoint import Checkpoints
from hflray.sweep import expand, load_sweep
from hflray.sweep.compare import Outcome
from hflray.sweep.preflight import CheckedTrials
from hflray.sweep.tasks.base import Product
from hflray.tracking import Tracker
from hflray.tune import callback as module
from hflray.tune.callback import SweepCallback
from tests.conftest import SMALL, cases
from tests.tracking import conftest as tracking

diary = tracking.diary  # a fixture


class Screen:
    """Records the lines of a progress display."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str) -> None:
        self.lines.append(text)

    def ended(self, key: str, name: str, error: str | None = None, stopped: str | None = None) -> None:
        self.lines.append(f"{name}: ended, {error}")

    def started(self, *about: object) -> None:
        return

    def round(self, *about: object) -> None:
        return


LOST = """Failure # 1 (occurred at 2026-01-01)
ray::run() (pid=1)
  File "trial.py", line 3, in run
ValueError: not this one
Failure # 2 (occurred at 2026-01-02)
1 worker(s) were killed due to the node running low on memory.
Top 10 memory users: PID MEM(GB) COMMAND
Refer to the documentation
"""


@pytest.fixture
def told(tmp_path, diary) -> Iterator[tuple[SweepCallback, Screen, Any]]:
    """Yield a callback, what it prints, and a trial that Tune has not started."""
    file = load_sweep(None, ["sweep.seed={grid: [1]}", *SMALL])
    (planned,) = expand(file)
    tracker, screen = Tracker("", "tests", "sweep", tmp_path, sinks=("diary",)), Screen()
    stop: Any = SimpleNamespace(saved=lambda trial: None, at_once=lambda: None)
    (tmp_path / "error.txt").write_text(LOST)
    trial = SimpleNamespace(
        trial_id="a", config={"trial": {"name": planned.name, "values": planned.values, "last": 0}},
        error_file=str(tmp_path / "error.txt"), num_failures=2, invalidate_json_state=lambda: None,
        run_metadata=SimpleNamespace(last_result={}),
    )  # fmt: skip
    trial.set_config = lambda config: setattr(trial, "config", config)
    folder: Any = SimpleNamespace(
        file=file, path=tmp_path, place=str(tmp_path), resume_command="hflray tune --resume x"
    )
    yield SweepCallback(folder, CheckedTrials(), screen, tracker, stop), screen, trial  # type: ignore[arg-type]
    tracker.close(0.1)


RESULT = {"round": 1, "metrics": {"accuracy": 0.5, "round/objective": 1.0}}


@pytest.mark.parametrize("events", cases("tune/events"))
def test_the_events_of_a_trial_come_in_any_order(told, events: list[str]) -> None:
    """A trial whose actor is lost while it is created fails without a start, and begins a run all the same."""
    callback, screen, trial = told
    for event in events:
        more = {"result": RESULT} if event == "result" else {}
        getattr(callback, f"on_trial_{event}")(0, [trial], trial=trial, **more)
    (outcome,) = callback.outcomes.values()
    failed = events[-1] == "error"
    assert outcome.ended
    assert outcome.opened
    assert (outcome.error is not None) is failed
    ending = callback._tracker.journal.ending(outcome.name)
    assert ending is not None
    assert ending.status == ("FAILED" if failed else "FINISHED")
    lost = "1 worker(s) were killed due to the node running low on memory. (traceback: "
    again = [line for line in screen.lines if line.endswith("it starts again (2 of 2 times)")]
    assert len(again) == events.count("recover")
    assert all(f"{outcome.name}: failed: {lost}" in line for line in again)
    assert not failed or str(outcome.error).startswith(lost)


def test_the_reason_of_a_failure_is_the_end_of_a_traceback(told, tmp_path) -> None:
    _, _, trial = told
    (tmp_path / "error.txt").write_text(LOST.partition("Failure # 2")[0])
    assert module._reason(trial).startswith("ValueError: not this one (traceback: ")
    assert module._reason(SimpleNamespace(error_file=None)).startswith("the trial ended without a message")


def test_a_restarted_trial_goes_on_after_the_last_round_of_its_journal(told) -> None:
    callback, _, trial = told
    callback.on_trial_result(0, [trial], trial=trial, result=RESULT)
    callback.on_trial_recover(0, [trial], trial=trial)
    assert trial.config["trial"]["last"] == 1


def test_a_trial_whose_rounds_have_a_gap_is_not_finished(told) -> None:
    callback, _, trial = told
    for number in (1, 2, 5):
        callback.on_trial_result(0, [trial], trial=trial, result=RESULT | {"round": number})
    callback.on_trial_complete(0, [trial], trial=trial)
    (outcome,) = callback.outcomes.values()
    assert outcome.error == "its journal lacks the rounds 3 to 4; begin the sweep anew with --fresh"


@pytest.mark.parametrize(
    "result",
    [
        {"round": -1, "metrics": {}, "error": "no room", "disk": [errno.ENOSPC, "/x/y", 2**21]},
        {"round": -1, "metrics": {}, "error": "of another version", "refused": True},
    ],
)
def test_a_trial_that_could_not_save_or_begin_has_not_ended(told, result) -> None:
    callback, _, trial = told
    callback.on_trial_result(0, [trial], trial=trial, result=RESULT)
    callback.on_trial_result(0, [trial], trial=trial, result=result)
    callback.on_trial_complete(0, [trial], trial=trial)
    (outcome,) = callback.outcomes.values()
    assert callback._tracker.journal.ending(outcome.name) is None
    if "disk" in result:
        assert str(callback.failure).startswith("/x/y: cannot be written (No space left on device; 2.0 MiB needed")
        assert str(callback.failure).endswith("go on with: hflray tune --resume x")
    else:
        assert callback.refused == {outcome.name: "of another version"}


def test_a_journal_that_cannot_be_written_ends_the_sweep(told, monkeypatch) -> None:
    callback, _, trial = told

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/x/y")

    monkeypatch.setattr(callback._tracker.journal, "write", full)
    with pytest.raises(OSError, match="No space"):
        callback.on_trial_result(0, [trial], trial=trial, result=RESULT)
    assert "No space left on device" in str(callback.failure)


def test_tune_keeps_little_of_an_ended_trial() -> None:
    """A trial of thousands leaves a few bytes in the driver and in the states that Tune saves."""
    data = _TrainingRunMetadata()
    values = {f"edge/{m}/delay_s": 1.5 for m in range(60)}
    data.last_result = {"trial_id": "a", "round": 2, "done": True, "metrics": values}
    for name, value in values.items():
        data.update_metric(f"metrics/{name}", value)
    trial = SimpleNamespace(run_metadata=data, invalidate_json_state=lambda: None)
    before = len(data.get_json_state())
    module.slim(trial)
    assert len(data.get_json_state()) < before / 10


@pytest.mark.parametrize("last, values, reason", cases("tune/endings"))
def test_why_a_trial_ended_early(last, values, reason) -> None:
    file = load_sweep(None, ["max_rounds=3", "tune.stop={accuracy: 0.8}", "tune.early_stopping={metric: accuracy}"])
    (trial, *_) = expand(file)
    assert module.stopped_by(file, trial, Outcome(trial.name, round=last, values=values)) == reason


def test_a_run_that_ends_itself_is_not_said_to_be_stopped_by_a_rule() -> None:
    file = load_sweep(None, ["max_rounds=9", "tune.early_stopping={metric: accuracy}"])
    (trial, *_) = expand(file)
    outcome = Outcome(trial.name, round=7)
    assert module.stopped_by(file, trial, outcome) == "asha after round 7"
    outcome.by_itself = True  # as by an observer
    assert module.stopped_by(file, trial, outcome) is None


def test_a_round_that_is_made_again_with_another_model_is_told(told) -> None:
    callback, screen, trial = told
    for model in ("a" * 64, "a" * 64, "b" * 64):
        callback.on_trial_result(0, [trial], trial=trial, result=RESULT | {"model_hash": model})
        assert len(screen.lines) == (model[0] == "b")
    assert "round 1 was made again and gives another model than before" in screen.lines[0]


def test_what_a_member_of_a_population_changed_is_a_tag_of_its_run(told) -> None:
    callback, _, trial = told
    change = {"after_round": 1, "changed": {"training.batch_size": [8, 16]}, "from": "b"}
    callback.on_trial_result(0, [trial], trial=trial, result=RESULT | {"changes": [change]})
    callback.on_trial_complete(0, [trial], trial=trial)
    (outcome,) = callback.outcomes.values()
    ending = callback._tracker.journal.ending(outcome.name)
    assert ending is not None
    assert json.loads(ending.tags[module.CHANGES]) == [change]


def test_the_product_of_a_task_is_kept_in_the_sweeps_folder(tmp_path) -> None:
    def fill(folder: Path) -> None:
        (folder / "policy.safetensors").write_bytes(b"weights")

    checkpoints = Checkpoints(str(tmp_path), "t")
    checkpoints.save(3, fill)
    path = module.keep(Product("policy.safetensors", "policies", "policy"), checkpoints, 3, tmp_path)
    assert (path, path.read_bytes()) == (tmp_path / "policies" / "t.safetensors", b"weights")
