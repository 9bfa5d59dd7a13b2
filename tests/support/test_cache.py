"""hflray.support.cache: the cache folder follows the environment and is closed to others; the CPU has a name."""

from __future__ import annotations

import os

import pytest

from hflray.support.cache import cache_folder, cpu_model, own_compiled_code


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("x") == tmp_path / "hflray" / "x"
    assert cache_folder("x").is_dir()


def test_a_cache_folder_that_cannot_be_made_is_replaced(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert cache_folder("x").is_dir()


@pytest.mark.parametrize("trap", ["open to others", "a link", "a file"])
def test_a_cache_that_others_can_write_is_not_used(monkeypatch, tmp_path, trap: str) -> None:
    """Libraries are loaded from it; another user could have put one there."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    taken = tmp_path / "tmp" / f"hflray-{os.getuid()}"
    if trap == "a link":
        (tmp_path / "elsewhere").mkdir()
        taken.symlink_to(tmp_path / "elsewhere")
    elif trap == "a file":
        taken.write_text("")
    else:
        taken.mkdir()
        taken.chmod(0o777)
    folder = cache_folder("x")
    assert folder.parent != taken
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("place", ["hflray", "hflray/x"])
def test_a_named_cache_that_others_can_change_is_not_used_and_one_line_says_so(
    monkeypatch, tmp_path, caplog, place: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert cache_folder("x") == tmp_path / "hflray" / "x"
    (tmp_path / place).chmod(0o777)
    folder = cache_folder("x")
    assert not folder.is_relative_to(tmp_path / "hflray")
    assert folder.stat().st_mode & 0o077 == 0
    (line,) = caplog.messages
    assert f"x is not used: it can be changed by everybody who can write to {tmp_path / place} (mode 777)" in line


def test_a_cache_is_closed_to_others_whatever_the_umask(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = os.umask(0)
    try:
        folder = cache_folder("x")
    finally:
        os.umask(before)
    assert folder == tmp_path / "cache" / "hflray" / "x"
    assert [place.stat().st_mode & 0o777 for place in (folder, folder.parent, tmp_path / "cache")] == [0o700] * 3


def test_torch_keeps_compiled_code_where_no_other_user_can_put_some(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    own_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "hflray" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    own_compiled_code()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


def test_the_cpu_has_a_name() -> None:
    assert cpu_model()
