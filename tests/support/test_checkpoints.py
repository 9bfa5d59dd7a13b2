"""`hflray.support.checkpoints`: one file a round, of which any damage is noticed, and only as many as are needed."""

from __future__ import annotations

import errno
import io
import zipfile
from pathlib import Path

import pytest

from hflray.errors import DamagedError
from hflray.support.checkpoints import Checkpoints
from hflray.support.checksum import digest


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
