"""hflray.support.native: a library is built once, a damaged one anew, and the message says what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.errors import HflrayError
from hflray.support.checksum import digest
from hflray.support.native import compiler, load_library


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Path:
    """Return the path of a C file, beside a cache folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n")
    return path


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_library_is_built_once_and_kept_until_its_source_changes(source) -> None:
    assert load_library(source).answer() == 42
    (built,) = (source.parent / "hflray" / "answer").iterdir()
    before = built.stat().st_mtime_ns
    load_library(source)
    assert [path.stat().st_mtime_ns for path in built.parent.iterdir()] == [before]
    source.write_text("int answer(void) { return 43; }\n")
    assert load_library(source).answer() == 43


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_a_damaged_library_is_built_again(source) -> None:
    load_library(source)
    (built,) = (source.parent / "hflray" / "answer").iterdir()
    whole = built.read_bytes()
    assert built.stem.endswith(f"-{digest(whole)[:16]}")
    middle = len(whole) // 2
    for damaged in (b"", whole[:middle], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]):
        built.unlink()  # the process has mapped the file, so its content must not change in place
        built.write_bytes(damaged)
        assert load_library(source).answer() == 42
        (again,) = built.parent.iterdir()
        assert again.stem.endswith(f"-{digest(again.read_bytes())[:16]}")


def test_without_a_compiler_or_with_one_that_fails_the_message_says_so(source, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(HflrayError, match="this machine has none; install gcc"):
        load_library(source)
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho out of registers >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(HflrayError, match=r"broken-cc.*failed: out of registers; install gcc"):
        load_library(source)
