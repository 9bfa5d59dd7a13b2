"""`hflray.tune.mending`, tested on the state that a real run of Tune writes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from hflray.errors import ConfigError
from hflray.support import checkpoint
from hflray.support.checksum import digest
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal
from hflray.tune.digests import STATE, TUNER, TuneDigests
from hflray.tune.mending import DAMAGED, SALVAGED, mend, put_back, salvage, set_aside, unlogged


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
    run_config = tune.RunConfig(name="named", storage_path=str(place), verbose=0)
    trials = tune.grid_search([{"name": "a"}, {"name": "b"}])
    tune.Tuner(rounds, param_space={"values": trials}, run_config=run_config).fit()
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
    assert put_back(str(place), "sweep", step_of) == []  # no checkpoint is missing
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    # The driver was killed two rounds after Tune saved its state, while the last checkpoint was being written.
    for old, new in (("000002", "000004"), ("000001", "000003"), ("000000", "000005")):
        (trial / f"checkpoint_{old}").rename(trial / f"checkpoint_{new}")
    (trial / "checkpoint_000005" / "state" / "state.json").write_text("{")
    assert not last.exists()
    assert put_back(str(place), "sweep", step_of) == [trial.name]
    assert checkpoint.load(last / "state")["round"] == 2
    assert put_back(str(place), "sweep", step_of) == []


def test_an_empty_folder_needs_no_repair(tmp_path) -> None:
    (tmp_path / "sweep").mkdir()
    assert put_back(str(tmp_path), "sweep", step_of) == []
    assert set_aside(str(tmp_path), "none") == ([], False)


def step_of(folder: Path) -> int:
    return int(checkpoint.load(folder / "state")["round"])


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
    salvage(str(place), "sweep", [trial.name, "a trial that never began"], step_of)
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    assert not list(trial.glob("checkpoint_*"))
    salvage(str(place), "sweep", [trial.name], step_of)  # a resume that was killed immediately was here before
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    shutil.copytree(trial / SALVAGED, trial / "checkpoint_000000")
    (trial / "checkpoint_000000" / "state" / "state.json").write_text("{")
    salvage(str(place), "sweep", [trial.name], step_of)  # a damaged checkpoint does not replace a whole one
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1


def test_a_checkpoint_ahead_of_the_journal_is_not_used(place) -> None:
    """The driver was killed after the trial had saved round 2 and before the driver had the result of round 2."""
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    for old, new in (("000002", "000004"), ("000001", "000003")):
        (trial / f"checkpoint_{old}").rename(trial / f"checkpoint_{new}")
    assert put_back(str(place), "sweep", step_of, {trial.name: 1}) == [trial.name]
    assert checkpoint.load(last / "state")["round"] == 1
    salvage(str(place), "sweep", [trial.name], step_of, {trial.name: 1})
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 1
    shutil.copytree(trial / SALVAGED, trial / "checkpoint_000000")
    shutil.rmtree(trial / SALVAGED)
    salvage(
        str(place), "sweep", [trial.name], step_of, {trial.name: 0}
    )  # no round is journalled: the trial begins anew
    assert not (trial / SALVAGED).exists()
    assert not list(trial.glob("checkpoint_*"))


def known(place: Path) -> dict[str, list[str]]:
    """Return the digests of Tune's files as a driver records them."""
    return {
        path.name: [digest(path.read_bytes())]
        for path in (place / "sweep").iterdir()
        if STATE.fullmatch(path.name) or path.name == TUNER
    }


def test_a_recorded_state_stays(place) -> None:
    record = known(place)
    assert len(record) == 5
    assert set_aside(str(place), "sweep", record) == ([], True)
    assert known(place) == record


@pytest.mark.parametrize("file", ["experiment_state-2", "basic-variant-state-2"])
def test_a_flipped_byte_or_a_missing_file_damages_its_start(place, file) -> None:
    record = known(place)
    (path,) = place.glob(f"sweep/{file}*")
    whole = path.read_bytes()
    path.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
    assert set_aside(str(place), "sweep", record) == ([path.name], True)
    assert len(list(place.glob("sweep/damaged-*"))) == 2
    (path,) = place.glob(f"sweep/{file.replace('-2', '-1')}*")
    path.unlink()
    damaged, is_whole = set_aside(str(place), "sweep", record)
    assert path.name in damaged
    assert not is_whole


@pytest.mark.parametrize("name", ["callback-states-0.pkl", "searcher-state-9.pkl", "search_gen_state-.json", TUNER])
def test_a_file_that_was_not_recorded_is_set_aside(place, name) -> None:
    """Also one of an earlier start than the current one: Tune would load it if there is no newer file of its kind."""
    record = known(place)
    (place / "sweep" / name).write_bytes(b"\x80\x04N.")
    assert set_aside(str(place), "sweep", record) == ([name], name != TUNER)
    assert not (place / "sweep" / name).exists()
    assert (place / "sweep" / f"{DAMAGED}{name}").exists()


def test_a_driver_that_was_killed_before_tune_saved_its_state_is_not_called_damaged(place) -> None:
    record = known(place)
    for name in record:
        if name != TUNER:
            (place / "sweep" / name).unlink()
    assert set_aside(str(place), "sweep", {TUNER: record[TUNER]}) == ([], False)
    assert set_aside(str(place), "sweep", record) == (sorted(name for name in record if name != TUNER), False)


def test_without_a_record_no_file_of_tune_remains(place) -> None:
    damaged, is_whole = set_aside(str(place), "sweep", {})
    assert sorted(damaged) == sorted(name.removeprefix(DAMAGED) for name in map(str, damaged))
    assert len(damaged) == 5
    assert not is_whole
    assert known(place) == {}


def test_a_salvaged_checkpoint_ahead_of_the_journal_is_removed(place) -> None:
    """The journal lost rounds after an earlier resume, so the trial must make them again."""
    (last,) = place.glob("sweep/*/checkpoint_000002")
    trial = last.parent
    salvage(str(place), "sweep", [trial.name], step_of)
    assert checkpoint.load(trial / SALVAGED / "state")["round"] == 2
    salvage(str(place), "sweep", [trial.name], step_of, {trial.name: 2})
    assert (trial / SALVAGED).exists()
    salvage(str(place), "sweep", [trial.name], step_of, {trial.name: 1})
    assert not (trial / SALVAGED).exists()


SEARCH = [
    "tune={samples: 4, search: {metric: objective_to_target}}",
    "target_accuracy=0.5",
    "sweep.seed={randint: [0, 9]}",
]


def sweep_folder(place: Path, *overrides: str) -> SweepFolder:
    """Return the folder of `place` as that of a sweep of this user, with the record of Tune's files."""
    folder = SweepFolder(place / "sweep", load_sweep(None, ["name=sweep", *overrides]), "sqlite:///x.db", "hflray")
    folder.save()
    digests = TuneDigests(folder.path)
    digests.known = known(place)
    digests.save()
    return folder


def test_a_sweep_with_its_seals_continues_from_tunes_state(place) -> None:
    lines: list[str] = []
    folder = sweep_folder(place, *SEARCH)
    digests, whole = mend(folder, lines.append)
    assert (whole, lines) == (True, [])
    assert digests.known == known(place)


def test_a_search_of_another_user_stops_before_any_file_is_moved(place, monkeypatch, tmp_path) -> None:
    folder = sweep_folder(place, *SEARCH)
    before = sorted(path.name for path in folder.path.iterdir())
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "another key"))
    with pytest.raises(ConfigError, match=r"carries no seal of this user.*--resume sweep --trust") as error:
        mend(folder, print)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.path.iterdir()) == before
    assert mend(folder, print, trust=True)[1]


def test_a_grid_of_another_user_continues_without_tunes_files(place, monkeypatch, tmp_path) -> None:
    folder = sweep_folder(place, "sweep.seed={grid: [0, 1]}")
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "another key"))
    lines: list[str] = []
    digests, whole = mend(folder, lines.append)
    assert (digests.known, whole) == ({}, False)
    (line,) = lines
    assert "carries no seal of this user" in line
    assert known(place) == {}


@pytest.mark.parametrize("kind", ["grid", "search"])
def test_a_damaged_journal_is_cut_in_a_grid_only(place, kind) -> None:
    folder = sweep_folder(place, *(SEARCH if kind == "search" else ["sweep.seed={grid: [0, 1]}"]))
    journal = Journal(folder.path)
    for number in (1, 2, 3):
        journal.write("t", {"round": number, "time": number, "metrics": {}})
    path = journal.path("t")
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 7'))
    lines: list[str] = []
    _, whole = mend(folder, lines.append)
    (line,) = lines
    assert line.startswith("t: 1 lines of its journal are damaged; ")
    assert line.endswith("missing from its tables" if kind == "search" else "its rounds after 1 are made again")
    assert whole == (kind == "search")
    assert [entry["round"] for entry in journal.entries("t")] == ([1, 3] if kind == "search" else [1])


def test_a_tune_that_is_ahead_of_the_journal_is_reported(finished, tmp_path) -> None:
    shutil.copytree(finished / "named", tmp_path / "named")
    assert unlogged(str(tmp_path), "named", {"a": 2, "b": 2}, {"a", "b"}) == []
    assert unlogged(str(tmp_path), "named", {"a": 2, "b": 2}, {"b"}) == ["a"]  # Tune says that it has ended
    assert unlogged(str(tmp_path), "named", {"a": 1, "b": 2}, {"a", "b"}) == ["a"]
    assert unlogged(str(tmp_path), "named", {}, set()) == ["a", "b"]
