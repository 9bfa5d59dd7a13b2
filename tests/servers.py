"""An MLflow server for a test, which can be stopped and started again."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil


class MlflowServer:
    """``mlflow server`` with SQLite and artifacts in a folder, on the same port after each start.

    Args:
        folder: the folder of the log.
        store: the folder of the database and the artifacts; None stands for `folder`.
        environment: additional environment variables.
    """

    def __init__(self, folder: Path, store: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        self._folder, self._store, self._environment = folder, store or folder, dict(environment or {})
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it answers. One that hangs, which is rare, is started again."""
        for _ in range(3):
            if self._answers_within(90):
                return
            self.stop()
        raise AssertionError(f"the MLflow server does not answer: {(self._folder / 'server.log').read_text()[-2000:]}")

    def _answers_within(self, limit_s: float) -> bool:
        """Start the server, and return whether it answers within some seconds."""
        command = [
            sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port),
            "--workers", "1", "--backend-store-uri", f"sqlite:///{self._store / 'server.db'}",
            "--artifacts-destination", str(self._store / "server-artifacts"),
        ]  # fmt: skip
        # The server's job runner has a dozen processes that no test needs.
        env = os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"} | self._environment
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, cwd=self._folder, env=env, stdout=log, stderr=log)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return True
            except OSError:
                assert self._process.poll() is None, (self._folder / "server.log").read_text()[-2000:]
                time.sleep(0.2)
        return False

    def processes(self) -> list[psutil.Process]:
        """Return the server's process and its workers; empty if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return []
        top = psutil.Process(self._process.pid)
        return [top, *top.children(recursive=True)]

    def stop(self) -> None:
        """Kill the server and its workers."""
        if self._process is None:
            return
        for process in reversed(self.processes()):
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()
        self._process = None


@contextmanager
def mlflow_server(folder: Path, store: Path | None = None) -> Iterator[MlflowServer]:
    """Run a server inside the ``with`` block."""
    server = MlflowServer(folder, store)
    try:
        server.start()
        yield server
    finally:
        server.stop()
