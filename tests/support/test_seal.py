"""`hflray.support.seal`: only a holder of the key can seal, and the key stays with its owner."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hflray.errors import ConfigError
from hflray.support import seal
from hflray.support.seal import is_mine, key_path, sealed, unsealed, user_key

VALUES = {"file": {"name": "mine"}, "finished": False}


@pytest.fixture
def key(monkeypatch, tmp_path) -> Path:
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "keys" / "key"))
    return tmp_path / "keys" / "key"


def test_the_key_is_made_once_for_its_owner_only(key) -> None:
    first = user_key()
    assert first is not None
    assert len(first) == 32
    assert user_key() == first
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert os.listdir(key.parent) == ["key"]


def test_the_key_lies_in_the_users_folder_for_settings(monkeypatch, tmp_path) -> None:
    monkeypatch.delenv(seal.VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert key_path() == tmp_path / "hflray" / "key"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert key_path() == Path.home() / ".config" / "hflray" / "key"


def test_processes_that_start_together_agree_on_one_key(key) -> None:
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: user_key(), range(32)))
    assert len(keys) == 1


@pytest.mark.parametrize("content", ["", "abc", "z" * 64, "0" * 63, "\x00" * 64, "é" * 64, "0" * 64 + " 12345678"])
def test_a_damaged_key_is_an_error_of_one_line(key, content: str) -> None:
    user_key()
    key.write_text(content)
    with pytest.raises(ConfigError, match="the key of your sweeps") as error:
        user_key()
    assert str(key) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_of_an_older_hflray_has_no_checksum(key) -> None:
    made = user_key()
    assert made is not None
    key.write_text(made.hex())
    assert user_key() == made


def test_a_key_that_others_can_read_is_refused(key) -> None:
    user_key()
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        user_key()


def test_without_a_place_for_a_key_values_carry_no_seal(monkeypatch, tmp_path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "file" / "key"))
    assert user_key() is None
    content = sealed(VALUES, "x")
    assert unsealed(content) == VALUES
    assert not is_mine(content, "x")


def test_a_seal_holds_for_its_values_purpose_and_key_only(key, monkeypatch, tmp_path) -> None:
    content = json.loads(json.dumps(sealed(VALUES, "sweep.json of a")))
    assert unsealed(content) == VALUES
    assert is_mine(content, "sweep.json of a")
    assert not is_mine(content, "sweep.json of b")
    changed = sealed(VALUES | {"finished": True}, "sweep.json of a")
    assert not is_mine(changed | {"seal": content["seal"]}, "sweep.json of a")
    for foreign in ({}, [], None, VALUES, content | {"seal": 3}, content | {"seal": "é"}, content | {"new": 1}):
        assert not is_mine(foreign, "sweep.json of a")
    monkeypatch.setenv(seal.VARIABLE, str(tmp_path / "other"))
    assert not is_mine(content, "sweep.json of a")
    assert unsealed(content) == VALUES


def test_another_process_of_the_user_has_the_same_key(key) -> None:
    content = json.dumps(sealed(VALUES, "x"))
    code = "import json, sys; from hflray.support.seal import is_mine; print(is_mine(json.loads(sys.argv[1]), 'x'))"
    done = subprocess.run([sys.executable, "-c", code, content], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
