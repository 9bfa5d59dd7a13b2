"""`hflray.support.files`: a file is whole or unchanged whatever fails, and the failure of a disk is recognised."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from hflray.errors import ConfigError
from hflray.support import files
from hflray.support.files import (
    append,
    append_line,
    disk_failure,
    free_bytes,
    refuse_links,
    replacing,
    replacing_folder,
    size_text,
    write,
)
from hflray.support.store import Store
from tests.conftest import refusal, says
from tests.disks import small_disk_at

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_replaced_and_nothing_else_remains(tmp_path) -> None:
    path = tmp_path / "a" / "b.json"
    assert write(path, "λ = 1") == path
    assert path.read_text(encoding="utf-8") == "λ = 1"
    write(path, b"\x00\xff", durable=True)
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(path.parent) == ["b.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask  # others may read it, as they may read any other file


def test_the_new_path_has_the_suffix_and_lies_in_the_same_folder(tmp_path) -> None:
    name = "x" * 240 + ".npz"
    with replacing(tmp_path / name) as scratch:
        assert scratch.suffix == ".npz"
        assert scratch.parent == tmp_path
        scratch.write_text("1")
        assert not (tmp_path / name).exists()
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt(), TypeError()])
def test_after_an_error_the_former_file_stays(tmp_path, error: BaseException) -> None:
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail() -> None:
        with replacing(path) as scratch:
            scratch.write_text("half")
            raise error

    with pytest.raises(type(error)) as raised:
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]
    if isinstance(raised.value, OSError):
        assert raised.value.filename == str(path)


def test_a_folder_is_replaced_as_a_whole(tmp_path) -> None:
    target = tmp_path / "up" / "state"

    def save(content: str, error: Exception | None = None) -> None:
        with replacing_folder(target) as scratch:
            (scratch / "x").write_text(content)
            if error is not None:
                raise error

    save("1")
    save("2")
    assert (target / "x").read_text() == "2"
    with pytest.raises(OSError, match="No space") as raised:
        save("3", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert raised.value.filename == str(target)
    assert (target / "x").read_text() == "2"
    assert os.listdir(target.parent) == ["state"]


def test_lines_are_appended_whole_also_after_a_line_that_was_cut_off(tmp_path) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, "1")
    append_line(path, "λ")
    append(path, b'{"ro')
    append_line(path, "3")
    assert path.read_text(encoding="utf-8") == '1\nλ\n{"ro\n3\n'
    with pytest.raises(FileNotFoundError):
        append(tmp_path / "missing", b"1", create=False)
    assert not (tmp_path / "missing").exists()


def test_an_append_that_fails_in_its_middle_leaves_no_part(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.jsonl"
    append_line(path, "first")
    os_write, calls = os.write, []

    def short(file: int, content: memoryview) -> int:
        calls.append(len(content))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return os_write(file, content[:3])

    monkeypatch.setattr(files.os, "write", short)
    with pytest.raises(OSError, match="No space") as raised:
        append_line(path, "second")
    assert calls == [7, 4]
    assert raised.value.filename == str(path)
    assert path.read_text() == "first\n"


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Mount a file system of 1 MiB and return its folder."""
    with small_disk_at(tmp_path / "disk", "1m") as place:
        yield place


def test_a_disk_that_is_really_full_changes_no_file(small_disk) -> None:
    record, journal = small_disk / "a.json", small_disk / "a.jsonl"
    write(record, "old")
    append_line(journal, "1")
    assert 0 < free_bytes(small_disk / "not" / "there") < 2**20
    with suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    assert free_bytes(small_disk) == 0
    for call in (lambda: write(record, "x" * 9000), lambda: append_line(journal, "y" * 9000)):
        with pytest.raises(OSError, match="No space") as raised:
            call()
        failure = disk_failure(raised.value)
        assert failure is not None
        assert (failure.number, failure.path) in [(errno.ENOSPC, record), (errno.ENOSPC, journal)]
    assert (record.read_text(), journal.read_text()) == ("old", "1\n")
    assert sorted(os.listdir(small_disk)) == ["a.json", "a.jsonl", "ballast"]


class OperationalError(Exception):
    """An error of a library."""


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error, number, path",
    [
        (OSError(errno.ENOSPC, "full", "/a"), errno.ENOSPC, "/a"),
        (OSError(errno.EDQUOT, "quota"), errno.EDQUOT, None),
        (caused(ValueError("x"), OSError(errno.EROFS, "read-only", "/b")), errno.EROFS, "/b"),
        (OperationalError("(sqlite3.OperationalError) database or disk is full"), errno.ENOSPC, None),
        (OperationalError("(sqlite3.OperationalError) disk I/O error"), errno.EIO, None),
        (
            OperationalError("Traceback …\n  f()\nOSError: [Errno 28] No space left on device: '/r/x.json'"),
            errno.ENOSPC,
            "/r/x.json",
        ),
        (OSError("IOError: Error while serializing: No space left on device (os error 28)"), errno.ENOSPC, None),
    ],
)
def test_the_failure_of_a_disk_is_recognised_in_any_error(error, number, path) -> None:
    failure = disk_failure(error)
    assert failure is not None
    assert (failure.number, failure.path) == (number, path and Path(path))
    assert failure.reason == os.strerror(number)


@pytest.mark.parametrize(
    "error", [None, ValueError("no space"), PermissionError(errno.EACCES, "x", "/a"), FileNotFoundError(2, "x")]
)
def test_other_errors_are_no_failure_of_a_disk(error) -> None:
    assert disk_failure(error) is None


def test_no_room_for_another_file_counts_as_no_room(monkeypatch, tmp_path) -> None:
    state = SimpleNamespace(f_flag=0, f_files=10, f_favail=1, f_bavail=3, f_frsize=4096)
    monkeypatch.setattr(files.os, "statvfs", lambda path: state)
    assert free_bytes(tmp_path) == 12288
    state.f_favail = 0
    assert free_bytes(tmp_path) == 0
    state.f_files = 0  # this file system has no fixed number of files
    assert free_bytes(tmp_path) == 12288
    state.f_flag = os.ST_RDONLY
    assert free_bytes(tmp_path) == 0


def test_a_failure_is_one_line_with_path_room_and_command(monkeypatch) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda path: 2 * files.MIB)
    line = files.Failure(errno.ENOSPC, Path("/a/b"), 9 * files.MIB).line("/c", "resume x")
    assert says(line, "/a/b: ", "No space left on device", "9.0 MiB needed", "2.0 MiB free", "free space", "resume x")
    line = files.Failure(errno.EROFS, None).line("/c", "resume x")
    assert says(line, "/c: ", "Read-only file system", "2.0 MiB free", "writable", "resume x")


def test_sizes_are_readable() -> None:
    assert [size_text(n * 2**20) for n in (0, 0.44, 9.96, 512, 3.5 * 1024)] == [
        "0.0 MiB", "0.4 MiB", "10 MiB", "512 MiB", "3.5 GiB",
    ]  # fmt: skip


def test_a_folder_with_a_link_is_refused(tmp_path) -> None:
    (tmp_path / "sweep" / "journal").mkdir(parents=True)
    (tmp_path / "sweep" / "journal" / "a.jsonl").write_text("")
    (tmp_path / "link to the folder").symlink_to(tmp_path / "sweep")
    refuse_links(tmp_path / "link to the folder")
    (tmp_path / "bashrc").write_text("")
    (tmp_path / "sweep" / "journal" / "b.jsonl").symlink_to(tmp_path / "bashrc")
    with pytest.raises(ConfigError, match=r"b\.jsonl: a symbolic link to .*bashrc"):
        refuse_links(tmp_path / "sweep")


# `hflray.support.store`: files of a folder or a bucket are whole or absent.


def test_a_file_is_written_read_found_and_removed(tmp_path) -> None:
    store = Store(str(tmp_path / "place"))
    assert store.names("a") == []
    store.write("a/b/one", b"1")
    store.write("a/b/one", b"2")
    assert (store.names("a"), store.names("a/b"), store.read("a/b/one")) == (["b"], ["one"], b"2")
    os.utime(tmp_path / "place" / "a" / "b" / "one", (5.5, 5.5))
    assert store.modified_s("a/b/one") == 5.5
    assert (store.has("a/b/one"), store.has("a/b"), store.has("two")) == (True, False, False)
    store.remove("a/b/one")
    store.remove("a/b/one")
    assert not store.has("a/b/one")
    for call in (store.read, store.modified_s):
        with pytest.raises(FileNotFoundError):
            call("a/b/one")


@pytest.mark.parametrize("uri", ["s3://", "nowhere://bucket", "/"])
def test_what_names_no_place_is_refused_in_one_line(uri: str) -> None:
    with refusal(ConfigError, "--storage: ", " cannot be opened (", "); accepted: s3://bucket/folder"):
        Store(uri)
