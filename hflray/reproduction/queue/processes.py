"""The processes of a queue. They start at low priority with a mark in their environment that identifies them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

MARK = "HFLRAY_QUEUE_OF"  # the environment variable of every process of a queue; its value is the queue's folder
NICENESS = 19
KILL_AFTER_S = 15.0
STEP_S = 0.5
EXPORT_WITHIN_S = 3600.0  # the limit for a busy machine; on an idle one an export takes 20 s
# At this priority a process may get no CPU time for minutes on a busy machine. Ray considers a process dead that is
# silent for 30 to 60 s, and its driver then ends. These settings raise the limits to as much as an hour. A process that
# really dies closes its connections, which Ray notices at once.
PATIENCE = {
    "RAY_gcs_rpc_server_reconnect_timeout_s": "3600",
    "RAY_gcs_rpc_server_connect_timeout_s": "600",
    "RAY_gcs_server_request_timeout_seconds": "3600",
    "RAY_raylet_rpc_server_reconnect_timeout_base_s": "3600",
    "RAY_raylet_rpc_server_reconnect_timeout_max_s": "3600",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_health_check_failure_threshold": "60",
    "RAY_worker_register_timeout_seconds": "3600",
    "RAY_agent_register_timeout_ms": "3600000",
    "RAY_grpc_client_keepalive_timeout_ms": "3600000",
    "RAY_grpc_keepalive_timeout_ms": "3600000",
    "TUNE_FUNCTION_THREAD_TIMEOUT_S": "3600",
}


def wait_a_step() -> None:
    """Sleep for `STEP_S` between two checks of a condition."""
    time.sleep(STEP_S)


def marked(folder: Path) -> list[int]:
    """Return the ids of the processes that this queue started and of their descendants."""
    mark = f"{MARK}={folder}".encode()
    pids = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process has ended or belongs to another user
            if mark in path.read_bytes().split(b"\0"):
                pids.append(int(path.parent.name))
    return sorted(set(pids) - {os.getpid()})


def send(pids: Sequence[int], number: int) -> None:
    """Send a signal to processes; one that has ended is left out."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end_leftovers(folder: Path, wait_s: float = KILL_AFTER_S) -> None:
    """End the queue's remaining processes: wait `wait_s` seconds, then send SIGTERM, then SIGKILL."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            send(marked(folder), number)
        deadline = time.monotonic() + (wait_s if number is None else KILL_AFTER_S)
        while marked(folder):
            if time.monotonic() > deadline:
                break
            wait_a_step()
        else:
            return


def group_last(pid: int, niceness: int) -> None:
    """Lower the priority of the session that `pid` leads, where the kernel groups processes by session.

    With ``sched_autogroup_enabled`` niceness counts only within a session: a busy loop at niceness 19 takes as much of
    a core as one at niceness 0 in another session.
    """
    with suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(niceness), encoding="ascii")


def _prepare_child(niceness: int) -> None:
    """Prepare a child before its command runs: it gets SIGTERM if the queue is killed, and its niceness is set."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    os.nice(max(0, niceness - os.nice(0)))


class Children:
    """Start and end the processes of a queue.

    Args:
        folder: the queue's folder, which marks its processes.
        cpus: the number of CPUs that the processes may use.
        niceness: the niceness of all processes.
    """

    def __init__(self, folder: Path, cpus: int = 1, niceness: int = NICENESS) -> None:
        self._folder, self._cpus, self._niceness = folder, cpus, niceness

    def environment(self, tree: Path) -> dict[str, str]:
        """Return the environment of the processes, without the caller's variables that would redirect them."""
        removed = ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "PYTHONHOME", "VIRTUAL_ENV")
        inherited = {key: value for key, value in os.environ.items() if key not in removed}
        return inherited | {
            MARK: str(self._folder), "PYTHONPATH": str(tree), "PYTHONNOUSERSITE": "1", "COLUMNS": "160",
            "RAY_worker_niceness": str(self._niceness), "OMP_NUM_THREADS": str(self._cpus),
            "SPT_NOENV": "1",  # without it Ray overwrites the mark with the titles of its processes
            **PATIENCE,
        }  # fmt: skip

    def start(self, command: Sequence[str], place: Path, tree: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a command in the folder `place` with the code in `tree`, and append its output to `log`."""
        with log.open("ab") as file:
            return subprocess.Popen(
                list(command), cwd=place, env=self.environment(tree), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=partial(_prepare_child, self._niceness),
            )  # fmt: skip

    def end(self, process: subprocess.Popen[bytes], within_s: float) -> None:
        """End a sweep: the first signal lets running rounds end and be saved, the second does not."""
        for wait_s in (within_s, KILL_AFTER_S):
            send([process.pid], signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
                return
        send(marked(self._folder), signal.SIGKILL)
        process.wait()

    def call(self, command: Sequence[str], place: Path, tree: Path, log: Path, stopping: Callable[[], bool]) -> bool:
        """Run a command to its end. Return False if it failed, took too long, or `stopping` became true."""
        log.unlink(missing_ok=True)
        process, deadline = self.start(command, place, tree, log), time.monotonic() + EXPORT_WITHIN_S
        while process.poll() is None:
            if stopping() or time.monotonic() > deadline:
                process.kill()
                process.wait()
                return False
            wait_a_step()
        return process.returncode == 0

    def give_way(self, process: subprocess.Popen[bytes]) -> None:
        """Lower the priority of a process from now on, see `group_last`."""
        group_last(process.pid, self._niceness)
