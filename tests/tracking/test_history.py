"""hflray.tracking.history: reading logged runs from MLflow and from the journal."""

from __future__ import annotations

import pytest

from hflray.errors import ConfigError
from hflray.tracking import Tables, default_uri, read_histories, read_journal, read_runs
from tests.conftest import small_config


def test_tables_are_the_same_from_the_journal_and_from_mlflow(open_tracker, results) -> None:
    tracker = open_tracker("tables")
    devices = {"samples": [3, 2], "class_counts": [[3, 0], [1, 1]], "clusters": [0, 1]}
    for key in ("done", "half"):
        tracker.start(key, key, small_config(), {})
        for step in (2, 1, 2):  # a repeated round counts once
            schedule = {"devices": [0, 1], "edges": [step, 0], "bandwidth_hz": [1.0, 2.0], "cpu_hz": [3.0, 4.0]}
            tracker.round(key, step, {"accuracy": step / 10}, schedule, devices)
    tables = Tables.of(tracker.journal.entries("done"))
    assert tables.rounds["round"].tolist() == [1, 2]
    assert tables.rounds["edges"].tolist() == [[1, 0], [2, 0]]
    assert tables.devices is not None
    assert tables.devices.to_dict("list") == {
        "device": [0, 1], "samples": [3, 2], "cluster": [0, 1], "class/0": [3, 1], "class/1": [0, 1],
    }  # fmt: skip
    tracker.artifact("done", "tables")
    tracker.finish("done")
    assert tracker.close()
    done, half = read_histories(default_uri(results), "tests", "tables")
    journal = {history.name: history for history in read_journal(results / "tables")}
    assert (done.status, half.status) == ("FINISHED", "RUNNING")
    assert [list(row) for row in done.tables.rounds["edges"]] == [[1, 0], [2, 0]]
    assert half.tables.devices is None  # before the end of a run, only the journal has its devices
    assert journal["half"].tables.devices is not None
    for journalled, logged in ((journal["done"], done), (journal["half"], half)):
        assert journalled.status == logged.status
        assert journalled.config == logged.config
        assert journalled.tables.rounds["accuracy"].tolist() == logged.tables.rounds["accuracy"].tolist() == [0.1, 0.2]
    with pytest.raises(ConfigError, match="holds no run"):
        read_journal(results)


def test_tags_of_the_end_are_set_and_known_after_a_restart(open_tracker, results) -> None:
    tracker = open_tracker("tagged")
    tracker.start("t1", "x", small_config(), {})
    tracker.finish("t1", tags={"hflray.stopped": "asha after round 3"})
    assert tracker.close()
    assert tracker.end_tags("t1") == {"hflray.stopped": "asha after round 3"}
    again = open_tracker("tagged")
    assert again.close()
    assert again.run_ids(["t1", "unknown"]) == tracker.run_ids()
    (run,) = read_runs(default_uri(results), "tests", "tagged")[1]
    assert (run.status, run.stopped, run.error) == ("FINISHED", "asha after round 3", None)
