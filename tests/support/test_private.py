"""hflray.support.private: what other users can reach or change is known, and a folder that they can is refused."""

from __future__ import annotations

import grp
import os
import re
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.support.private import changeable, private_folder

OTHER = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder like ``/tmp``, in which each user may make files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_folder_of_this_user_alone_is_made_once_and_used_by_all(shared: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    before = os.umask(0)
    try:
        folder = private_folder()
    finally:
        os.umask(before)
    assert folder == shared / f"hflray-{os.getuid()}"
    assert folder.stat().st_mode & 0o7777 == 0o700
    assert private_folder() == private_folder(shared) == private_folder(folder) == folder  # it is itself closed


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    assert private_folder(tmp_path / "a" / "b").is_relative_to(tmp_path / "a" / "b")


@pytest.mark.parametrize(
    "trap, reason",
    [
        ("a link", "is a link"),
        ("a file", "is not a folder"),
        ("0777", r"is open to other users \(mode 777\)"),
        ("0750", r"is open to other users \(mode 750\)"),
        ("no sticky bit", "can be replaced by everybody who can write to .*/tmp "),
        pytest.param("another's", rf"belongs to another user \(uid {OTHER}\)", marks=as_root),
        pytest.param("in another's", rf"can be replaced by the owner of .*/tmp \(uid {OTHER}\)", marks=as_root),
    ],
)
def test_what_others_can_reach_or_replace_is_refused_in_one_line(shared: Path, trap: str, reason: str) -> None:
    folder = shared / f"hflray-{os.getuid()}"
    if trap == "a link":
        (shared / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(shared / "elsewhere")
    elif trap == "a file":
        folder.touch(0o600)
    elif trap.startswith("0"):
        folder.mkdir()
        folder.chmod(int(trap, 8))
    elif trap == "no sticky bit":
        shared.chmod(0o777)
    elif trap == "another's":
        folder.mkdir(mode=0o700)
        os.chown(folder, OTHER, OTHER)
    else:
        os.chown(shared, OTHER, OTHER)
    with pytest.raises(ConfigError, match=f"^the temporary folder {re.escape(str(folder))} {reason}") as error:
        private_folder(shared)
    assert "\n" not in str(error.value)


def test_a_folder_of_another_user_is_refused_without_root_too(shared: Path, monkeypatch) -> None:
    folder = private_folder(shared)
    uid = os.getuid() + 1
    folder.rename(shared / f"hflray-{uid}")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    with pytest.raises(ConfigError, match=r"belongs to another user"):
        private_folder(shared)


@pytest.mark.parametrize("mode, own_group, others", [(0o755, 0, 0), (0o775, 0, 1), (0o775, 1, 0), (0o777, 1, 1)])
def test_who_can_change_a_folder(tmp_path: Path, monkeypatch, mode: int, own_group: bool, others: bool) -> None:
    """A user's own group, which has the user's name, counts as the user: its folders are made with the umask 002."""
    monkeypatch.setattr(grp, "getgrgid", lambda _: grp.struct_group(("root" if own_group else "staff", "x", 0, [])))
    monkeypatch.setattr("pwd.getpwuid", lambda _: type("Entry", (), {"pw_name": "root"}))
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    assert bool(changeable(place)) == others
    (place / "deeper").mkdir(mode=0o700)
    assert bool(changeable(place / "deeper")) == others
