"""hflray.tracking.mlflow: runs in MLflow, with the names of docs/design.md, "Contracts"."""

from __future__ import annotations

import contextlib
import json
import math
import random
import shutil
import sqlite3
import threading
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import mlflow.pyfunc
import mlflow.pytorch
import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from sqlalchemy.engine import make_url

from hflray.config import load_config, to_yaml
from hflray.data import load_dataset
from hflray.errors import ConfigError, HflrayError
from hflray.models import initial_vector
from hflray.models.paper import init_vector
from hflray.models.problem import ModelSpec, Problem
from hflray.models.vector import load_vector
from hflray.support import checkpoint
from hflray.tracking import FinalModel, Place, Run, Tracker, default_uri, run_ids_of, sender
from hflray.tracking import mlflow as module
from tests.conftest import cases, small_config
from tests.disks import small_disk_at
from tests.hostile import IMAGE, SCRIPT
from tests.models.samples import build_model
from tests.servers import mlflow_server
from tests.tracking.diary import until


def test_a_results_path_may_have_any_characters(tmp_path: Path) -> None:
    """The database and the artifacts are inside the folder, nothing is beside it, and MLflow reads both again."""
    name = "q6 50%20done#é ü; a;b=c&d %3F it's?"
    results = tmp_path / name
    uri = default_uri(results)
    assert module.database_path(uri) == results / "mlflow.db"
    tracker = Tracker(uri, "hflray", "sweep", results / "sweep", required=True)
    tracker.start("t1", "one", small_config(), {})
    tracker.round("t1", 1, {"accuracy": 0.5})
    tracker.finish("t1")
    assert tracker.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert sorted(path.name for path in results.iterdir()) == ["artifacts", "mlflow.db", "sweep"]
    (run_id,) = tracker.run_ids()
    client = module.client_of(uri)
    assert client.get_run(run_id).data.metrics["accuracy"] == 0.5
    assert "config.yaml" in [each.path for each in client.list_artifacts(run_id)]
    assert list(results.glob(f"artifacts/{run_id}/artifacts/config.yaml"))


@pytest.mark.parametrize("uri, path", cases("tracking/databases"))
def test_the_path_of_a_database_is_that_of_sqlalchemy(uri: str, path: str | None) -> None:
    assert module.database_path(uri) == (None if path is None else Path(path))
    if path is not None:
        assert make_url(uri).database == path


def test_a_database_is_made_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    """A driver that is killed while MLflow makes its database leaves none; half a database could never be opened."""
    path = tmp_path / "results" / "mlflow.db"
    path.parent.mkdir()
    place = Place(f"sqlite:///{path}", "hflray", "sweep", path.parent / "sweep")

    def cut_off(uri: str) -> None:
        Path(uri.removeprefix("sqlite:///")).write_bytes(b"half a database")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "client_of", cut_off)
        with pytest.raises(KeyboardInterrupt):
            module.MLflowSink(place).connect()
    assert not path.exists()
    sink = module.MLflowSink(place)
    sink.connect()
    assert sink.experiment_id
    assert [file.name for file in path.parent.iterdir()] == ["mlflow.db"]
    default = MlflowClient(place.uri).get_experiment("0")
    usual = MlflowClient(f"sqlite:///{tmp_path / 'usual.db'}").get_experiment("0")
    assert default.artifact_location == usual.artifact_location


@pytest.mark.parametrize("damage", ["cut in half", "header", "a page"])
def test_a_damaged_database_is_named_with_what_to_do(tmp_path, damage) -> None:
    path = tmp_path / "mlflow.db"
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE metrics (value TEXT)")
        database.executemany("INSERT INTO metrics VALUES (?)", [("x" * 1000,)] * 20)
    module.check_database(path)
    content = bytearray(path.read_bytes())
    if damage == "cut in half":
        del content[len(content) // 2 :]
    else:
        content[slice(0, 50) if damage == "header" else slice(4096, 8192)] = b"x" * (50 if damage == "header" else 4096)
    path.write_bytes(content)
    with pytest.raises(HflrayError, match=r"mlflow\.db is damaged \(.*\); move it away") as error:
        module.MLflowSink(Place(f"sqlite:///{path}", "tests", "s", tmp_path / "s")).connect()
    assert "\n" not in str(error.value)


def test_a_run_holds_params_metrics_tags_and_artifacts(open_tracker, results, tmp_path) -> None:
    config = small_config("cost.delay_weight=0.5")
    tracker = open_tracker("one")
    dataset = {"name": "digits", "digest": "abc", "source": "embedded", "profile": "{}"}
    tracker.start("t1", "a-readable-name", config, {"hflray.task": "experiment"}, dataset=dataset)
    tracker.round("t1", 1, {"accuracy": 0.25, "round/delay_s": 3.0, "edge/0/devices": 2.0})
    tracker.round("t1", 2, {"accuracy": 0.5, "round/delay_s": math.inf})
    (results / "one" / "kept.txt").write_text("there already")
    tracker.artifact("t1", "file", "kept.txt")
    tracker.artifact("t1", "tables")
    tracker.finish("t1", tags={"hflray.stopped": "asha after round 2"})
    tracker.start("t2", "bad", config, {})
    tracker.finish("t2", error="round 1: the weights are not finite")
    assert tracker.close()
    again = open_tracker("one")
    assert again.close()
    assert again.run_ids(["t1", "t2", "unknown"]) == tracker.run_ids()
    assert run_ids_of(default_uri(results), "tests", "one")[1] == tracker.run_ids()

    client = MlflowClient(default_uri(results))
    run, failed = map(client.get_run, tracker.run_ids())
    assert (failed.info.status, failed.data.tags["hflray.error"]) == ("FAILED", "round 1: the weights are not finite")
    (used,) = run.inputs.dataset_inputs
    assert (used.dataset.name, used.dataset.digest) == ("digits", "abc")
    assert run.info.run_name == "a-readable-name"
    assert run.info.status == "FINISHED"
    assert run.data.params["cost.delay_weight"] == "0.5"
    assert run.data.params["scheduling.num_scheduled"] == "6"
    assert run.data.params["fleet.power_dbm"] == "[0.0, 23.0]"
    assert not [
        name for name in run.data.params if name.startswith("learning.")
    ]  # these settings belong to another task
    assert run.data.tags["hflray.sweep"] == "one"
    assert run.data.tags["hflray.scheduler"] == "ikc"
    assert run.data.tags["hflray.trial"] == "t1"
    assert run.data.tags["hflray.stopped"] == "asha after round 2"
    assert "mlflow.parentRunId" not in run.data.tags
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5)]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "round/delay_s")] == [1]

    names = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert names == {"config.yaml", "environment.json", "rounds.parquet", "kept.txt"}
    kept = client.download_artifacts(run.info.run_id, "kept.txt", str(tmp_path))
    assert Path(kept).read_text() == "there already"
    path = client.download_artifacts(run.info.run_id, "config.yaml", str(tmp_path))
    assert load_config(path) == config
    saved = json.loads(Path(client.download_artifacts(run.info.run_id, "environment.json", str(tmp_path))).read_text())
    assert {"git_commit", "python", "cpu", "torch", "ray", "numpy"} <= set(saved)


def test_each_run_has_its_own_model_and_the_network_is_traced_once(tmp_path, monkeypatch) -> None:
    dataset = load_dataset("digits")
    traced = []
    make = module._ModelFiles.make
    monkeypatch.setattr(module, "_model_files", {})
    monkeypatch.setattr(module._ModelFiles, "make", lambda *arguments: traced.append(1) or make(*arguments))
    identities = set()
    for seed in (1, 2):
        network = build_model("hfl", dataset.image_shape, dataset.num_classes)
        vector = init_vector(network, np.random.default_rng(seed))
        load_vector(network, vector)
        checkpoint.save(tmp_path / f"saved{seed}" / "state", {"global_model": vector, "config": {"seed": 0}})
        logged: list[Path] = []

        def log_artifacts(run_id: str, folder: str, name: str, log: list[Path] = logged, seed: int = seed) -> None:
            log.append(Path(shutil.copytree(folder, tmp_path / f"{name}{seed}")))

        sink = module.MLflowSink(Place("http://127.0.0.1:9", "tests", "models", tmp_path))
        sink._client, sink.run_ids = SimpleNamespace(log_artifacts=log_artifacts), {"t1": "r"}
        saved = partial(contextlib.nullcontext, tmp_path / f"saved{seed}")
        sink.artifact(Run("t1", "t1"), FinalModel(saved, dataset, Problem.of(dataset, load_config())))
        images = torch.rand(3, *dataset.image_shape)
        assert torch.equal(mlflow.pytorch.load_model(str(logged[0]))(images), network(images))
        metadata = mlflow.models.Model.load(str(logged[0]))
        assert metadata.signature.inputs.inputs[0].shape == (-1, *dataset.image_shape)
        assert [path.suffix for path in (logged[0] / "data").iterdir()] == [".pt2"]  # no pickle
        identities.add((metadata.model_uuid, metadata.utc_time_created))
    assert len(traced) == 1
    assert len(identities) == 2


def test_a_configuration_that_a_kill_has_cut_off_is_written_again(open_tracker, results) -> None:
    """It is written last, and marks a run whose parameters and other texts are complete."""
    tracker = open_tracker("cut")
    tracker.start("t1", "x", small_config(), {})
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    folder = Path(client.get_run(tracker.run_ids()[0]).info.artifact_uri.removeprefix("file://"))
    for name in ("config.yaml", "environment.json"):
        (folder / name).write_text((folder / name).read_text()[:20])
    again = open_tracker("cut")
    again.start("t1", "x", small_config(), {})
    assert again.close()
    assert (folder / "config.yaml").read_text() == to_yaml(small_config())
    json.loads((folder / "environment.json").read_text())
    (folder / "config.yaml").write_text("written: by another machine\n")  # its parameters could not be changed
    third = open_tracker("cut")
    third.start("t1", "x", small_config(), {})
    assert third.close()
    assert (folder / "config.yaml").read_text() == "written: by another machine\n"


def test_a_full_disk_of_the_store_neither_loses_nor_repeats_a_round(tmp_path, monkeypatch, caplog) -> None:
    """The disk is a tmpfs that is full from round 2 to round 4. The sweep's folder is on another disk."""
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    with small_disk_at(tmp_path / "disk", "8m") as disk:
        tracker = Tracker(default_uri(disk), "tests", "full", tmp_path / "full")
        tracker.start("t1", "squeezed", small_config(), {})
        tracker.round("t1", 1, {"round/objective": 1.0})
        until(lambda: not tracker._senders[0].unsent())
        with (disk / "ballast").open("wb", buffering=0) as ballast, suppress(OSError):
            while True:
                ballast.write(bytes(4096))
        for step in (2, 3, 4):
            tracker.round("t1", step, {f"edge/{m}/delay_s": float(step) for m in range(300)} | {"round/objective": 1.0})
        deadline = time.monotonic() + 60
        while "cannot be written" not in caplog.text and time.monotonic() < deadline:
            threading.Event().wait(0.02)
        assert "cannot be written" in caplog.text
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


@pytest.mark.slow  # a server that starts twice; test_sender has each failure of a tracker
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_and_started_again_has_each_round_once(tmp_path, monkeypatch, caplog) -> None:
    """It is killed while rounds arrive."""
    monkeypatch.setattr(sender, "RETRY_AFTER_S", 0.05)
    keys = ("t1", "t2")
    with mlflow_server(tmp_path) as server:
        tracker = Tracker(server.uri, "tests", "killed", tmp_path / "killed")
        for key in keys:
            tracker.start(key, key, small_config(), {})
        killer = threading.Timer(random.Random(7).uniform(0.05, 1.0), server.stop)
        killer.start()
        for step in range(1, 101):
            for key in keys:
                tracker.round(key, step, {"round/objective": step / 8, "accuracy": 0.5})
            time.sleep(0.01)
        killer.join()
        server.start()
        tracker.artifact("t1", "tables")
        tracker.finish("t1")
        assert tracker.close()
        assert "answers again" in caplog.text
        again = Tracker(server.uri, "tests", "killed", tmp_path / "killed", required=True)
        again.artifact("t2", "tables")
        again.finish("t2")
        assert again.close()
        client = MlflowClient(server.uri)
        runs = client.search_runs([again.experiment_id or ""])
        assert {run.info.run_id for run in runs} == set(again.run_ids(keys)) == set(tracker.run_ids())
        for run_id in again.run_ids(keys):
            for name in ("round/objective", "accuracy"):
                steps = [metric.step for metric in client.get_metric_history(run_id, name)]
                assert sorted(steps) == list(range(1, 101))
            assert client.get_run(run_id).info.status == "FINISHED"
            assert "rounds.parquet" in {artifact.path for artifact in client.list_artifacts(run_id)}


@pytest.mark.parametrize("name", [IMAGE, "it's 50 %", 'a"b\n[bold]x['])
def test_a_folder_of_any_name_is_tracked_and_found_again(results, name) -> None:
    for _ in range(2):
        tracker = Tracker(default_uri(results), "names", name, results / name)
        tracker.start("t1", SCRIPT, small_config(), {"hflray.task": IMAGE})
        assert tracker.close()
    _, (run_id,) = run_ids_of(default_uri(results), "names", name)
    assert MlflowClient(default_uri(results)).get_run(run_id).info.run_name == SCRIPT


@pytest.mark.parametrize("name", ["""a'"b""", "x\\"])
def test_a_name_that_cannot_be_searched_is_refused(name) -> None:
    with pytest.raises(ConfigError, match="both kinds of quotes or with a backslash at its end; rename its folder"):
        module.quoted(name)


@pytest.mark.parametrize("name, network", [("friedman1", "mlp"), ("pydoc_topics", "gru")])
def test_models_of_features_and_tokens_predict_like_the_network(tmp_path, name: str, network: str) -> None:
    """The second model is written with the trace of the first, and has its own weights."""
    dataset = load_dataset(name)
    problem = replace(Problem.of(dataset, load_config()), model=ModelSpec.of(network))
    for seed in (0, 1):
        folder = tmp_path / str(seed)
        checkpoint.save(folder / "state", {"global_model": initial_vector(problem, seed), "config": {"seed": 0}})
        model = FinalModel(partial(nullcontext, folder), dataset, problem)
        module._write_model(model, folder / "model")
        predicted = mlflow.pyfunc.load_model(str(folder / "model")).predict(model.example())
        with torch.no_grad():
            expected = model.module()(torch.from_numpy(model.example())).numpy()
        np.testing.assert_allclose(predicted, expected, rtol=1e-4, atol=1e-5)
