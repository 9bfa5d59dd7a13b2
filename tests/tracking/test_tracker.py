"""hflray.tracking.tracker: one interface to the journal and all trackers; its runs are read again, and sent later."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from hflray.config import to_yaml
from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.checksum import stamped
from hflray.tracking import Ending, Run, Tracker, default_uri, main, read_journal, sender, titles
from tests.conftest import says, small_config
from tests.tracking.test_sender import OWN, RIGHT, own_sink, run_with


def test_a_required_store_that_cannot_be_opened_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri: .*http://127.0.0.1:9") as error:
        Tracker("http://127.0.0.1:9", "tests", "x", tmp_path / "x", required=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_a_second_tracker_receives_everything(open_tracker, diary, tmp_path) -> None:
    config = small_config("cost.delay_weight=0.5")
    tracker = open_tracker("told", sinks=("diary",))
    (second_tracker,) = diary
    assert second_tracker.place.sweep == "told"
    data = {"name": "digits", "digest": "abc", "source": "embedded", "profile": "{}"}
    tracker.start("t1", "a-readable-name", config, {"hflray.task": "experiment"}, dataset=data)
    tracker.round("t1", 1, {"accuracy": 0.25, "round/delay_s": 3.0})
    tracker.round("t1", 2, {"accuracy": 0.5, "round/delay_s": math.inf, "rounds_to_target": 2.0}, {"devices": [1]})
    tracker.artifact("t1", "tables")
    tracker.finish("t1", tags={"hflray.stopped": "asha after round 2"})
    assert tracker.close()

    ((run,),) = second_tracker.of("open")
    assert isinstance(run, Run)
    assert (run.key, run.name, run.dataset) == ("t1", "a-readable-name", data)
    assert run.params["cost.delay_weight"] == 0.5
    assert run.tags["hflray.sweep"] == "told"
    assert run.tags["hflray.trial"] == "t1"
    assert run.tags["hflray.task"] == "experiment"
    assert run.artifacts["config.yaml"] == to_yaml(config)
    assert [(round.number, round.values) for round in second_tracker.pages["t1"].rounds] == [
        (1, {"accuracy": 0.25, "round/delay_s": 3.0}), (2, {"accuracy": 0.5, "rounds_to_target": 2.0}),
    ]  # fmt: skip
    (tables,) = second_tracker.pages["t1"].artifacts
    (path,) = tables.write(tmp_path)[:1]
    assert pd.read_parquet(path)["round"].tolist() == [1, 2]
    last = {"accuracy": 0.5, "round/delay_s": 3.0, "rounds_to_target": 2.0}
    stopped = {"hflray.stopped": "asha after round 2"}
    assert second_tracker.ending() == Ending("FINISHED", None, stopped, last)
    assert second_tracker.calls[0] == ("connect",)
    assert [call[0] for call in second_tracker.calls][-2:] == ["artifact", "end"]
    assert tracker.seen_at() == ["Read the diary on my desk"]


def test_messages_name_trackers_by_their_titles(diary) -> None:
    assert titles(("mlflow", "csv", "diary")) == "MLflow, CSV, the diary"
    assert titles(()) == "no tracker"
    with pytest.raises(ConfigError, match="sink: unknown sink 'neptune'; known: csv, diary, mlflow"):
        titles(("neptune",))


def test_the_settings_of_learning_are_logged_of_runs_that_learn_or_set_one(open_tracker, diary) -> None:
    tracker = open_tracker("learns", sinks=("diary",))
    tracker.start("plain", "x", small_config(), {})
    tracker.start("learns", "x", small_config(), {}, learns="learning")
    tracker.start("plays", "x", small_config(), {}, learns="agent")
    tracker.start("sets", "x", small_config("learning.features=paper"), {})
    assert tracker.close()
    (other,) = diary
    runs = {run.key: run.params for run, *_ in other.of("open")}
    assert {
        key: [section for section in ("learning", "agent") if f"{section}.learning_rate" in params]
        for key, params in runs.items()
    } == {"plain": [], "learns": ["learning"], "plays": ["agent"], "sets": ["learning"]}
    assert not any(name.startswith("tracking.") for params in runs.values() for name in params)


def test_a_run_has_the_references_as_tags_and_their_texts_as_artifacts(open_tracker, diary, tmp_path) -> None:
    (tmp_path / "mine.py").write_text("class Mine: pass\n")
    place = f"{tmp_path}/mine.py:Mine"
    config = small_config(f"scheduling.name={place}", f"learning.teacher.name={place}", f"assignment.name={place}")
    tracker = open_tracker("refers", sinks=("diary",))
    tracker.start("t1", "x", config, {})
    assert tracker.close()
    ((run,),) = diary[0].of("open")
    pinned = config.scheduling.name
    assert pinned.startswith("mine.py:Mine@sha256:")
    assert run.tags["reference/scheduler"] == run.params["scheduling.name"] == pinned
    assert run.tags["reference/assigner"] == pinned
    assert (run.tags["hflray.scheduler"], run.tags["hflray.assigner"]) == ("mine.py:Mine", "mine.py:Mine")
    assert run.artifacts["references/mine.py"] == "class Mine: pass\n"
    assert not [name for name in run.tags if name.startswith("reference/") and "data" in name]


# Reading runs again.


def test_runs_are_read_again_from_the_journal(tmp_path) -> None:
    tracker = Tracker("", "tests", "tables", tmp_path, sinks=())
    devices = {"samples": [3, 2], "class_counts": [[3, 0], [1, 1]], "clusters": [0, 1]}
    for key in ("done", "half"):
        tracker.start(key, key, small_config(), {})
        for step in (2, 1, 2):  # a repeated round counts once
            schedule = {"devices": [0, 1], "edges": [step, 0], "bandwidth_hz": [1.0, 2.0], "cpu_hz": [3.0, 4.0]}
            tracker.round(key, step, {"accuracy": step / 10}, schedule, devices)
    tracker.finish("done")
    assert (tracker.experiment_id, tracker.run_ids(), tracker.seen_at()) == (None, [], [])
    done, half = read_journal(tmp_path)
    assert (done.status, half.status) == ("FINISHED", "RUNNING")
    for run in (done, half):
        assert run.tables.rounds["round"].tolist() == [1, 2]
        assert run.tables.rounds["accuracy"].tolist() == [0.1, 0.2]
        assert run.tables.rounds["edges"].tolist() == [[1, 0], [2, 0]]
        assert run.tables.devices is not None
        assert run.tables.devices.to_dict("list") == {
            "device": [0, 1], "samples": [3, 2], "cluster": [0, 1], "class/0": [3, 1], "class/1": [0, 1],
        }  # fmt: skip
        assert run.values == {"accuracy": 0.2}
    with pytest.raises(ConfigError, match="holds no run"):
        read_journal(tmp_path / "nothing")


# ``hflray sync``.


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


@pytest.mark.parametrize(
    "case, corrected",
    [
        *((case, True) for case in ("in the results", "gone", "a link", "another user's", "another file")),
        ("in the results", False),
    ],
)
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
