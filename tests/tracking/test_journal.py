"""hflray.tracking.journal: entries are read again, even beside truncated ones."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hflray import files
from hflray.tracking import Ending, Journal, Tracker, default_uri, read_journal
from tests.conftest import small_config

OLD = Path(__file__).parent / "from_6c93c38"  # a sweep's journal, written by commit 6c93c38


def test_a_truncated_line_does_not_corrupt_the_next_one(open_tracker, results) -> None:
    (results / "torn" / "journal").mkdir(parents=True)
    path = results / "torn" / "journal" / "t1.jsonl"
    path.write_text('{"round": 1, "time": 1, "metrics": {"round/objective": 1.0}}\n{"round": 2, "ti')
    tracker = open_tracker("torn")
    tracker.start("t1", "torn", small_config(), {})
    for step in (2, 3):
        tracker.round("t1", step, {"round/objective": float(step)})
    tracker.finish("t1")
    assert tracker.close()
    assert tracker.history("t1") == [(step, {"round/objective": float(step)}) for step in (1, 2, 3)]
    assert tracker.ended("t1") == (True, None)
    history = MlflowClient(default_uri(results)).get_metric_history(tracker.run_ids()[0], "round/objective")
    assert sorted(m.step for m in history) == [1, 2, 3]


def test_a_journal_of_an_earlier_version_is_read(open_tracker, results) -> None:
    shutil.copytree(OLD, results / "old")
    tracker = open_tracker("old")
    assert tracker.history("a") == [
        (1, {"round/objective": 1.5, "accuracy": 0.25}),
        (2, {"round/objective": 1.25, "accuracy": 0.5, "rounds_to_target": 2.0}),
    ]
    assert (tracker.ended("a"), tracker.ended("b")) == ((True, None), (True, "it diverged"))
    assert tracker.end_tags("a") == {"hflray.stopped": "asha after round 2"}
    tables = tracker.tables("a")
    assert tables.rounds["edges"].tolist()[0] == [0, 1]
    assert tables.devices is not None
    assert tables.devices["class/1"].tolist() == [0, 1]
    first, second = read_journal(results / "old")
    assert (first.name, first.status, first.error) == ("a", "FINISHED", None)
    assert (second.name, second.status, second.error) == ("b", "FAILED", "it diverged")
    assert first.environment["numpy"]
    tracker.adopt_all()
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    runs = [client.get_run(run_id) for run_id in tracker.run_ids(["a", "b"])]
    assert [run.info.status for run in runs] == ["FINISHED", "FAILED"]
    assert [run.data.tags["hflray.sweep"] for run in runs] == ["old-20260101-000000"] * 2
    assert runs[0].data.params["scheduling.num_scheduled"] == "4"
    assert runs[0].inputs.dataset_inputs[0].dataset.name == "digits"


def test_a_line_that_cannot_be_written_raises_and_leaves_no_part(tmp_path, monkeypatch) -> None:
    journal = Journal(tmp_path)
    journal.write("a", {"round": 1})

    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "write", full)
        with pytest.raises(OSError, match="No space") as raised:
            journal.write("a", {"round": 2})
    assert raised.value.filename == str(journal.path("a"))
    journal.write("a", {"round": 2})
    assert journal.entries("a") == [{"round": 1}, {"round": 2}]


def test_the_last_start_defines_a_run(tmp_path) -> None:
    journal = Journal(tmp_path)
    assert (journal.run_keys(), journal.run("t1"), journal.ending("t1")) == ([], None, None)
    tracker = Tracker("http://127.0.0.1:9", "tests", "twice", tmp_path, sinks=())
    tracker.start("t1", "first", small_config(), {})
    tracker.finish("t1", error="lost")
    assert journal.ending("t1") == Ending("FAILED", "lost", {"hflray.error": "lost"})
    tracker.start("t1", "second", small_config("seed=5"), {"mine": "yes"})
    assert tracker.close()
    run = journal.run("t1")
    assert run is not None
    assert (run.key, run.name, run.params["seed"], run.tags["mine"]) == ("t1", "second", 5, "yes")
    assert journal.ending("t1") is None
    assert journal.run_keys() == ["t1"]
