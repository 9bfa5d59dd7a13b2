"""`hflray.tracking.timelines`: a run's timeline is one table, which has each round once and is stored with the run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas as pd
import pytest
from mlflow import MlflowClient

from hflray.config import ExperimentConfig
from hflray.experiment import Experiment
from hflray.support.arrays import deflated
from hflray.timeline import Timeline
from hflray.tracking import Journal, Tracker, default_uri
from hflray.tracking.artifacts import Artifacts
from hflray.tracking.timelines import timeline_of, write_timeline
from tests.conftest import small_config


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
def config() -> ExperimentConfig:
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


def test_the_file_holds_the_rows_to_the_last_bit_and_is_an_artifact(open_tracker, results, tmp_path, config) -> None:
    tracker = open_tracker("timelines")
    found = logged(tracker, config)
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


def test_a_timeline_that_a_kill_left_unwritten_is_made_from_the_journal(tmp_path, config) -> None:
    tracker = Tracker("unused", "tests", "s", tmp_path / "s", sinks=())
    found = logged(tracker, config)
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
