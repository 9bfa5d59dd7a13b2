"""hflray.results: a sweep's folder is written whole, and found again by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.results import SweepFolder, claimed, find, locate, new_folder, unfinished
from hflray.sweep import load_sweep


def made(results: Path, stamp: str, finished: bool, name: str = "mine") -> SweepFolder:
    file = load_sweep(None, [f"name={name}", "sweep.seed={grid: [1, 2]}", "max_rounds=3"])
    folder = SweepFolder(results / f"{name}-{stamp}", file, "sqlite:///x.db", "hflray", finished)
    folder.save()
    return folder


def test_a_folder_comes_back_as_it_was(tmp_path) -> None:
    folder = made(tmp_path, "20260101-000000", finished=False)
    assert SweepFolder.load(folder.path) == folder
    folder.finished = True
    folder.save()
    assert SweepFolder.load(folder.path).finished
    assert os.listdir(folder.path) == ["sweep.json"]


def test_a_new_folder_never_exists_yet(tmp_path) -> None:
    file = load_sweep(None, ["name=mine"])
    first = new_folder(tmp_path, file, "u", "e")
    first.save()
    second = new_folder(tmp_path, file, "u", "e")
    assert second.path != first.path
    assert second.path.name.startswith("mine-")


def test_resume_finds_the_latest_unfinished_of_a_name(tmp_path) -> None:
    made(tmp_path, "20260101-000000", finished=False)
    latest = made(tmp_path, "20260102-000000", finished=False)
    made(tmp_path, "20260103-000000", finished=True)
    made(tmp_path, "20260104-000000", finished=False, name="mine-too")
    assert find(tmp_path, "mine").path.name == latest.path.name
    assert find(tmp_path, "mine-20260101-000000").path.name == "mine-20260101-000000"
    assert unfinished(tmp_path, "other") is None
    assert locate(tmp_path, "mine").path.name == "mine-20260103-000000"


def test_what_cannot_be_resumed_is_said_in_one_line(tmp_path) -> None:
    made(tmp_path, "20260103-000000", finished=True)
    for name, says in (
        ("mine", "no unfinished sweep"),
        ("mine-20260103-000000", "is finished"),
        ("nine", "there: mine-"),
    ):
        with pytest.raises(ConfigError, match=says) as error:
            find(tmp_path, name)
        assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="no such sweep"):
        locate(tmp_path, "zzz")


@pytest.mark.parametrize("damage", ["cut", "version"])
def test_a_damaged_or_foreign_folder_is_refused(tmp_path, damage: str) -> None:
    folder = made(tmp_path, "20260101-000000", finished=False)
    path = folder.path / "sweep.json"
    text = path.read_text()
    path.write_text(text[:-9] if damage == "cut" else json.dumps(json.loads(text) | {"version": 99}))
    with pytest.raises(ConfigError, match="cannot be read" if damage == "cut" else "version 99"):
        SweepFolder.load(folder.path)
    assert unfinished(tmp_path, "mine") is None
    with pytest.raises(ConfigError, match="cannot be read" if damage == "cut" else "version 99"):
        find(tmp_path, "mine")


def test_two_processes_never_run_one_sweep(tmp_path) -> None:
    folder = made(tmp_path, "20260101-000000", finished=False)
    with claimed(folder.path):
        other = "import sys, pathlib, hflray.results as r\nwith r.claimed(pathlib.Path(sys.argv[1])): pass"
        command = [sys.executable, "-c", other, str(folder.path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert f"process {os.getpid()} is running this sweep" in done.stderr
    with claimed(folder.path):
        pass


def test_the_trackers_are_kept_and_an_older_folder_has_mlflow(tmp_path) -> None:
    folder = made(tmp_path, "20260101-000000", finished=False)
    folder.sinks = ("csv",)
    folder.save()
    assert SweepFolder.load(folder.path).sinks == ("csv",)
    content = json.loads((folder.path / "sweep.json").read_text())
    del content["sinks"]
    (folder.path / "sweep.json").write_text(json.dumps(content))
    assert SweepFolder.load(folder.path).sinks == ("mlflow",)
