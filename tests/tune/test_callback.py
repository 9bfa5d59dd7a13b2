"""`hflray.tune.callback`: Tune's record of a trial has each round as soon as it is made."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from hflray.support.files import Failure
from hflray.tune import callback as module
from hflray.tune.callback import ResultFile, SweepCallback


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
