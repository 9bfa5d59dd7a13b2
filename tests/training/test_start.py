"""hflray.training.start: a Ray that hflray starts listens on the loopback only, and lets in who has its token."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services

from hflray.errors import ConfigError, HflrayError
from hflray.training import start

PACKAGE = Path(start.__file__).parents[1]


TOKEN = """
import os, stat, sys
from pathlib import Path
from hflray.training.start import make_token
make_token()
place = Path("~/.ray/auth_token").expanduser()
mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
print(mode, place.read_text() if place.exists() else None, os.environ.get("RAY_AUTH_TOKEN"))
"""


def test_processes_that_start_together_have_one_token_which_only_their_user_can_read(tmp_path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-c", TOKEN]
    started = [
        subprocess.Popen(command, env=env | {"HOME": str(tmp_path)}, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    (line,) = {process.communicate(timeout=60)[0] for process in started}
    mode, token, _ = line.split()
    assert (int(mode), len(token)) == (0o600, 64)
    assert [path.name for path in (tmp_path / ".ray").iterdir()] == ["auth_token"]


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """Return a new home without a token, and put the environment back after the test."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ray").mkdir()
    return tmp_path


@pytest.mark.parametrize(("name", "value"), [("RAY_AUTH_TOKEN", "mine"), ("RAY_AUTH_TOKEN_PATH", "/root/mine")])
def test_a_setting_of_the_users_is_respected(home, monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    start.make_token()
    assert os.environ.get("RAY_AUTH_TOKEN") == (value if name == "RAY_AUTH_TOKEN" else None)
    assert list((home / ".ray").iterdir()) == []


def test_a_home_that_cannot_be_written_costs_nothing_but_the_file(home) -> None:
    (home / ".ray").rmdir()
    (home / ".ray").write_text("a file where the folder would be")
    start.make_token()
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o666])
def test_a_token_that_others_could_read_is_closed_to_them_and_not_used(home, monkeypatch, caplog, named, mode) -> None:
    place = home / "mine" if named else home / ".ray" / "auth_token"
    if named:
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(place))
    place.write_text("a token\n")
    place.chmod(mode)
    start.make_token()
    assert place.stat().st_mode & 0o777 == 0o600
    assert (os.environ["RAY_AUTH_TOKEN"] == "a token") == (mode == 0o600)
    assert place.read_text() == "a token\n"  # a cluster may use it
    said = [f"{place}: other users could read it (mode {mode:o} until now)" in line for line in caplog.messages]
    assert said == [True] * (mode != 0o600)


@pytest.mark.parametrize("trap", ["is a link", "is no file", "is empty", "belongs to another user"])
def test_a_token_file_that_may_be_another_users_is_refused_in_one_line(home, monkeypatch, trap: str) -> None:
    place = home / ".ray" / "auth_token"
    place.touch(0o600)
    if trap == "is a link":
        place.rename(home / "elsewhere").write_text("a token")
        place.symlink_to(home / "elsewhere")
    elif trap == "is no file":
        place.unlink()
        os.mkfifo(place, 0o600)
    elif trap == "belongs to another user":
        place.write_text("a token")
        uid = os.getuid() + 1
        monkeypatch.setattr(os, "getuid", lambda: uid)
    with pytest.raises(ConfigError, match=rf"^{place} {trap}.*; accepted: a file of yours with mode 600; remove it"):
        start.make_token()
    assert "RAY_AUTH_TOKEN" not in os.environ


def test_auto_leads_to_no_ray_of_another_user(monkeypatch, tmp_path) -> None:
    """It would get the token, and what it answers is run."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("it was joined"))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.1:6379")
    uid = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: uid)
    if uid == 1:
        os.chown(tmp_path / "ray" / "ray_current_cluster", 2, 2)
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS: 'auto' may lead to the Ray of another user .*host:port"):
        start.start_ray()


GUARDED = """
import os, subprocess, sys, threading
import ray
from hflray.training.start import start_ray
begun = []
original = threading.Thread.start
threading.Thread.start = lambda self: (begun.append(type(self).__module__), original(self))[1]
start_ray(1)
threading.Thread.start = original
print([name for name in begun if name.startswith("hflray")], threading.current_thread() is threading.main_thread())
address = ray.get_runtime_context().gcs_address
code = "from ray._raylet import GcsClient; import sys; print(len(GcsClient(sys.argv[1]).get_all_node_info(timeout=5)))"
for mode in ("token", "disabled"):
    done = subprocess.run(
        [sys.executable, "-c", code, address], env=os.environ | {"RAY_AUTH_MODE": mode}, capture_output=True, text=True
    )
    print(done.stdout.strip() or "nothing", "uthenti" in done.stderr)

@ray.remote
class Actor:
    def answer(self):
        return os.environ["RAY_AUTH_MODE"]

print(ray.get(Actor.remote().answer.remote()))
"""


def test_a_ray_of_ours_lets_in_only_who_has_the_token_and_starts_in_the_thread_that_asks_for_it(tmp_path) -> None:
    """An import in a thread failed beside the forks of Ray's processes ("release unlocked lock")."""
    command = [sys.executable, "-c", GUARDED]
    env = os.environ | {"HOME": str(tmp_path), "RAY_AUTH_MODE": "disabled"}
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=150).stdout
    assert said.splitlines() == ["[] True", "1 False", "nothing True", "token"]
    words = re.compile(r"os\.exec|meta_path\.|register_at_fork")
    assert [path for path in PACKAGE.rglob("*.py") if words.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_a_ray_that_a_busy_machine_did_not_start_in_time_is_started_again(monkeypatch, failures: int) -> None:
    calls: list[str] = []

    def init(**options: object) -> str:
        calls.append("init")
        if calls.count("init") <= failures:
            raise Exception("The current node timed out during startup. The GCS may have become overloaded.")
        return "context"

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setattr("ray.shutdown", lambda: calls.append("shutdown"))
    if failures > 1:
        with pytest.raises(HflrayError, match=r"^Ray's processes did not start .*twice \(load \d+ on .*busy$"):
            start._init({})
    else:
        assert start._init({}) == "context"
    assert calls == ["init", "shutdown", "init", "shutdown"][: 2 * failures + 1]


# The sockets of a Ray that hflray starts.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Replace Ray by a recorder: the options of each ``ray.init``, with the address that a new Ray would take."""
    recorded: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        recorded.append(options | {"takes": services.get_node_ip_address()})
        return SimpleNamespace(address_info={"session_dir": "/"})

    monkeypatch.setattr(ray._private.worker, "_global_node", None)
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda address: "192.0.2.1")
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(start.session, "take_over", lambda folder, end: None)
    monkeypatch.setattr(start, "make_token", lambda: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: recorded[-1]["takes"])
    yield recorded
    assert ray_constants.ENABLE_RAY_CLUSTER  # put back after every start


def test_a_ray_of_our_own_gets_the_loopback_address(calls: list[dict[str, Any]]) -> None:
    assert start.start_ray(2) == 2
    (options,) = calls
    assert options["address"] == "local"
    assert options["takes"] == "127.0.0.1"
    assert not any(name.startswith("_") for name in options)  # all of them are public


def test_a_ray_of_our_own_records_no_calls_unless_the_user_wants_it(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its GCS server would grow with each round. The settings are public: variables of the environment."""
    for name in start.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_ARENA_MAX", "7")
    start.start_local_ray()
    assert {name: os.environ[name] for name in start.SETTINGS} == start.SETTINGS | {"MALLOC_ARENA_MAX": "7"}


@pytest.mark.parametrize("address", ["auto", "{server}"])
def test_nothing_is_exchanged_when_a_cluster_is_joined(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.format(server=f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("RAY_ADDRESS", address)
        start.start_ray()
    assert calls == [{"address": address, **start.QUIET, "takes": "192.0.2.1"}]


def test_the_constant_is_put_back_if_the_start_fails(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise ConnectionError("no room")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConnectionError):
        start.start_ray()


def test_another_ray_is_started_as_it_is_with_one_warning(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as other:
        other.delattr(ray_constants, "ENABLE_RAY_CLUSTER")
        other.setattr(services, "get_node_ip_address", lambda: "192.0.2.1")
        start.start_ray()
    (record,) = caplog.records
    assert "listens on all network interfaces" in record.message
    assert "\n" not in record.message


def test_a_port_that_does_not_exist_is_one_line(calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:99999")
    with pytest.raises(ConfigError, match=r"^RAY_ADDRESS: cannot join a cluster at '127.0.0.1:99999'.*start it with"):
        start.start_ray()
    assert calls == []


def test_a_path_that_is_too_long_for_rays_sockets_names_the_variable(tmp_path, monkeypatch) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    reason = "validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /…"

    def init(**options: Any) -> None:
        raise OSError(reason)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(ConfigError, match=r"TMPDIR: got .*x, which is too long .*set RAY_TMPDIR") as error:
        start.start_ray()
    assert str(long) in str(error.value)
    reason = "another"
    with pytest.raises(OSError, match="another"):
        start.start_ray()


@pytest.mark.parametrize("cpus, expected", [((0,), 1), (tuple(range(os.cpu_count() or 1)), None)])
def test_ray_has_the_cpus_that_this_process_may_use(monkeypatch, cpus, expected) -> None:
    given: list[int | None] = []

    def started(num_cpus: int | None, **options: object) -> None:
        given.append(num_cpus)
        raise ValueError("enough")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(start, "available_cpus", lambda: cpus)
    monkeypatch.setattr(start, "start_local_ray", started)
    with pytest.raises(ValueError, match="enough"):
        start.start_ray()
    with pytest.raises(ValueError, match="enough"):
        start.start_ray(3)
    assert given == [expected if (os.cpu_count() or 1) > 1 else None, 3]


@pytest.mark.parametrize("address", ["auto", "local_cluster", "192.0.2.1"])
def test_a_cluster_that_lets_nobody_in_is_a_mistake_and_no_long_wait(monkeypatch, address: str) -> None:
    """Ray waits for minutes for a Ray that is just ending."""
    assert start.CONNECT_S + start.JOIN_S <= 30
    stop = threading.Event()
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(start, "JOIN_S", 0.2)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: stop.wait(60))
    begin = time.monotonic()
    with pytest.raises(ConfigError, match=rf"RAY_ADDRESS: cannot join a cluster at '{address}' .*\(no answer in 0 s\)"):
        start.start_ray()
    assert time.monotonic() - begin < 30
    stop.set()
