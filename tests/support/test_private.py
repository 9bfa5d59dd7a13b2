"""What other users can reach or change is known, and a folder that they can is refused."""

from __future__ import annotations

import grp
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from hflray.errors import ConfigError
from hflray.support import private
from hflray.support.private import cache_folder, changeable, own_compiled_code, private_folder
from tests.conftest import own_module


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


SWEEP = Path(__file__).with_name("doors.yaml").read_text(encoding="utf-8")


def listeners(process: psutil.Process) -> set[tuple[str, str]]:
    """Return the program and the address of each socket on which a process or one that it started listens."""
    pairs = set()
    with suppress(psutil.Error):
        for member in (process, *process.children(recursive=True)):
            with suppress(psutil.Error):  # it is just ending
                name = member.name()
                for entry in member.net_connections("tcp"):
                    if entry.status == psutil.CONN_LISTEN:
                        pairs.add((name, entry.laddr.ip.removeprefix("::ffff:")))  # an IPv4 address as IPv6
    return pairs


STRANGER = own_module("stranger")
REFUSED = {"EACCES", "EPERM", "AuthenticationError"}


def exposed(root: Path) -> dict[str, str]:
    """Return the modes of what other users can reach below a folder: nothing lies open in a folder closed to them."""
    modes = {}
    with suppress(OSError):  # a file may just have been removed
        for place in root.iterdir():
            with suppress(OSError):
                state = place.lstat()
                if state.st_mode & 0o077 and not place.is_symlink():
                    modes[str(place)] = stat.filemode(state.st_mode)
                    modes |= exposed(place) if place.is_dir() else {}
    return modes


@pytest.fixture(scope="module")
def watched() -> Iterator[SimpleNamespace]:
    """Run a sweep beside a stranger, with an umask that closes nothing."""
    place = Path(tempfile.mkdtemp(prefix="hf", dir="/tmp"))  # short, and not closed to others as pytest's folders are
    home, temporary, results = place / "home", place / "tmp", place / "results"
    for folder, mode in ((place, 0o755), (home, 0o755), (temporary, 0o1777)):
        folder.mkdir(exist_ok=True)
        folder.chmod(mode)
    (place / "doors.yaml").write_text(SWEEP)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "XDG_", "NUMBA_"))}
    env |= {
        "PYTHONPATH": str(Path(private.__file__).parents[2]),
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "RAY_AUTH_MODE": "disabled",
    }
    command = [sys.executable, "-m", "hflray.tune", "doors.yaml", "--results", str(results)]
    seen = SimpleNamespace(heard=set(), modes={}, answers={}, results=results)
    with (place / "out.txt").open("w") as out:
        process = subprocess.Popen(command, cwd=place, env=env, stdout=out, stderr=subprocess.STDOUT, umask=0)
        deadline = time.monotonic() + 400
        try:
            while process.poll() is None and time.monotonic() < deadline:
                seen.heard |= listeners(psutil.Process(process.pid))
                for root in (home, temporary):
                    seen.modes |= exposed(root)
                if not seen.answers and os.getuid() == 0 and any(name.startswith("ray::") for name, _ in seen.heard):
                    seen.answers = ask_a_stranger(process.pid, home, temporary)
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    seen.code, seen.out = process.returncode, (place / "out.txt").read_text()
    yield seen
    shutil.rmtree(place, ignore_errors=True)


def ask_a_stranger(driver: int, home: Path, temporary: Path) -> dict[str, str]:
    """Return what another user can do to a running sweep: the error of each try, or "done"."""
    (raylet,) = (each for each in psutil.Process(driver).children(recursive=True) if each.name() == "raylet")
    words = [word.partition("=") for word in raylet.cmdline()]
    (address,) = {value for name, _, value in words if name == "--gcs-address"}
    (session,) = {Path(value) for name, _, value in words if name == "--session_dir"}
    assert session.is_relative_to(temporary)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = [sys.executable, "-c", STRANGER, session.parent, home, driver, raylet.pid, address, OTHER]
    answers: dict[str, str] = {}
    for mode, token in (("disabled", "0"), ("token", "0" * 64)):
        done = subprocess.run(
            list(map(str, command)), env=env | {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN": token, "HOME": "/"},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers |= {f"{name} ({mode})": answer for name, answer in json.loads(done.stdout).items()}
    return answers


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_listens_beyond_the_loopback_while_a_sweep_runs(watched: SimpleNamespace) -> None:
    assert watched.code == 0, watched.out
    programs = {name for name, _ in watched.heard}
    assert {"gcs_server", "raylet"} <= programs
    assert any(name.startswith("ray::") for name in programs)  # the trial and its actors
    assert {address for _, address in watched.heard} == {"127.0.0.1"}, sorted(watched.heard)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_users_reach_nothing_of_a_sweep_but_its_results(watched: SimpleNamespace) -> None:
    """The folder of results follows the umask, which is 0 here, since it may be meant for a group."""
    assert watched.code == 0, watched.out
    assert watched.modes == {}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can run a process as another user")
def test_another_user_is_refused_staging_sockets_and_the_gcs(watched: SimpleNamespace) -> None:
    assert len(watched.answers) == 26
    assert {name: answer for name, answer in watched.answers.items() if answer not in REFUSED} == {}


def test_a_sweep_says_in_one_line_that_its_temporary_folder_is_not_its_own(shared: Path) -> None:
    (shared / f"hflray-{os.getuid()}").mkdir()
    (shared / f"hflray-{os.getuid()}").chmod(0o755)
    env = os.environ | {"RAY_TMPDIR": str(shared)}
    command = [sys.executable, "-m", "hflray.tune", "--smoke", "--results", str(shared.parent / "results")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: the temporary folder {shared}/hflray-")
    assert done.stderr.count("\n") == 1
    assert not (shared.parent / "results").exists()
