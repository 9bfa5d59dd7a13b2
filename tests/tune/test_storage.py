"""`hflray.tune.storage`: files arrive whole, also in pieces, and failures give a message."""

from __future__ import annotations

import logging

import pytest

from hflray.errors import ConfigError
from hflray.sweep import SweepFile
from hflray.sweep.results import SweepFolder, new_folder
from hflray.tune.storage import Storage, check_storage, fetch, open_storage


@pytest.fixture
def folder(tmp_path) -> SweepFolder:
    sweep = new_folder(tmp_path / "first", SweepFile(name="s"), "sqlite:////gone/mlflow.db", "hflray")
    sweep.storage = str(tmp_path / "shared")
    sweep.save()
    (sweep.path / "journal").mkdir()
    return sweep


def test_a_journal_arrives_whole_from_any_pieces(tmp_path, folder) -> None:
    journal = folder.path / "journal" / "a.jsonl"
    sender = Storage(folder.storage, folder.path)
    sender.send()
    for line in ("one\n", "two\n"):
        with journal.open("a") as file:
            file.write(line)
        sender.send("a")
    sender.send("a")  # there is no new entry
    with journal.open("a") as file:
        file.write("three\n")
    Storage(folder.storage, folder.path).send("a")  # another process continues where the first stopped
    pieces = tmp_path / "shared" / folder.path.name / "hflray" / "journal" / "a"
    assert sorted(path.name for path in pieces.iterdir()) == ["000000000000", "000000000004", "000000000008"]

    fetch(folder.storage, tmp_path / "second", "s")
    local = tmp_path / "second" / folder.path.name
    assert (local / "journal" / "a.jsonl").read_text() == "one\ntwo\nthree\n"
    fetched = SweepFolder.load(local)
    assert fetched.storage == folder.storage
    assert fetched.uri == f"sqlite:///{(tmp_path / 'second').resolve() / 'mlflow.db'}"  # the database is this machine's


def test_a_local_sweep_is_not_overwritten(tmp_path, folder) -> None:
    Storage(folder.storage, folder.path).send()
    folder.finished = True
    folder.save()
    fetch(folder.storage, tmp_path / "first", "s")
    assert SweepFolder.load(folder.path).finished


def test_the_error_for_an_unknown_sweep_lists_the_available_ones(tmp_path, folder) -> None:
    Storage(folder.storage, folder.path).send()
    with pytest.raises(ConfigError, match=rf"--resume t: no such sweep in .*; available: {folder.path.name}"):
        fetch(folder.storage, tmp_path / "second", "t")


def test_a_storage_that_breaks_costs_one_warning(tmp_path, folder, caplog) -> None:
    sender = Storage(folder.storage, folder.path)
    (tmp_path / "shared").write_text("a file in place of the folder")
    with caplog.at_level(logging.WARNING):
        sender.send()
        sender.send()
    assert [record.message.partition(" (")[0] for record in caplog.records] == ["the storage cannot be written"]


def test_a_folder_that_cannot_be_written_is_refused(tmp_path) -> None:
    check_storage(str(tmp_path / "new"))
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--storage: '.*/file/x' cannot be written"):
        check_storage(str(tmp_path / "file" / "x"))


@pytest.mark.parametrize("uri", ["s4://bucket/x", "s3://"])
def test_a_uri_that_names_no_storage(uri) -> None:
    with pytest.raises(ConfigError, match=rf"--storage: '{uri}' cannot be opened .*accepted: s3://bucket/folder"):
        open_storage(uri)
