"""`hflray.tune.callback`: Tune's record of a trial has each round as soon as it is made."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from hflray.support.files import Failure
from hflray.sweep import expand, load_sweep
from hflray.sweep.preflight import Checked
from hflray.tracking import Tracker
from hflray.tune import callback as module
from hflray.tune.callback import ResultFile, SweepCallback
from hflray.tune.trial import NAME
from tests.conftest import SMALL
from tests.tracking import conftest as tracking

diary = tracking.diary  # a fixture


def rounds(config: dict[str, int]) -> None:
    from ray import tune

    for number in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            tune.report({"round": number}, checkpoint=tune.Checkpoint.from_directory(folder))


def run(place: Path, seen: list[tuple[list[int], bool]], bucket: bool = False) -> None:
    """Run two rounds with `ResultFile`; for each, `seen` gets the rounds in the results and whether any is staged."""
    from ray import tune

    class Look(tune.Callback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: list[Any], trial: Any, result: Any, **info: Any) -> None:
            path = place / "sweep" / trial.storage.trial_dir_name / "result.json"
            lines = path.read_text().splitlines() if path.exists() else []
            seen.append(([json.loads(line)["round"] for line in lines], Path(trial.local_path, "result.json").exists()))

    storage: dict[str, Any] = {"storage_path": str(place)}
    if bucket:
        storage = {"storage_path": "/", "storage_filesystem": SubTreeFileSystem(str(place), LocalFileSystem())}
    config = tune.RunConfig(name="sweep", verbose=0, callbacks=[ResultFile(), Look()], **storage)
    tune.Tuner(rounds, param_space={"x": 1}, run_config=config).fit()


@pytest.fixture(autouse=True)
def _without_tunes_own_record(monkeypatch) -> None:
    monkeypatch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")


def test_a_round_is_in_the_results_at_once_and_nothing_is_staged(ray_session, tmp_path) -> None:
    seen: list[tuple[list[int], bool]] = []
    run(tmp_path, seen)
    assert seen == [([1], False), ([1, 2], False)]
    (path,) = tmp_path.glob("sweep/*/result.json")
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2]
    assert json.loads((path.parent / "params.json").read_text()) == {"x": 1}


def test_the_record_for_a_bucket_is_staged_and_copied(ray_session, tmp_path) -> None:
    seen: list[tuple[list[int], bool]] = []
    run(tmp_path, seen, bucket=True)
    assert [staged for _, staged in seen] == [True, True]
    (path,) = tmp_path.glob("sweep/*/result.json")
    assert [json.loads(line)["round"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_record_that_cannot_be_written_ends_the_sweep(ray_session, tmp_path, monkeypatch) -> None:
    failures: list[Failure] = []

    class Driver:
        fail = failures.append

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(module, "append_line", full)
    monkeypatch.setattr(SweepCallback, "current", Driver)
    with pytest.raises(Exception, match="No space left"):
        run(tmp_path, [])
    (failure,) = {*failures}
    assert failure.number == errno.ENOSPC
    assert failure.path is not None
    assert failure.path.name == "result.json"


def test_a_record_that_nobody_may_read_is_set_aside(tmp_path, monkeypatch) -> None:
    """Root may read every file, so the answer of the system is replaced."""
    record = ResultFile()
    monkeypatch.setattr(record, "update_config", lambda trial, config: None)
    storage = SimpleNamespace(storage_filesystem=LocalFileSystem(), trial_fs_path=str(tmp_path / "t"))
    trial = SimpleNamespace(storage=storage, config={}, init_local_path=lambda: None)
    record.log_trial_start(trial)  # there is no file yet
    record.log_trial_result(1, trial, {"round": 1})
    record.log_trial_start(trial)  # a trial that continues adds to it
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: path.name != "result.json")
        record.log_trial_start(trial)
    record.log_trial_result(2, trial, {"round": 2})
    assert (tmp_path / "t" / "damaged-result.json").read_text() == '{"round": 1}\n'
    assert (tmp_path / "t" / "result.json").read_text() == '{"round": 2}\n'


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
    stop: Any = SimpleNamespace(saved=lambda trial: None)
    (tmp_path / "error.txt").write_text(LOST)
    trial = SimpleNamespace(
        trial_id="a", config={"values": {**planned.values, NAME: planned.name}}, checkpoint=None,
        error_file=str(tmp_path / "error.txt"), num_failures=2, invalidate_json_state=lambda: None,
        run_metadata=SimpleNamespace(last_result={}, checkpoint_manager=SimpleNamespace(best_checkpoint_results=[])),
    )  # fmt: skip
    yield SweepCallback(file, Checked(), screen, tracker, stop, folder=tmp_path), screen, trial  # type: ignore[arg-type]
    tracker.close(0.1)
    SweepCallback.current = None


RESULT = {"round": 1, "metrics": {"accuracy": 0.5, "round/objective": 1.0}}


@pytest.mark.parametrize(
    "events",
    [
        ["error"],
        ["recover", "error"],
        ["recover", "recover", "start", "result", "complete"],
        ["complete"],
        ["result", "complete"],
        ["start", "error", "start", "complete"],
        ["start", "result", "complete", "complete"],
    ],
)
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
