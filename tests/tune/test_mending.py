"""`hflray.tune.mending`, tested on the state that a real run of Tune writes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hflray import checkpoint
from hflray.tune.mending import DAMAGED, SALVAGED, put_back, salvage, set_aside


def rounds(config: dict[str, int]) -> None:
    from ray import tune

    for index in range(3):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint.save(Path(folder) / "state", {"round": index, "global_model": np.zeros(3, np.float32)})
            tune.report({"round": index}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.fixture(scope="module")
def finished(ray_session, tmp_path_factory) -> Path:
    from ray import tune

    place = tmp_path_factory.mktemp("place")
    run_config = tune.RunConfig(name="sweep", storage_path=str(place), verbose=0)
    tune.Tuner(rounds, param_space={"x": 1}, run_config=run_config).fit()
    return place


@pytest.fixture
def place(finished, tmp_path) -> Path:
    """Return a folder with the files of a real run of Tune and the state of an earlier start."""
    shutil.copytree(finished / "sweep", tmp_path / "sweep")
    for path in [*tmp_path.glob("sweep/*state-*.json")]:
        stem, start = path.name.split("-2", 1)
        shutil.copy(path, path.with_name(f"{stem}-1{start}"))
    return tmp_path


def test_the_newest_whole_checkpoint_replaces_a_missing_one(place) -> None:
    assert put_back(str(place), "sweep") == []  # no checkpoint is missing
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    # The driver was killed two rounds after Tune saved its state, while the last checkpoint was being written.
    for old, new in (("000002", "000004"), ("000001", "000003"), ("000000", "000005")):
        (trial / f"checkpoint_{old}").rename(trial / f"checkpoint_{new}")
    (trial / "checkpoint_000005" / "state" / "state.json").write_text("{")
    assert not last.exists()
    assert put_back(str(place), "sweep") == [trial.name]
    assert checkpoint.load(last / "state")["round"] == 2
    assert put_back(str(place), "sweep") == []


def test_an_empty_folder_needs_no_repair(tmp_path) -> None:
    (tmp_path / "sweep").mkdir()
    assert put_back(str(tmp_path), "sweep") == []
    assert set_aside(str(tmp_path), "none") == ([], False)


def damage(path: Path, kind: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"emptied": b"", "cut": content[: len(content) // 2], "cut at its end": content[:-1]}[kind])


def test_a_whole_state_stays(place) -> None:
    before = sorted(path.name for path in (place / "sweep").iterdir())
    assert set_aside(str(place), "sweep") == ([], True)
    assert sorted(path.name for path in (place / "sweep").iterdir()) == before


@pytest.mark.parametrize("kind", ["emptied", "cut", "cut at its end"])
@pytest.mark.parametrize("file", ["experiment_state-2", "basic-variant-state-2"])
def test_a_damaged_state_is_set_aside_with_all_of_its_start_and_the_previous_one_is_used(place, kind, file) -> None:
    (path,) = place.glob(f"sweep/{file}*")
    damage(path, kind)
    assert set_aside(str(place), "sweep") == ([path.name], True)
    names = sorted(path.name[:22] for path in (place / "sweep").glob("*state-*.json"))
    assert names == [
        "basic-variant-state-10",
        "damaged-basic-variant-",
        "damaged-experiment_sta",
        "experiment_state-1026-",
    ]
    assert set_aside(str(place), "sweep") == ([], True)  # a second call has nothing to do


def test_a_missing_whole_state_is_reported_also_by_a_second_call(place) -> None:
    for path in place.glob("sweep/experiment_state-*"):
        damage(path, "cut")
    damaged, whole = set_aside(str(place), "sweep")
    assert [name[:18] for name in damaged] == ["experiment_state-2", "experiment_state-1"]
    assert not whole
    again, whole = set_aside(str(place), "sweep")
    assert len(again) == 4
    assert all(name.startswith(DAMAGED) for name in again)
    assert not whole


def test_a_cut_pickle_of_the_tuner_is_damaged_too(place) -> None:
    damage(place / "sweep" / "tuner.pkl", "cut")
    assert set_aside(str(place), "sweep") == (["tuner.pkl"], False)
    assert (place / "sweep" / f"{DAMAGED}tuner.pkl").exists()


def test_the_newest_whole_checkpoint_is_salvaged_and_the_numbered_ones_are_removed(place) -> None:
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    (last / "state" / "state.json").write_text("{")
    salvage(str(place), "sweep", [trial.name, "a trial that never began"])
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    assert not list(trial.glob("checkpoint_*"))
    salvage(str(place), "sweep", [trial.name])  # a resume that was killed immediately was here before
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    shutil.copytree(trial / SALVAGED, trial / "checkpoint_000000")
    (trial / "checkpoint_000000" / "state" / "state.json").write_text("{")
    salvage(str(place), "sweep", [trial.name])  # a damaged checkpoint does not replace a whole one
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1


def test_a_checkpoint_ahead_of_the_journal_is_not_used(place) -> None:
    """The driver was killed after the trial had saved round 2 and before the driver had the result of round 2."""
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    for old, new in (("000002", "000004"), ("000001", "000003")):
        (trial / f"checkpoint_{old}").rename(trial / f"checkpoint_{new}")
    assert put_back(str(place), "sweep", {trial.name: 1}) == [trial.name]
    assert checkpoint.load(last / "state")["round"] == 1
    salvage(str(place), "sweep", [trial.name], {trial.name: 1})
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    shutil.copytree(trial / SALVAGED, trial / "checkpoint_000000")
    shutil.rmtree(trial / SALVAGED)
    salvage(str(place), "sweep", [trial.name], {trial.name: 0})  # no round is journalled: the trial begins anew
    assert not (trial / SALVAGED).exists()
    assert not list(trial.glob("checkpoint_*"))
