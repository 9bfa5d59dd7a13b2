"""hflray.training.start: the process uses the Ray that has begun to start, which listens on the loopback only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray
from ray._private import services
from ray._private.node import Node

from hflray.errors import ConfigError, HflrayError
from hflray.support import ray_private
from hflray.training import start

SOON = """
import ray
from hflray.training.start import cancel_start, start_ray, start_soon
{before}
start_soon()
start_soon()
{then}
"""


def run(then: str, before: str = "") -> str:
    """Return the output of a process that runs `before`, begins to start Ray, and then runs `then`."""
    command = [sys.executable, "-c", SOON.format(before=before, then=then)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=150).stdout.strip()


def test_a_ray_that_was_begun_is_used_and_stays() -> None:
    """Ray's processes end with the thread that starts them, which must not end before the process does."""
    then = "import time\ncpus = start_ray()\ntime.sleep(2)\n"
    then += "print(cpus == ray.cluster_resources()['CPU'], ray.get(ray.remote(lambda: 7).remote()))"
    assert run(then) == "True 7"


def test_a_ray_that_was_begun_in_vain_is_ended() -> None:
    assert run("cancel_start()\ncancel_start()\nprint(ray.is_initialized())") == "False"


def test_a_ray_of_the_process_itself_outlives_a_start_in_vain() -> None:
    """The caller of the command's entry point may have a Ray of its own, with resources that ours would lack."""
    before = "ray.init('local', num_cpus=1, resources={'theirs': 1}, include_dashboard=False)"  # no other's cluster
    assert run("cancel_start()\nprint(ray.cluster_resources().get('theirs'))", before) == "1.0"


def test_a_command_whose_start_of_ray_is_stuck_begins_anew(tmp_path, monkeypatch) -> None:
    """What each thread was doing is kept, and the command that begins anew starts Ray in its main thread."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = """
import threading
from hflray.training import start
print("begins", flush=True)
start.PATIENCE_S = 0.5
def start_in_vain(num_cpus, more):
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()
    return 3
start._start = start_in_vain
"""
    assert run("print(start_ray())", before).splitlines() == ["begins", "begins", "3"]
    (kept,) = (tmp_path / "hflray" / "stuck").iterdir()
    assert "start_in_vain" in kept.read_text(encoding="utf-8")


def test_a_start_that_is_stuck_does_not_keep_a_command_that_ends_early() -> None:
    before = """
import threading
from hflray.training import start
start.PATIENCE_S = 0.5
start._start = lambda num_cpus, more: threading.Event().wait()
"""
    assert run("cancel_start()\nprint('ends')", before) == "ends"


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


def test_a_ray_of_ours_has_few_processes_and_waits_for_no_port_of_another_one() -> None:
    """The fixed port of an agent of a whole Ray may be another Ray's already; ours does not ask for it."""
    then = """
import psutil
from pathlib import Path
start_ray()
session = Path(ray._private.worker._global_node.get_session_dir_path())
names = {kid.name() for kid in psutil.Process().children(recursive=True)} - {"ray::IDLE"}
print(sorted(names))
print("52365" in "".join(path.read_text() for path in (session / "logs").glob("dashboard_agent*")))
from ray._private.node import Node
from ray._private.services import start_raylet
print(Node.start_monitor.__name__, start_raylet.__name__)
"""
    assert run(then).splitlines() == [
        "['gcs_server', 'ray::DashboardAgent', 'ray::RuntimeEnvAgent', 'raylet']",
        "False",
        "start_monitor start_raylet",
    ]


@pytest.mark.parametrize("gone", ["start_monitor", "start_raylet"])
def test_a_ray_with_other_names_starts_all_its_processes(monkeypatch, gone: str) -> None:
    whole = Node.start_log_monitor
    monkeypatch.delattr(services if gone == "start_raylet" else Node, gone)
    with ray_private.fewer_processes():
        assert Node.start_log_monitor is whole


# The sockets of a Ray that hflray starts.


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """Replace Ray by a recorder: the options of each ``ray.init``, with the address to which loopback is resolved."""
    recorded: list[dict[str, Any]] = []

    def init(**options: Any) -> Any:
        recorded.append(options | {"resolved": services.resolve_ip_for_localhost("127.0.0.1")})
        return SimpleNamespace(address_info={"session_dir": "/"})

    monkeypatch.setattr(services, "resolve_ip_for_localhost", lambda host: "192.0.2.1")
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(start.session, "own", lambda folder, end: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: recorded[-1].get("_node_ip_address", "192.0.2.1"))
    yield recorded
    assert services.resolve_ip_for_localhost("127.0.0.1") == "192.0.2.1"  # put back after every start


def test_a_ray_of_our_own_gets_the_loopback_address(calls: list[dict[str, Any]]) -> None:
    assert start.start_ray(2) == 2
    (options,) = calls
    assert options["address"] == "local"
    assert options["_node_ip_address"] == options["resolved"] == "127.0.0.1"


def test_a_ray_of_our_own_records_no_calls_and_keeps_further_settings(calls: list[dict[str, Any]]) -> None:
    """Its GCS server and its logs would grow with each round and each minute."""
    start.start_local_ray(_system_config={"prestart_worker_first_driver": False})
    assert calls[-1]["_system_config"] == {
        "task_events_report_interval_ms": 0,
        "event_stats_print_interval_ms": 0,
        "prestart_worker_first_driver": False,
    }


@pytest.mark.parametrize("address", ["auto", "{server}"])
def test_nothing_is_exchanged_when_a_cluster_is_joined(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = address.format(server=f"127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("RAY_ADDRESS", address)
        start.start_ray()
    assert calls == [{"address": address, **start.QUIET, "resolved": "192.0.2.1"}]


def test_the_function_is_put_back_if_the_start_fails(
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
        other.setattr(services, "resolve_ip_for_localhost", lambda host="127.0.0.1", port=0: "192.0.2.1")
        start.start_ray()
    assert "_node_ip_address" not in calls[0]
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


SWEEP = """
name: doors
experiment:
  max_rounds: 3
  data: {name: digits}
  fleet: {num_devices: 12, num_edges: 2}
  scheduling: {name: fedavg, num_scheduled: 4}
  assignment: {name: geographic}
  training: {local_iterations: 1, edge_iterations: 2, batch_size: 16, num_actors: 2, autotune: false}
tune: {cpus_per_trial: 2}
"""


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


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_listens_beyond_the_loopback_while_a_sweep_runs(tmp_path: Path) -> None:
    (tmp_path / "doors.yaml").write_text(SWEEP)
    env = os.environ | {"PYTHONPATH": str(Path(start.__file__).parents[2])}
    command = [sys.executable, "-m", "hflray.tune", "doors.yaml"]
    with (tmp_path / "out.txt").open("w") as out:
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=subprocess.STDOUT)
        heard: set[tuple[str, str]] = set()
        deadline = time.monotonic() + 400
        try:
            while process.poll() is None and time.monotonic() < deadline:
                heard |= listeners(psutil.Process(process.pid))
                time.sleep(0.2)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, (tmp_path / "out.txt").read_text()
    programs = {name for name, _ in heard}
    assert {"gcs_server", "raylet"} <= programs
    assert any(name.startswith("ray::") for name in programs)  # the trial and its actors
    assert {address for _, address in heard} == {"127.0.0.1"}, sorted(heard)


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


FORKS = """
import os, signal, sys
calls = []
os.register_at_fork(before=lambda: calls.append(1))
from hflray.training.start import start_ray
from hflray.support.ray_private import head_node
start_ray(1)
print(len(calls), *(info[0].process.pid for info in head_node().all_processes.values()), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_no_python_runs_between_fork_and_exec_of_rays_processes() -> None:
    """Another thread may import at that moment. The processes still end with their parent, and ignore Ctrl-C."""
    started = subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    calls, *pids = map(int, started.stdout.readline().split())
    assert calls == 0
    assert len(pids) >= 2
    assert started.wait(60) == -signal.SIGKILL
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=60)
    assert not alive


def test_a_process_of_ray_blocks_the_interrupt_and_starts_for_its_parent_only() -> None:
    """The program that becomes a process of Ray shows its signals here."""
    show = ["-c", "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('SigBlk')][0])"]
    command = [sys.executable, "-I", "-S", "-c", ray_private.BECOME]
    shown, late = (
        subprocess.check_output([*command, parent, sys.executable, *show], text=True)
        for parent in (str(os.getpid()), "1234567")
    )
    assert int(shown, 16) & 1 << (signal.SIGINT - 1)
    assert late == ""
