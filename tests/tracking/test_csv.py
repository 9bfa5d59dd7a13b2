"""hflray.tracking.csv: each round has one whole row."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from hflray import metrics
from hflray.tracking import Place, Round, Run, Tracker
from hflray.tracking.csv import CSVSink
from tests.conftest import small_config

RUN = Run("t1", "x")


def opened(folder: Path) -> tuple[CSVSink, int]:
    sink = CSVSink(Place("", "", "s", folder))
    sink.connect()
    return sink, sink.open(RUN)


def round_of(number: int, **values: float) -> Round:
    return Round(number, 0, {"accuracy": number / 10, **values})


def test_a_sweep_s_run_is_a_file_of_glossary_metrics(tmp_path) -> None:
    tracker = Tracker("http://127.0.0.1:9", "tests", "s", tmp_path, required=True, sinks=("csv",))
    tracker.start("t1", "x", small_config(), {})
    third = 1 / 3
    tracker.round(
        "t1", 1, {metrics.ACCURACY: third, metrics.ROUND_DELAY_S: 3.0, metrics.edge_metric(0, "devices"): 2.0}
    )
    tracker.round("t1", 2, {metrics.ACCURACY: 0.5, metrics.ROUND_DELAY_S: float("inf")})
    tracker.round("t1", 3, {metrics.ACCURACY: 0.75, metrics.ROUND_DELAY_S: 1e-300, metrics.ROUNDS_TO_TARGET: 3.0})
    tracker.finish("t1")
    assert tracker.close()
    assert tracker.seen_at() == [f"Rounds as CSV files: {tmp_path / 'csv'}"]
    table = pd.read_csv(tmp_path / "csv" / "t1.csv")
    assert list(table.columns) == ["round", "accuracy", "round/delay_s", "edge/0/devices", "rounds_to_target"]
    assert table["round"].tolist() == [1, 2, 3]
    assert table["accuracy"].tolist() == [third, 0.5, 0.75]
    assert table["round/delay_s"].isna().tolist() == [False, True, False]
    assert table["round/delay_s"][2] == 1e-300
    assert table["rounds_to_target"].isna().tolist() == [True, True, False]
    assert sorted(path.name for path in (tmp_path / "csv").iterdir()) == ["t1.csv"]


def test_a_file_that_is_lost_or_damaged_is_written_again_from_the_journal(tmp_path) -> None:
    def track() -> None:
        tracker = Tracker("http://127.0.0.1:9", "tests", "s", tmp_path, sinks=("csv",))
        tracker.start("t1", "x", small_config(), {})
        for step in (1, 2):
            if step not in [round.number for round in tracker.journal.rounds("t1")]:
                tracker.round("t1", step, {"accuracy": step / 8, "test_loss": step / 4})
        tracker.finish("t1")
        assert tracker.close()

    track()
    path = tmp_path / "csv" / "t1.csv"
    whole = path.read_bytes()
    assert whole == b"round,accuracy,test_loss\n1,0.125,0.25\n2,0.25,0.5\n"
    for damaged in [b"", b"\xff" * 20, whole[:30], whole + b"3,0.5,", whole.replace(b"0.5", b"0.7"), None]:
        path.unlink() if damaged is None else path.write_bytes(damaged)
        track()
        assert path.read_bytes() == whole


def test_a_new_metric_widens_the_file_in_one_step(tmp_path, monkeypatch) -> None:
    sink, _ = opened(tmp_path)
    sink.rounds(RUN, [round_of(1)])
    path = tmp_path / "csv" / "t1.csv"
    before = path.read_bytes()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        sink.rounds(RUN, [round_of(2, rounds_to_target=2.0)])
    monkeypatch.undo()
    assert path.read_bytes() == before
    again, last = opened(tmp_path)
    assert last == -1
    assert path.read_bytes() == before, "the file stays until rounds take its place"
    again.rounds(RUN, [round_of(1), round_of(2, rounds_to_target=2.0)])
    again.rounds(RUN, [round_of(3)])
    assert path.read_bytes() == b"round,accuracy,rounds_to_target\n1,0.1,\n2,0.2,2.0\n3,0.3,\n"
