"""A local MLflow server for a database file: one that already runs, or one that is started here and stopped again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shlex import quote
from typing import NamedTuple

from hflray.errors import HflrayError
from hflray.tracking.mlflow import database_path

PORT = 5000  # MLflow's own
START_WITHIN_S = 180.0


class LocalServer(NamedTuple):
    """A server's address, and its process if it was started here."""

    base: str
    process: subprocess.Popen[bytes] | None


def answers(base: str) -> bool:
    """Return whether a server answers at an address, even if it refuses the request, for example without a password."""
    try:
        urllib.request.urlopen(base, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


def has_run(base: str, run_id: str) -> bool:
    """Return whether an MLflow server at an address has a run."""
    try:
        urllib.request.urlopen(f"{base}/api/2.0/mlflow/runs/get?run_id={run_id}", timeout=10).close()
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def local_server(uri: str, run_id: str, starting: Callable[[], None] = lambda: None) -> Iterator[LocalServer]:
    """Give a server for the database `uri`: the one on MLflow's port if it has the run, or else a new one.

    A new server listens on this machine only. It uses MLflow's port, or a free one if another program has that. It is
    stopped at the end of the ``with`` block.

    Args:
        uri: a tracking URI that is no server.
        run_id: MLflow's id of a run in that database.
        starting: called before a server is started, which takes some seconds.

    Raises:
        HflrayError: the server ends, or does not answer in time.
    """
    base = f"http://127.0.0.1:{PORT}"
    if has_run(base, run_id):
        yield LocalServer(base, None)
        return
    starting()
    port = _free_port()
    base = f"http://127.0.0.1:{port}"
    path = database_path(uri)
    # The server's job runner has a dozen processes, and no page here needs it.
    env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    folder = path.parent if path is not None and path.is_file() else None
    process = subprocess.Popen(
        _command(uri, port), env=env, cwd=folder, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + START_WITHIN_S
        while not has_run(base, run_id):
            if process.poll() is not None or time.monotonic() > deadline:
                raise HflrayError(
                    f"the MLflow server did not start; see why: mlflow server --backend-store-uri {quote(uri)}"
                )
            time.sleep(0.3)
        yield LocalServer(base, process)
    finally:
        _stop(process)


def _command(uri: str, port: int) -> list[str]:
    address = ["--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, "-m", "mlflow", "server", *address, "--workers", "1", "--backend-store-uri", uri]


def _free_port() -> int:
    """Return MLflow's port if it is free, or else any free port."""
    for port in (PORT, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise HflrayError("no port of 127.0.0.1 is free; end another server")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server with its workers, which are in its process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
