"""`hflray.support.store`: files of a folder or a bucket are whole or absent."""

from __future__ import annotations

import os

import pytest

from hflray.errors import ConfigError
from hflray.support.store import Store
from tests.conftest import refusal


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
