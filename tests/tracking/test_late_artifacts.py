"""`hflray.tracking.late_artifacts`: tables and models that a kill kept back are sent later, and only once."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from hflray.config import ExperimentConfig
from hflray.errors import DataError
from hflray.experiment import Experiment
from hflray.support import checkpoint
from hflray.tracking import Ending, FinalModel, Journal, Run, Tracker, default_uri, sync
from hflray.tracking.late_artifacts import remains
from tests.conftest import small_config


def ended(folder: Path, config: ExperimentConfig, error: str | None = None) -> Experiment:
    """Write what a run of two rounds leaves if its driver is killed right after the run's end."""
    tracker = Tracker("unused", "tests", folder.name, folder, sinks=())
    tracker.start("t1", "t1", config, {})
    with Experiment(config) as experiment:
        for record in experiment:
            tracker.round("t1", record.round, record.metrics())
            checkpoint.save(folder / "t1" / f"checkpoint_{record.round:06d}" / "state", experiment.state_dict())
    tracker.finish("t1", error=error)
    return experiment


@pytest.fixture(scope="module")
def config() -> ExperimentConfig:
    return small_config("max_rounds=2", "training.kernel=channels_last", "training.threads=1")


def described(folder: Path) -> Run:
    run = Journal(folder).run("t1")
    assert run is not None
    return run


def test_the_tables_and_the_model_come_from_journal_and_checkpoint(tmp_path, config) -> None:
    experiment = ended(tmp_path / "sweep", config)
    tables, model = remains(Journal(tmp_path / "sweep"), described(tmp_path / "sweep"))
    (path,) = tables.write(tmp_path)
    assert pd.read_parquet(path)["round"].tolist() == [1, 2]
    assert isinstance(model, FinalModel)
    weights = np.concatenate([part.detach().numpy().ravel() for part in model.module().parameters()])
    assert np.array_equal(np.sort(weights), np.sort(experiment.global_model))


def test_a_model_without_its_data_is_left_out_with_a_warning(tmp_path, config, caplog, monkeypatch) -> None:
    ended(tmp_path / "sweep", config)

    def missing(name: str, root: str | None) -> None:
        raise DataError(f"{name}: no such file")

    monkeypatch.setattr("hflray.data.load_dataset", missing)
    assert len(remains(Journal(tmp_path / "sweep"), described(tmp_path / "sweep"))) == 1
    assert "t1: its final model cannot be sent" in caplog.text


def artifacts(uri: str) -> tuple[set[str], str]:
    """Return the artifacts and the status of the only run."""
    client = MlflowClient(uri)
    stored = client.get_experiment_by_name("tests")
    assert stored is not None
    (run,) = client.search_runs([stored.experiment_id])
    return {artifact.path for artifact in client.list_artifacts(run.info.run_id)}, run.info.status


def test_sync_sends_what_the_kill_left_behind_and_sends_it_once(tmp_path, config, monkeypatch) -> None:
    folder, uri = tmp_path / "sweep", default_uri(tmp_path)
    ended(folder, config)
    (folder / "sweep.json").write_text(json.dumps({"uri": uri, "experiment": "tests"}))
    made: list[str] = []
    monkeypatch.setattr(
        "hflray.tracking.tracker.remains", lambda journal, run: made.append(run.key) or remains(journal, run)
    )
    for _ in range(2):
        assert sync(folder)
        names, status = artifacts(uri)
        assert {"model", "rounds.parquet", "config.yaml"} <= names
        assert status == "FINISHED"
        assert made == ["t1"]


def test_a_failed_run_leaves_no_artifacts(tmp_path, config) -> None:
    folder, uri = tmp_path / "sweep", default_uri(tmp_path)
    ended(folder, config, error="it diverged")
    (folder / "sweep.json").write_text(json.dumps({"uri": uri, "experiment": "tests"}))
    assert sync(folder)
    names, status = artifacts(uri)
    assert not {"model", "rounds.parquet"} & names
    assert status == "FAILED"


def test_products_are_sent_too_and_a_tracker_that_has_all_gets_none(tmp_path, config, diary, monkeypatch) -> None:
    folder = tmp_path / "sweep"
    ended(folder, config)
    (tmp_path / "policy").write_text("x")
    for has_all, count in ((True, 0), (False, 3)):
        monkeypatch.setattr(
            "tests.tracking.diary.Diary.has_all", lambda self, run, answer=has_all: answer, raising=False
        )
        tracker = Tracker("unused", "tests", "sweep", folder, sinks=("diary",))
        tracker.adopt("t1", [tmp_path / "policy"])
        assert tracker.close()
        sent = [artifact for _, artifact in diary[-1].of("artifact")]
        assert len(sent) == count
        assert [path for artifact in sent[2:] for path in artifact.write(tmp_path)] == [tmp_path / "policy"] * (
            count // 3
        )  # type: ignore[attr-defined]
        assert isinstance(diary[-1].of("end")[0][1], Ending)
