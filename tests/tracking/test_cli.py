"""hflray.tracking.cli: ``python -m hflray.tracking sync``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from mlflow import MlflowClient

from hflray.support import references
from hflray.support.checksum import stamped
from hflray.tracking import Tracker, default_uri, main, sender
from tests.conftest import says, small_config
from tests.tracking.test_sender import OWN, RIGHT, own_sink, run_with


def test_sync_sends_a_sweep_whose_server_never_answered(tmp_path, monkeypatch, capsys, caplog) -> None:
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    monkeypatch.setattr(sender, "CLOSE_WITHIN_S", 0.5)
    folder = tmp_path / "sweep"
    tracker = Tracker("http://127.0.0.1:9", "tests", "sweep", folder)
    tracker.start("t1", "lonely", small_config(), {"hflray.task": "experiment"})
    tracker.round("t1", 1, {"round/objective": 1.0})
    tracker.round("t1", 2, {"round/objective": 2.0})
    tracker.finish("t1")
    assert not tracker.close(within_s=0.5)
    # There is one warning at the first failure, one at the end, and none for the attempts in between.
    failure, summary = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert failure.endswith("http://127.0.0.1:9 does not answer; keeping the rounds for later: connection refused")
    assert "python -m hflray.tracking sync" in summary
    with (folder / "journal" / "t1.jsonl").open("a") as file:
        file.write('{"round": 3, "metr')  # a line that a kill truncated
    uri = default_uri(tmp_path)
    (folder / "sweep.json").write_text(json.dumps({"uri": uri, "experiment": "tests"}))
    for _ in range(2):  # the second call has nothing to send
        assert main(["sync", str(folder)]) == 0
        assert "everything is in MLflow" in capsys.readouterr().out
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.run_name == "lonely"
    assert run.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/objective")] == [1, 2]
    assert run.data.params["scheduling.num_scheduled"] == "6"


def test_sync_of_another_folder_fails_in_one_line(tmp_path, capsys) -> None:
    assert main(["sync", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def own_sweep(tmp_path: Path, place: Path) -> Path:
    """Return the folder of a sweep whose tracker in `place` has a bug, as another process finds it."""
    folder = tmp_path / "results" / "sweep"
    folder.mkdir(parents=True)
    sink = own_sink(place, ROUNDS="rounds.nothing")
    assert not run_with(folder, sink).close()
    sweep = {"uri": default_uri(folder.parent), "experiment": "tests", "sinks": [sink]}
    sweep["references"] = references.to_json(references.sources_of([sink]))
    (folder / "sweep.json").write_text(json.dumps(stamped(sweep | {"seal": "of an older hflray"})))
    references._sources.clear()
    return folder


def correct(place: Path, **changes: str) -> None:
    text = OWN
    for name, line in (RIGHT | changes).items():
        text = text.replace(name, line)
    (place / "own.py").write_text(text)


def test_sync_catches_up_once_a_tracker_of_ones_own_is_corrected(tmp_path, caplog, capsys) -> None:
    folder = own_sweep(tmp_path, tmp_path)
    assert main(["sync", str(folder)]) == 1  # it is not corrected yet
    assert caplog.text.count("gets nothing more") == 2
    assert "has changed" not in caplog.text
    correct(tmp_path)
    assert main(["sync", str(folder)]) == 0
    assert (folder / "got.txt").read_text().split() == ["1", "2", "3"]
    assert "own.py has changed since the sweep began; its present text gets the runs" in caplog.text


@pytest.mark.parametrize("case", ["in the results", "gone", "a link", "another user's", "another file"])
@pytest.mark.parametrize("corrected", [False, True])
def test_sync_runs_no_file_that_is_not_the_user_s_own(tmp_path, monkeypatch, capsys, case, corrected: bool) -> None:
    place = tmp_path / "results" / "place" if case == "in the results" else tmp_path / "place"
    place.mkdir(parents=True)
    folder = own_sweep(tmp_path, place)
    if corrected or case == "another file":
        correct(place)
    if case == "gone":
        (place / "own.py").unlink()
    elif case == "a link":
        (place / "own.py").rename(tmp_path / "own.py")
        (place / "own.py").symlink_to(tmp_path / "own.py")
    elif case == "another user's":
        monkeypatch.setattr(os, "getuid", lambda: 54321)
    elif case == "another file":  # a stranger may name any file of the user's
        (place / "own.py").write_text(f"open({str(folder / 'got.txt')!r}, 'w')\nclass Mine: pass\n")
    assert main(["sync", str(folder)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says(error, "tracking.sinks: own.py:Mine runs only from your own file", str(place / "own.py"), "put")
    assert not (folder / "got.txt").exists()
