"""hflray.tracking: runs in MLflow as the design names them, and a journal that needs no server."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import mlflow.pytorch
import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from hflray import checkpoint, tracking
from hflray.config import load_config
from hflray.data import load_dataset
from hflray.errors import ConfigError
from hflray.models import build_model, init_vector, load_vector
from hflray.tracking import Tracker, default_uri
from tests.conftest import small_config


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """One database for the module: making it takes MLflow seconds."""
    return tmp_path_factory.mktemp("results")


def open_tracker(results, sweep: str) -> Tracker:
    return Tracker(default_uri(results), "tests", sweep, results / sweep)


def test_a_run_holds_params_metrics_tags_and_artifacts(results, tmp_path) -> None:
    config = small_config("cost.delay_weight=0.5")
    tracker = open_tracker(results, "one")
    tracker.start("t1", "a-readable-name", config, {"hflray.task": "experiment"})
    tracker.round("t1", 1, {"accuracy": 0.25, "round/delay_s": 3.0, "edge/0/devices": 2.0})
    tracker.round("t1", 2, {"accuracy": 0.5, "round/delay_s": math.inf})
    tracker.finish("t1")
    assert tracker.close()

    client = MlflowClient(default_uri(results))
    run = client.get_run(tracker.run_ids()[0])
    assert run.info.run_name == "a-readable-name"
    assert run.info.status == "FINISHED"
    assert run.data.params["cost.delay_weight"] == "0.5"
    assert run.data.params["scheduling.num_scheduled"] == "6"
    assert run.data.params["fleet.power_dbm"] == "[0.0, 23.0]"
    assert not [name for name in run.data.params if name.startswith("learning.")]  # of another task
    assert run.data.tags["hflray.sweep"] == "one"
    assert run.data.tags["hflray.scheduler"] == "ikc"
    assert run.data.tags["hflray.trial"] == "t1"
    assert "mlflow.parentRunId" not in run.data.tags
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/delay_s")] == [1]

    names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert names == {"config.yaml", "environment.json"}
    path = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert load_config(path) == config
    saved = json.loads(Path(client.download_artifacts(run.info.run_id, "environment.json", str(tmp_path))).read_text())
    assert {"git_commit", "python", "cpu", "torch", "ray", "numpy"} <= set(saved)


def test_tables_are_the_same_from_the_journal_and_from_mlflow(results) -> None:
    tracker = open_tracker(results, "tables")
    devices = {"samples": [3, 2], "class_counts": [[3, 0], [1, 1]], "clusters": [0, 1]}
    for key in ("done", "half"):
        tracker.start(key, key, small_config(), {})
        for step in (2, 1, 2):  # a round that is done again is one round
            schedule = {"devices": [0, 1], "edges": [step, 0], "bandwidth_hz": [1.0, 2.0], "cpu_hz": [3.0, 4.0]}
            tracker.round(key, step, {"accuracy": step / 10}, schedule, devices)
    tables = tracker.tables("done")
    assert tables.rounds["round"].tolist() == [1, 2]
    assert tables.rounds["edges"].tolist() == [[1, 0], [2, 0]]
    assert tables.devices is not None
    assert tables.devices.to_dict("list") == {
        "device": [0, 1], "samples": [3, 2], "cluster": [0, 1], "class/0": [3, 1], "class/1": [0, 1],
    }  # fmt: skip
    tracker.extra("done", lambda client, run_id: tracking.log_tables(client, run_id, tables))
    tracker.finish("done")
    assert tracker.close()
    done, half = tracking.read_histories(default_uri(results), "tests", "tables")
    journal = {history.name: history for history in tracking.read_journal(results / "tables")}
    assert (done.status, half.status) == ("FINISHED", "RUNNING")
    assert [list(row) for row in done.tables.rounds["edges"]] == [[1, 0], [2, 0]]
    assert half.tables.devices is None  # only the journal has it yet
    assert journal["half"].tables.devices is not None
    for mine, logged in ((journal["done"], done), (journal["half"], half)):
        assert mine.status == logged.status
        assert mine.config == logged.config
        assert mine.tables.rounds["accuracy"].tolist() == logged.tables.rounds["accuracy"].tolist() == [0.1, 0.2]
    with pytest.raises(ConfigError, match="holds no run"):
        tracking.read_journal(results)


def test_each_run_has_its_own_model_and_the_tracing_is_done_once(tmp_path, monkeypatch) -> None:
    dataset = load_dataset("digits")
    traced = []
    make = tracking._ModelFiles.make
    monkeypatch.setattr(tracking, "_model_files", {})
    monkeypatch.setattr(tracking._ModelFiles, "make", lambda *given: traced.append(1) or make(*given))
    identities = set()
    for seed in (1, 2):
        module = build_model("hfl", dataset.image_shape, dataset.num_classes)
        vector = init_vector(module, np.random.default_rng(seed))
        load_vector(module, vector)
        checkpoint.save(tmp_path / f"state{seed}", {"global_model": vector})
        logged: list[Path] = []

        def keep(run_id: str, folder: str, name: str, kept: list[Path] = logged, seed: int = seed) -> None:
            kept.append(Path(shutil.copytree(folder, tmp_path / f"{name}{seed}")))

        tracking.log_final_model(SimpleNamespace(log_artifacts=keep), "r", tmp_path / f"state{seed}", dataset)
        images = torch.rand(3, *dataset.image_shape)
        assert torch.equal(mlflow.pytorch.load_model(str(logged[0]))(images), module(images))
        about = mlflow.models.Model.load(str(logged[0]))
        assert about.signature.inputs.inputs[0].shape == (-1, *dataset.image_shape)
        identities.add((about.model_uuid, about.utc_time_created))
    assert len(traced) == 1
    assert len(identities) == 2


def test_a_failed_run_says_why(results) -> None:
    tracker = open_tracker(results, "two")
    tracker.start("t1", "bad", small_config(), {})
    tracker.finish("t1", error="round 1: the weights are not finite")
    assert tracker.close()
    run = MlflowClient(default_uri(results)).get_run(tracker.run_ids()[0])
    assert run.info.status == "FAILED"
    assert run.data.tags["hflray.error"] == "round 1: the weights are not finite"
    assert tracker.ended("t1") == (True, "round 1: the weights are not finite")


def test_the_data_set_is_an_input_and_extras_are_sent(results) -> None:
    tracker = open_tracker(results, "inputs")
    dataset = {"name": "digits", "digest": "abc", "source": "embedded", "profile": "{}"}
    tracker.start("t1", "x", small_config(), {}, dataset=dataset)
    tracker.extra("t1", lambda client, run_id: client.set_tag(run_id, "extra", "sent"))
    assert tracker.close()
    run = MlflowClient(default_uri(results)).get_run(tracker.run_ids()[0])
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", "abc")
    assert run.data.tags["extra"] == "sent"


def test_a_server_that_fails_costs_a_warning_and_nothing_is_lost(results, monkeypatch, caplog) -> None:
    monkeypatch.setattr(tracking, "RETRY_AFTER_S", 0.05)
    tracker = open_tracker(results, "three")
    tracker.start("t1", "patient", small_config(), {})
    while not tracker.run_ids():
        threading.Event().wait(0.02)
    sent = tracker._client.log_batch

    def down(*_: object, **__: object) -> None:
        raise ConnectionError("nobody there")

    monkeypatch.setattr(tracker._client, "log_batch", down)
    begin = time.monotonic()
    for step in (1, 2, 3):
        tracker.round("t1", step, {"round/objective": step / 10})
    assert time.monotonic() - begin < 0.5  # a round never waits for the server
    while "nobody there" not in caplog.text:
        threading.Event().wait(0.02)
    threading.Event().wait(0.3)
    assert caplog.text.count("does not answer") == 1
    monkeypatch.setattr(tracker._client, "log_batch", sent)
    tracker.finish("t1")
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    history = client.get_metric_history(tracker.run_ids()[0], "round/objective")
    assert [m.step for m in history] == [1, 2, 3]
    assert client.get_run(tracker.run_ids()[0]).info.status == "FINISHED"
    lines = [json.loads(line) for line in (results / "three" / "journal" / "t1.jsonl").read_text().splitlines()]
    assert [line.get("round") for line in lines] == [None, 1, 2, 3, None]
    assert tracker.history("t1") == [(step, {"round/objective": step / 10}) for step in (1, 2, 3)]


def test_rounds_made_while_the_server_is_away_are_kept_in_the_journal_only(results, monkeypatch) -> None:
    """A server that is away all night must not fill the driver's memory; what it missed is read again, once."""
    monkeypatch.setattr(tracking, "RETRY_AFTER_S", 0.05)
    tracker = open_tracker(results, "away")
    tracker.start("t1", "far-ahead", small_config(), {})
    tracker.round("t1", 1, {"round/objective": 0.1})
    while tracker._runs["t1"].waiting:
        threading.Event().wait(0.02)
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise ConnectionError("nobody there")

    monkeypatch.setattr(tracker, "_send", refuse)
    for step in range(2, 102):
        tracker.round("t1", step, {"round/objective": step / 10})
        while not tracker._warned:
            threading.Event().wait(0.02)
    while len(tries) < 4:
        threading.Event().wait(0.02)
    assert len(tracker._runs["t1"].pending) == 1
    assert tracker._runs["t1"].behind
    monkeypatch.undo()
    tracker.round("t1", 102, {"round/objective": 10.2})
    tracker.finish("t1")
    assert tracker.close()
    history = MlflowClient(default_uri(results)).get_metric_history(tracker.run_ids()[0], "round/objective")
    assert [(m.step, m.value) for m in history] == [(step, step / 10) for step in range(1, 103)]


def test_a_line_cut_off_takes_no_other_with_it(results) -> None:
    (results / "torn" / "journal").mkdir(parents=True)
    path = results / "torn" / "journal" / "t1.jsonl"
    path.write_text('{"round": 1, "time": 1, "metrics": {"round/objective": 1.0}}\n{"round": 2, "ti')
    tracker = open_tracker(results, "torn")
    tracker.start("t1", "torn", small_config(), {})
    for step in (2, 3):
        tracker.round("t1", step, {"round/objective": float(step)})
    tracker.finish("t1")
    assert tracker.close()
    assert tracker.history("t1") == [(step, {"round/objective": float(step)}) for step in (1, 2, 3)]
    assert tracker.ended("t1") == (True, None)
    history = MlflowClient(default_uri(results)).get_metric_history(tracker.run_ids()[0], "round/objective")
    assert sorted(m.step for m in history) == [1, 2, 3]


def test_what_has_arrived_is_let_go_of(results) -> None:
    tracker = open_tracker(results, "gone")
    for key in ("t1", "t2"):
        tracker.start(key, key, small_config(), {})
        tracker.round(key, 1, {"round/objective": 1.0})
    tracker.finish("t1")
    assert tracker.close()
    done, running = tracker._runs["t1"], tracker._runs["t2"]
    assert (done.params, done.tags, done.artifacts, done.pending) == ({}, {}, {}, [])
    assert running.params
    assert len(tracker.run_ids(["t1", "t2"])) == 2


def test_an_interrupt_ends_the_wait_for_the_server(results, monkeypatch, caplog) -> None:
    tracker = open_tracker(results, "impatient")
    blocked = threading.Event()
    tracker.start("t1", "slow", small_config(), {})
    tracker.extra("t1", lambda client, run_id: blocked.wait(60))

    def interrupted(timeout: float | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker._thread, "join", interrupted)
    assert not tracker.close()
    assert "python -m hflray.tracking sync" in caplog.text
    blocked.set()


def test_a_run_is_found_again_after_a_restart(results) -> None:
    for steps in ((1, 2), (2, 3)):  # round 2 is done again after a kill
        tracker = open_tracker(results, "again")
        tracker.start("t1", "twice", small_config(), {})
        for step in steps:
            tracker.round("t1", step, {"round/objective": float(step)})
        assert tracker.close()
    tracker = open_tracker(results, "again")
    tracker.start("t1", "twice", small_config(), {})
    tracker.finish("t1")
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    runs = client.search_runs([tracker.experiment_id or ""], "tags.`hflray.sweep` = 'again'")
    assert len(runs) == 1
    assert runs[0].info.status == "FINISHED"
    history = client.get_metric_history(runs[0].info.run_id, "round/objective")
    assert sorted(m.step for m in history) == [1, 2, 3]


def test_a_server_away_for_the_whole_sweep_is_made_up_for_by_sync(tmp_path, monkeypatch, capsys, caplog) -> None:
    monkeypatch.setattr(tracking, "RETRY_AFTER_S", 0.05)
    monkeypatch.setattr(tracking, "CLOSE_WITHIN_S", 0.5)
    folder = tmp_path / "sweep"
    tracker = Tracker("http://127.0.0.1:9", "tests", "sweep", folder)
    tracker.start("t1", "lonely", small_config(), {"hflray.task": "experiment"})
    tracker.round("t1", 1, {"round/objective": 1.0})
    tracker.round("t1", 2, {"round/objective": 2.0})
    tracker.finish("t1")
    assert not tracker.close(within_s=0.5)
    # One line when it went away, one at the end, and none for each try in between.
    away, lost = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert away.endswith("http://127.0.0.1:9 does not answer; keeping the rounds for later: connection refused")
    assert "python -m hflray.tracking sync" in lost
    with (folder / "journal" / "t1.jsonl").open("a") as file:
        file.write('{"round": 3, "metr')  # a line cut off by a kill
    uri = default_uri(tmp_path)
    (folder / "sweep.json").write_text(json.dumps({"uri": uri, "experiment": "tests"}))
    for _ in range(2):  # the second time there is nothing left to send
        assert tracking.main(["sync", str(folder)]) == 0
        assert "everything is in MLflow" in capsys.readouterr().out
    client = MlflowClient(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("tests").experiment_id])
    assert run.info.run_name == "lonely"
    assert run.info.status == "FINISHED"
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/objective")] == [1, 2]
    assert run.data.params["scheduling.num_scheduled"] == "6"


def test_sync_of_something_else_is_one_line(tmp_path, capsys) -> None:
    assert tracking.main(["sync", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_required_store_that_cannot_be_opened_is_refused_at_once(tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"tracking.uri: .*http://127.0.0.1:9") as error:
        Tracker("http://127.0.0.1:9", "tests", "x", tmp_path / "x", required=True)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "x").exists()


def test_a_full_disk_of_the_store_loses_nothing_and_doubles_nothing(tmp_path, monkeypatch, caplog) -> None:
    """A tmpfs that is full from round 2 to round 4; the sweep's own folder is on another disk."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    monkeypatch.setattr(tracking, "RETRY_AFTER_S", 0.05)
    try:
        tracker = Tracker(default_uri(disk), "tests", "full", tmp_path / "full")
        tracker.start("t1", "squeezed", small_config(), {})
        tracker.round("t1", 1, {"round/objective": 1.0})
        while tracker._runs["t1"].waiting:
            threading.Event().wait(0.02)
        with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        for step in (2, 3, 4):
            tracker.round("t1", step, {f"edge/{m}/delay_s": float(step) for m in range(300)} | {"round/objective": 1.0})
        deadline = time.monotonic() + 60
        while "does not answer" not in caplog.text and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        assert "full" in caplog.text
        (disk / "ballast").unlink()
        tracker.round("t1", 5, {"round/objective": 1.0})
        tracker.finish("t1")
        assert tracker.close()
        client = MlflowClient(default_uri(disk))
        (run_id,) = tracker.run_ids()
        assert [m.step for m in client.get_metric_history(run_id, "round/objective")] == [1, 2, 3, 4, 5]
        assert [m.step for m in client.get_metric_history(run_id, "edge/299/delay_s")] == [2, 3, 4]
        assert client.get_run(run_id).info.status == "FINISHED"
    finally:
        subprocess.run(["umount", "--lazy", disk], check=False)


def test_tags_of_the_end_are_set_and_known_after_a_restart(results) -> None:
    tracker = open_tracker(results, "tagged")
    tracker.start("t1", "x", small_config(), {})
    tracker.finish("t1", tags={"hflray.stopped": "asha after round 3"})
    assert tracker.close()
    assert tracker.end_tags("t1") == {"hflray.stopped": "asha after round 3"}
    again = open_tracker(results, "tagged")
    again.adopt("t1")
    assert again.close()
    assert again.run_ids(["t1", "unknown"]) == tracker.run_ids()
    (run,) = tracking.read_runs(default_uri(results), "tests", "tagged")[1]
    assert (run.status, run.stopped, run.error) == ("FINISHED", "asha after round 3", None)
