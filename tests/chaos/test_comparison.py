"""The comparison notices whatever is lost, doubled or changed. The results are made up, in the formats of real ones."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from pyarrow import table

from hflray.support import checkpoint
from hflray.support.checkpoint import Checkpoints
from tests.chaos.comparison import ARTIFACTS, Reference, differences

TRIALS, ROUNDS = ("a", "b"), 3


def values(trial: str, number: int) -> dict[str, float]:
    return {"accuracy": 0.1 * number + len(trial), "wall/train_s": 0.5}


def line(trial: str, number: int, **other: float) -> str:
    return json.dumps(
        {"round": number, "time": 1, "metrics": values(trial, number) | other, "schedule": {"edges": [1]}}
    )


@pytest.fixture
def results(tmp_path) -> Path:
    """Make the results of an unbroken sweep and return their folder."""
    folder = tmp_path / "results" / "chaos-20260101-000000"
    for name in ("journal", "csv", "artifacts"):
        (folder / name).mkdir(parents=True)
    (folder / "sweep.json").write_text(json.dumps({"finished": True}))
    with closing(sqlite3.connect(tmp_path / "results" / "mlflow.db")) as database:
        database.execute("CREATE TABLE runs (run_uuid, name, status, artifact_uri)")
        database.execute("CREATE TABLE tags (key, value, run_uuid)")
        database.execute("CREATE TABLE metrics (key, step, value, run_uuid)")
        for trial in TRIALS:
            artifacts = folder / "artifacts" / trial
            for name in ARTIFACTS:
                (artifacts / name).parent.mkdir(parents=True, exist_ok=True)
            (artifacts / "config.yaml").write_text("seed: 0\nmax_rounds: 3\n")
            (artifacts / "model" / "MLmodel").write_text("x")
            parquet.write_table(table({"round": [1, 2, 3]}), artifacts / "rounds.parquet")
            (artifacts / "model" / "data").mkdir()
            with zipfile.ZipFile(artifacts / "model" / "data" / "model.pt2", "w") as archive:
                archive.writestr("weights", bytes(1000))
            database.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', ?)", (trial, trial, str(artifacts)))
            database.execute("INSERT INTO tags VALUES ('hflray.sweep', ?, ?)", (folder.name, trial))
            rows = [line(trial, number) for number in range(1, ROUNDS + 1)]
            for number in range(1, ROUNDS + 1):
                for name, value in values(trial, number).items():
                    database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?)", (name, number, value, trial))
            text = "\n".join(['{"start": 1}', *rows, '{"end": "FINISHED"}']) + "\n"
            (folder / "journal" / f"{trial}.jsonl").write_text(text)
            with (folder / "csv" / f"{trial}.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, ["round", "accuracy", "wall/train_s"])
                writer.writeheader()
                writer.writerows({"round": n, **values(trial, n)} for n in range(1, ROUNDS + 1))
            for number in (ROUNDS - 1, ROUNDS):
                state = {"round": number, "global_model": np.full(3, number, dtype=np.float32)}
                save(folder, trial, state)
        database.commit()
    return folder.parent


def save(folder: Path, trial: str, state: dict[str, Any]) -> None:
    Checkpoints(str(folder), trial).save(state["round"], lambda scratch: checkpoint.save(scratch / "state", state))


def compare(results: Path, reference: Reference) -> list[str]:
    return differences(results, reference, results / "mlflow.db")


def test_an_equal_sweep_has_no_differences(results) -> None:
    reference = Reference.of_results(results)
    assert compare(results, reference) == []
    assert reference.rounds["a"]["2"]["metrics"] == {"accuracy": values("a", 2)["accuracy"]}
    reference.save(results / "reference.json")
    assert Reference.load(results / "reference.json") == reference


def execute(results: Path, statement: str) -> None:
    with closing(sqlite3.connect(results / "mlflow.db")) as database:
        database.execute(statement)
        database.commit()


def edit(results: Path, name: str, before: str, after: str) -> None:
    (path,) = results.glob(f"chaos-*/{name}")
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def halve(results: Path, name: str) -> None:
    (path,) = results.glob(f"chaos-*/{name}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


BREAKS = {
    "a: journal: round 2 is lost": lambda r: edit(r, "journal/a.jsonl", line("a", 2), "{"),
    "a: journal: round 2 is there 2 times": lambda r: edit(
        r, "journal/a.jsonl", line("a", 2), line("a", 2) + "\n" + line("a", 2)
    ),
    "a: journal: round 2: accuracy 7 not 1.2": lambda r: edit(
        r, "journal/a.jsonl", line("a", 2), line("a", 2, accuracy=7)
    ),
    "a: journal: round 1: another schedule or timeline": lambda r: edit(
        r, "journal/a.jsonl", '"edges": [1]', '"edges": [0]'
    ),
    "b: journal: the last line is not the end": lambda r: edit(r, "journal/b.jsonl", '{"end": "FINISHED"}\n', ""),
    "journal: nothing of b": lambda r: next(r.glob("chaos-*/journal/b.jsonl")).unlink(),
    "MLflow: nothing of b": lambda r: execute(r, "DELETE FROM runs WHERE name = 'b'"),
    "b: MLflow: 2 runs instead of one": lambda r: execute(r, "INSERT INTO runs SELECT * FROM runs WHERE name = 'b'"),
    "b: MLflow: the run is RUNNING": lambda r: execute(r, "UPDATE runs SET status = 'RUNNING' WHERE name = 'b'"),
    "a: MLflow: accuracy of round 3 is lost": lambda r: execute(
        r, "DELETE FROM metrics WHERE run_uuid = 'a' AND step = 3 AND key = 'accuracy'"
    ),
    "a: MLflow: accuracy of round 1 is there 2 times": lambda r: execute(
        r, "INSERT INTO metrics SELECT * FROM metrics WHERE run_uuid = 'a' AND step = 1 AND key = 'accuracy'"
    ),
    "a: MLflow: accuracy of round 1 is 9.0, not 1.1": lambda r: execute(
        r, "UPDATE metrics SET value = 9.0 WHERE run_uuid = 'a' AND step = 1 AND key = 'accuracy'"
    ),
    "a: MLflow: the artifact model/MLmodel is lost": lambda r: next(
        r.glob("chaos-*/artifacts/a/model/MLmodel")
    ).unlink(),
    "a: MLflow: an artifact is cut off: 'max_rounds'": lambda r: edit(
        r, "artifacts/a/config.yaml", "max_rounds: 3\n", ""
    ),
    "a: MLflow: an artifact is cut off: Could not open Parquet": lambda r: halve(r, "artifacts/a/rounds.parquet"),
    "a: MLflow: the artifact model/data/model.pt2 is cut off": lambda r: halve(r, "artifacts/a/model/data/model.pt2"),
    "b: CSV: round 3 is lost": lambda r: edit(r, "csv/b.csv", "3,", "# "),
    "b: CSV: round 1 has other values than the journal": lambda r: edit(r, "csv/b.csv", "1,1.1", "1,1.11"),
    "b: CSV: there is no file": lambda r: next(r.glob("chaos-*/csv/b.csv")).unlink(),
    "b: the final model is no checkpoint after round 3; there are [2]": lambda r: next(
        r.glob(f"chaos-*/checkpoints/b/*{ROUNDS}")
    ).unlink(),
    "sweep.json says that the sweep is unfinished": lambda r: edit(r, "sweep.json", "true", "false"),
    "2 sweeps have begun, instead of one": lambda r: shutil.copytree(
        next(r.glob("chaos-*")), r / "chaos-20260102-000000"
    ),
}


@pytest.mark.parametrize("expected", BREAKS)
def test_what_is_lost_is_named(results, expected: str) -> None:
    reference = Reference.of_results(results)
    BREAKS[expected](results)
    assert any(line.startswith(expected) for line in compare(results, reference)), compare(results, reference)


def test_another_model_is_named(results) -> None:
    reference = Reference.of_results(results)
    state = {"round": ROUNDS, "global_model": np.zeros(3, dtype=np.float32)}
    save(next(results.glob("chaos-*")), "b", state)
    (line,) = compare(results, reference)
    assert line.startswith("b: the final model is ")
