"""A state, and a checkpoint of a trial, is there whole or not at all, and damage is found."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from hflray.errors import ConfigError, DamagedError
from hflray.support import checkpoint
from hflray.support.checkpoint import Checkpoints
from hflray.support.checksum import digest
from tests.conftest import refusal

STATE = {"global_model": np.float32([1.5, -2.0, 0.1]), "round": 3, "totals": {"delay_s": 0.1}, "clusters": None}


def test_a_saved_state_is_loaded_unchanged(tmp_path) -> None:
    checkpoint.save(tmp_path / "a" / "state", STATE)
    loaded = checkpoint.load(tmp_path / "a" / "state")
    np.testing.assert_array_equal(loaded.pop("global_model"), STATE["global_model"])
    assert loaded == {name: value for name, value in STATE.items() if name != "global_model"}
    assert sorted(os.listdir(tmp_path / "a" / "state")) == ["arrays.safetensors", "state.json"]
    json.loads((tmp_path / "a" / "state" / "state.json").read_text())


def test_saving_again_replaces_the_checkpoint_and_leaves_no_other_file(tmp_path) -> None:
    checkpoint.save(tmp_path / "state", STATE)
    checkpoint.save(tmp_path / "state", STATE | {"round": 4})
    assert checkpoint.load(tmp_path / "state")["round"] == 4
    assert os.listdir(tmp_path) == ["state"]


def test_a_failed_save_keeps_the_old_checkpoint(tmp_path) -> None:
    checkpoint.save(tmp_path / "state", STATE)
    with pytest.raises(TypeError):
        checkpoint.save(tmp_path / "state", STATE | {"round": object()})
    assert checkpoint.load(tmp_path / "state")["round"] == 3
    assert os.listdir(tmp_path) == ["state"]


@pytest.mark.parametrize("damage", ["missing", "no arrays", "cut arrays", "cut json"])
def test_a_damaged_checkpoint_is_refused_in_one_line(tmp_path, damage: str) -> None:
    folder = tmp_path / "state"
    if damage != "missing":
        checkpoint.save(folder, STATE)
    if damage == "no arrays":
        (folder / "arrays.safetensors").unlink()
    elif damage.startswith("cut"):
        file = folder / ("arrays.safetensors" if damage == "cut arrays" else "state.json")
        file.write_bytes(file.read_bytes()[:-5])
    with refusal(ConfigError, "not a whole checkpoint"):
        checkpoint.load(folder)


@pytest.mark.parametrize("file", ["state.json", "arrays.safetensors"])
def test_a_flipped_byte_is_never_loaded(tmp_path, file: str) -> None:
    checkpoint.save(tmp_path / "state", STATE)
    path = tmp_path / "state" / file
    whole, refused = path.read_bytes(), 0
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        try:
            loaded = checkpoint.load(tmp_path / "state")
        except ConfigError as error:
            assert "\n" not in str(error)
            refused += 1
        else:  # a space between values, or a letter in the name of a checksum
            np.testing.assert_array_equal(loaded["global_model"], STATE["global_model"])
            assert {name: loaded[name] for name in STATE if name != "global_model"} == {
                name: value for name, value in STATE.items() if name != "global_model"
            }
    assert refused == len(whole) if file == "arrays.safetensors" else refused > 0.8 * len(whole)


def test_a_checkpoint_of_an_older_version_has_no_checksums_and_is_loaded(tmp_path) -> None:
    checkpoint.save(tmp_path / "state", STATE)
    path = tmp_path / "state" / "state.json"
    values = json.loads(path.read_text())
    assert len(values.pop("sha256")) == len(values.pop("arrays_sha256")) == 64
    path.write_text(json.dumps(values))
    assert checkpoint.load(tmp_path / "state")["round"] == 3


def test_parents_are_made_and_every_file_reaches_the_disk_before_the_folder_gets_its_name(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, synced = tmp_path / "a" / "b" / "state", set()
    fsync = os.fsync

    def note(file: int) -> None:
        synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{file}")))
        assert not target.exists()
        fsync(file)

    monkeypatch.setattr(os, "fsync", note)
    checkpoint.save(target, STATE)
    assert {"arrays.safetensors", "state.json"} <= {name.rpartition("-")[2] for name in synced}
    assert target.is_dir()


def fill(folder: Path, text: str = "state") -> None:
    (folder / "state").mkdir()
    (folder / "state" / "values.json").write_text(text)


def test_what_was_saved_comes_back(tmp_path) -> None:
    saved = Checkpoints(str(tmp_path), "trial λ=1")
    assert saved.rounds() == []
    saved.save(7, fill)
    saved.save(7, lambda folder: fill(folder, "again"))
    with saved.open(7) as folder:
        assert (folder / "state" / "values.json").read_text() == "again"
    assert not folder.exists()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["00000007"]


def test_the_last_two_are_kept_and_those_that_a_population_may_need(tmp_path) -> None:
    alone, member = Checkpoints(str(tmp_path), "alone"), Checkpoints(str(tmp_path), "member", every=3)
    for number in range(1, 12):
        alone.save(number, fill)
        member.save(number, fill)
    assert alone.rounds() == [11, 10]
    assert member.rounds() == [11, 10, 9, 6]
    alone.save(4, fill)  # a trial that makes its rounds again leaves those after it alone
    assert alone.rounds() == [11, 10, 4]


@pytest.mark.parametrize("place", [0, 30, 64, 70, 200, -1])
def test_a_flipped_bit_anywhere_is_noticed(tmp_path, place: int) -> None:
    saved = Checkpoints(str(tmp_path), "t")
    saved.save(1, fill)
    path = tmp_path / "checkpoints" / "t" / "00000001"
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    for damaged in (bytes(content), path.read_bytes()[: len(content) // 2], b""):
        path.write_bytes(damaged)
        with pytest.raises(DamagedError, match="checkpoint t, round 1: its checksum differs"), saved.open(1):
            pass


def test_a_foreign_file_is_data(tmp_path) -> None:
    """A stranger can compute a checksum too; their archive writes nothing outside the scratch folder."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../outside", "x")
        archive.writestr("/outside", "x")
    for content in (packed.getvalue(), b"no archive"):
        path = tmp_path / "checkpoints" / "t" / "00000001"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(digest(content).encode() + b"\n" + content)
        try:
            with Checkpoints(str(tmp_path), "t").open(1) as folder:
                assert [each.name for each in folder.rglob("*")] == ["outside"]
                assert not (folder.parent.parent / "outside").exists()
        except DamagedError as error:
            assert "cannot be unpacked" in str(error)


def test_an_error_while_saving_leaves_the_earlier_ones(tmp_path, monkeypatch) -> None:
    saved = Checkpoints(str(tmp_path), "t")
    saved.save(1, fill)

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space") as told:
        saved.save(2, fill)
    assert told.value.filename == str(tmp_path / "checkpoints" / "t" / "00000002")
    assert told.value.needed_bytes > 64
    monkeypatch.undo()
    assert saved.rounds() == [1]
