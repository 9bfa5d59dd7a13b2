"""hflray.training.c_code: what is said where the C code cannot be built."""

from __future__ import annotations

import pytest

from hflray.errors import HflrayError
from hflray.training.c_code import library


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Start with no library built or loaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library.cache_clear()
    yield tmp_path
    library.cache_clear()


def test_without_a_compiler_the_message_says_what_to_do(fresh, monkeypatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(HflrayError, match=r"training.kernel: 'fused' needs a C compiler.*channels_last"):
        library("fused")


def test_a_compiler_that_fails_is_quoted(fresh, monkeypatch, tmp_path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\necho out of registers >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    with pytest.raises(HflrayError, match=r"broken-cc.*failed: out of registers.*channels_last"):
        library("mini")
