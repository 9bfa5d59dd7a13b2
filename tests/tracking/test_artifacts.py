"""`hflray.tracking.artifacts`: tables, timelines and models are made from the sweep's folder when they are sent."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mlflow import MlflowClient
from safetensors.torch import load_file

from hflray.config import ExperimentConfig
from hflray.data import load_dataset
from hflray.errors import ConfigError, DamagedError, DataError
from hflray.experiment import Experiment
from hflray.models.paper import init_vector
from hflray.models.problem import Problem
from hflray.models.vector import load_vector
from hflray.support import checkpoint
from hflray.support.arrays import deflated
from hflray.support.checkpoint import Checkpoints
from hflray.timeline import Timeline
from hflray.tracking import FinalModel, Journal, Run, Tracker, default_uri, sync
from hflray.tracking.artifacts import Artifacts, timeline_of, write_timeline
from tests.conftest import small_config
from tests.models.samples import build_model


def ended(folder: Path, config: ExperimentConfig, place: Path | None = None, error: str | None = None) -> np.ndarray:
    """Write what a run of two rounds leaves if its driver is killed right after the run's end; return its model.

    Its checkpoints are in `place`; None: as an older hflray has left them, whose journal also names no artifacts.
    """
    tracker = Tracker("unused", "tests", folder.name, folder, sinks=())
    tracker.start("t1", "t1", config, {})
    with Experiment(config) as experiment:
        for record in experiment:
            tracker.round("t1", record.round, record.metrics())
            state = experiment.state_dict()
            if place is None:
                checkpoint.save(folder / "t1" / f"checkpoint_{record.round:06d}" / "state", state)
            else:
                saved = Checkpoints(str(place), "t1")
                saved.save(record.round, lambda path, state=state: checkpoint.save(path / "state", state))
    for kind in ("tables", "model") if place else ():
        tracker.artifact("t1", kind)
    tracker.finish("t1", error=error)
    return np.sort(experiment.global_model)


@pytest.fixture(scope="module")
def config() -> ExperimentConfig:
    return small_config("max_rounds=2", "training.kernel=channels_last", "training.threads=1")


def described(folder: Path) -> tuple[Journal, Run]:
    journal = Journal(folder)
    run = journal.run("t1")
    assert run is not None
    return journal, run


def weights(model: object) -> np.ndarray:
    assert isinstance(model, FinalModel)
    return np.sort(np.concatenate([part.detach().numpy().ravel() for part in model.module().parameters()]))


@pytest.mark.parametrize("old", [False, True])
def test_the_tables_and_the_model_come_from_journal_and_checkpoint(tmp_path, config, old: bool) -> None:
    folder, place = tmp_path / "sweep", tmp_path / "elsewhere"
    expected = ended(folder, config, None if old else place)
    journal, run = described(folder)
    artifacts = Artifacts(journal, str(place))
    tables = artifacts.make(run, "tables", None)
    assert tables is not None
    (path,) = tables.write(tmp_path)
    assert pd.read_parquet(path)["round"].tolist() == [1, 2]
    assert np.array_equal(weights(artifacts.make(run, "model", None)), expected)
    assert artifacts.make(run, "timeline", None) is None
    if old:
        return
    journal.cut("t1", after=1)  # the checkpoint of round 2 is then one round ahead
    assert not np.array_equal(weights(artifacts.make(run, "model", None)), expected)
    journal.cut("t1", after=0)
    assert artifacts.make(run, "model", None) is None


def test_a_model_needs_its_data_and_a_configuration_that_hflray_wrote(tmp_path, config, monkeypatch) -> None:
    ended(tmp_path / "sweep", config)
    journal, run = described(tmp_path / "sweep")
    assert Artifacts(journal, str(tmp_path), lambda config: None).make(run, "model", None) is None

    def missing(name: str, root: str | None, options: object, split: str) -> None:
        raise DataError(f"{name}: no such file")

    monkeypatch.setattr("hflray.data.load_dataset", missing)
    with pytest.raises(DataError, match="no such file"):
        Artifacts(journal, str(tmp_path)).make(run, "model", None)
    for text, error in (("model: {name: own.py:Net}", ConfigError), ("", ConfigError), ("[", Exception)):
        run.artifacts["config.yaml"] = text  # type: ignore[index]
        with pytest.raises(error):
            Artifacts(journal, str(tmp_path)).make(run, "model", None)


@pytest.mark.parametrize(
    "path", ["../key", "/etc/passwd", "policies/none", "", "policies", "link", "policies/../../key"]
)
def test_only_files_of_the_sweep_s_folder_are_sent(tmp_path, path: str) -> None:
    folder = tmp_path / "sweep"
    (folder / "policies").mkdir(parents=True)
    for each in (folder / "policies" / "t1.npz", tmp_path / "key"):
        each.write_text("x")
    (folder / "link").symlink_to(tmp_path / "key")
    artifacts = Artifacts(Journal(folder), str(folder))
    sent = artifacts.make(Run("t1", "t1"), "file", "policies/t1.npz")
    assert sent is not None
    assert sent.write(tmp_path) == [folder / "policies" / "t1.npz"]
    with pytest.raises(DamagedError, match="is no file in"):
        artifacts.make(Run("t1", "t1"), "file", path)


def artifacts_in(uri: str) -> tuple[set[str], str]:
    """Return the artifacts and the status of the only run."""
    client = MlflowClient(uri)
    stored = client.get_experiment_by_name("tests")
    assert stored is not None
    (run,) = client.search_runs([stored.experiment_id])
    return {artifact.path for artifact in client.list_artifacts(run.info.run_id)}, run.info.status


@pytest.mark.parametrize("old, error", [(False, None), (True, None), (True, "it diverged")])
def test_sync_sends_what_the_kill_left_behind_and_sends_it_once(tmp_path, config, monkeypatch, old, error) -> None:
    folder, uri = tmp_path / "sweep", default_uri(tmp_path)
    ended(folder, config, None if old else folder, error)
    (folder / "sweep.json").write_text(json.dumps({"uri": uri, "experiment": "tests"}))
    made: list[str] = []
    make = Artifacts.make
    monkeypatch.setattr(Artifacts, "make", lambda self, *rest: made.append(rest[1]) or make(self, *rest))
    for _ in range(2):
        assert sync(folder)
        names, status = artifacts_in(uri)
        sent = not (old and error)  # a run of an older hflray that failed has none
        assert ({"model", "rounds.parquet"} <= names) == sent
        assert "config.yaml" in names
        assert status == ("FAILED" if error else "FINISHED")
        assert error or made == (["tables", "timeline", "model"] if old else ["tables", "model"])


# The model.


def test_any_tracker_can_store_the_weights_by_name(tmp_path) -> None:
    dataset = load_dataset("digits")
    network = build_model("hfl", dataset.image_shape, dataset.num_classes)
    vector = init_vector(network, np.random.default_rng(3))
    load_vector(network, vector)
    checkpoint.save(tmp_path / "saved" / "state", {"global_model": vector, "config": {"seed": 0}})
    model = FinalModel(lambda: nullcontext(tmp_path / "saved"), dataset, Problem.of(dataset, ExperimentConfig()))
    (path,) = model.write(tmp_path)
    weights = load_file(path)
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in network.state_dict().items()
    }
    assert all(torch.equal(weights[name], value) for name, value in network.state_dict().items())
    example = model.example()
    assert example.shape == (2, *dataset.image_shape)
    assert example.dtype == np.float32
    assert torch.equal(model.module()(torch.from_numpy(example)), network(torch.from_numpy(example)))


# Timelines.


def entry(number: int, *devices: int) -> dict[str, object]:
    columns = {"device": list(devices), "end_s": [number + 0.1 for _ in devices]}
    return {"round": number, "timeline": deflated(columns)}


def test_the_rounds_are_in_order_and_the_last_entry_of_a_round_counts() -> None:
    table = timeline_of([{"start": 1}, entry(2, 7), entry(1, 3, 4), entry(3), entry(2, 8, 9), {"end": "FINISHED"}])
    assert table is not None
    assert table["round"].tolist() == [1, 1, 2, 2]
    assert table["device"].tolist() == [3, 4, 8, 9]
    assert table["end_s"].tolist() == [1.1, 1.1, 2.1, 2.1]


def test_a_run_without_a_timeline_has_no_file(tmp_path) -> None:
    journal = Journal(tmp_path)
    journal.write("a", {"round": 1, "time": 0, "metrics": {}})
    assert timeline_of(journal.entries("a")) is None
    assert write_timeline(journal, "a") is None
    assert not (tmp_path / "timelines").exists()


@pytest.fixture(scope="module")
def late() -> ExperimentConfig:
    return small_config("scheduling.name=fedavg", "max_rounds=2", "clock.edge.deadline=0.9", "allocation.method=equal")


def logged(tracker: Tracker, config: ExperimentConfig) -> list[Timeline]:
    """Run an experiment and log its rounds, the second one twice; return their timelines."""
    tracker.start("t1", "t1", config, {})
    found = []
    with Experiment(config) as experiment:
        for record in experiment:
            assert record.deviates
            found.append(record.timeline)
            for _ in range(record.round):
                text = deflated(record.timeline.table())
                tracker.round("t1", record.round, record.metrics(), record.schedule(), None, text)
    return found


def check(path: Path, found: list[Timeline]) -> None:
    """Check that a file has every row of every round once, to the last bit."""
    table = pd.read_csv(path)
    for number, happens in enumerate(found, 1):
        rows, expected = table[table["round"] == number].drop(columns="round"), pd.DataFrame(happens.table())
        pd.testing.assert_frame_equal(rows.reset_index(drop=True), expected, check_exact=True, check_dtype=False)
    assert set(table["round"]) == {*range(1, len(found) + 1)}


def test_the_file_holds_the_rows_to_the_last_bit_and_is_an_artifact(open_tracker, results, tmp_path, late) -> None:
    tracker = open_tracker("timelines")
    found = logged(tracker, late)
    tracker.timeline("t1")
    path = results / "timelines" / "timelines" / "t1.csv.gz"
    check(path, found)
    first = path.read_bytes()
    tracker.timeline("t1")
    assert path.read_bytes() == first  # no time of day is in it
    tracker.finish("t1")
    assert tracker.close()
    client = MlflowClient(default_uri(results))
    (run_id,) = tracker.run_ids()
    check(Path(client.download_artifacts(run_id, "t1.csv.gz", str(tmp_path))), found)


def test_a_timeline_that_a_kill_left_unwritten_is_made_from_the_journal(tmp_path, late) -> None:
    tracker = Tracker("unused", "tests", "s", tmp_path / "s", sinks=())
    found = logged(tracker, late)
    tracker.finish("t1")
    journal = Journal(tmp_path / "s")
    run = journal.run("t1")
    assert run is not None
    for _ in range(2):
        artifact = Artifacts(journal, str(tmp_path)).make(run, "timeline", None)
        assert artifact is not None
        (path,) = artifact.write(tmp_path)
        check(path, found)
        shutil.rmtree(path.parent)


def test_a_damaged_timeline_costs_one_warning(tmp_path, caplog) -> None:
    tracker = Tracker("unused", "tests", "s", tmp_path / "s", sinks=())
    tracker.start("t1", "t1", small_config(), {})
    tracker.round("t1", 1, {}, timeline="nonsense")
    tracker.timeline("t1")
    assert "t1: its timeline is not written: a compressed table cannot be read" in caplog.text
