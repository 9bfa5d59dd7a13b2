"""`hflray.tracking.artifacts`: tables, timelines and models are made from the sweep's folder when they are sent."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from hflray.config import ExperimentConfig
from hflray.errors import ConfigError, DamagedError, DataError
from hflray.experiment import Experiment
from hflray.support import checkpoint
from hflray.support.checkpoint import Checkpoints
from hflray.tracking import FinalModel, Journal, Run, Tracker, default_uri, sync
from hflray.tracking.artifacts import Artifacts
from tests.conftest import small_config


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


@pytest.mark.parametrize("error", [None, "it diverged"])
@pytest.mark.parametrize("old", [False, True])
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
