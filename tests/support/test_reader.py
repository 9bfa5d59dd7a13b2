"""hflray.support.reader: what a file may hold at most, and what it may be."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from hflray.support.reader import MOST_DEPTH, UnfitError, parse_json, parse_yaml, read_bytes, read_parquet, unzip


def test_a_plain_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert read_bytes(path) == b"0123456789"
    assert read_bytes(path, 3, offset=4, until=7) == b"456"
    with pytest.raises(UnfitError, match="larger than"):
        read_bytes(path, 9)


def test_only_plain_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a directory")):
        with pytest.raises(UnfitError, match=kind):
            read_bytes(path)


def test_links_of_the_user_are_followed_and_those_inside_a_folder_are_not(tmp_path: Path) -> None:
    inside = tmp_path / "folder"
    inside.mkdir()
    (tmp_path / "file").write_text("x")
    (inside / "link").symlink_to(tmp_path / "file")
    (tmp_path / "mine").symlink_to(inside)
    (inside / "own").write_text("y")
    assert read_bytes(inside / "link") == b"x"
    assert read_bytes(tmp_path / "mine" / "own", inside=tmp_path / "mine") == b"y"
    with pytest.raises(UnfitError, match="link is a symbolic link"):
        read_bytes(inside / "link", inside=inside)


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, "[" * (MOST_DEPTH + 1) + "]" * (MOST_DEPTH + 1), '{"a":' * 900 + "1" + "}" * 900, '"\\ud800"',
     "[" + "[]," * 5_000_000 + "1]", "1" * 5000, "{"],
)  # fmt: skip
def test_json_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_json(text)


def test_json_that_is_read() -> None:
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    assert parse_json(b'{"a": ["[[[", "\\ud83d\\ude00"]}') == {"a": ["[[[", "😀"]}


@pytest.mark.parametrize(
    "text",
    ["[" * 90_000, "&a [*a]", "a: 2026-13-45", "? [a]\n: b", "x" * 300_000,
     "b0: &b0 [1, 1]\n" + "".join(f"b{n}: &b{n} [*b{n - 1}, *b{n - 1}]\n" for n in range(1, 40))],
)  # fmt: skip
def test_yaml_that_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_yaml(text)


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return stream.getvalue()


def test_a_zip_file_is_read_and_a_bomb_is_not() -> None:
    assert unzip(zipped({"a/b": b"x", "c": b""})) == {"a/b": b"x", "c": b""}
    for files in ({"a": bytes(2**27)}, {"../a": b""}, {"/a": b""}, {f"{n}": b"" for n in range(10_001)}):
        with pytest.raises(ValueError, match=r"."):
            unzip(zipped(files))


def test_a_table_of_numbers_is_read_and_others_are_not() -> None:
    def saved(**columns: object) -> bytes:
        stream = io.BytesIO()
        parquet.write_table(pa.table(columns), stream)
        return stream.getvalue()

    assert read_parquet(saved(a=[1, 2], b=[[1.0], []], run=["x", "y"])).num_rows == 2
    many = saved(a=np.zeros(40_000_000, np.int8))
    assert len(many) < 200_000
    for content in (many, saved(a=[{"b": 1}]), saved(a=[b"x"]), saved(a=[["x"]]), b"PAR1", b""):
        with pytest.raises(ValueError, match=r"."):
            read_parquet(content)
