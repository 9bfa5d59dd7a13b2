"""hflray.tracking.server: a local MLflow server is found, or started and stopped again."""

from __future__ import annotations

import http.server
import socket
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from hflray.errors import HflrayError
from hflray.tracking import Tracker, default_uri, server
from tests.conftest import small_config

RUN = "0123456789abcdef"


class OneRun(http.server.BaseHTTPRequestHandler):
    """A server that knows one run, as MLflow does, and answers all other requests with status 404."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == f"/api/2.0/mlflow/runs/get?run_id={RUN}" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.fixture
def running(monkeypatch) -> Iterator[str]:
    """Run a server on the port that stands for MLflow's; return its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), OneRun) as one:
        threading.Thread(target=one.serve_forever, daemon=True).start()
        monkeypatch.setattr(server, "PORT", one.server_port)
        yield f"http://127.0.0.1:{one.server_port}"
        one.shutdown()


def test_a_server_that_has_the_run_is_used(running) -> None:
    assert server.answers(running)
    assert server.has_run(running, RUN)
    with server.local_server("sqlite:///none.db", RUN) as found:
        assert found == (running, None)


# A server with a worker, which outlives a server that is killed alone. It has every run.
FAKE = """
import http.server, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def test_another_server_is_left_alone_and_a_new_one_ends_with_its_workers(running, monkeypatch) -> None:
    monkeypatch.setattr(server, "_command", lambda uri, port: [sys.executable, "-c", FAKE, str(port)])
    calls: list[str] = []
    with server.local_server("sqlite:///none.db", "another", lambda: calls.append("starting")) as started:
        assert started.base != running
        assert started.process is not None
        assert server.has_run(started.base, "another")
        workers = psutil.Process(started.process.pid).children()
        assert workers
    assert calls == ["starting"]
    assert not server.answers(started.base)
    deadline = time.monotonic() + 10
    while any(worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert server.answers(running)


def test_a_free_port_is_mlflows_if_possible(monkeypatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.listen()
        monkeypatch.setattr(server, "PORT", port)
        assert server._free_port() != port
    assert server._free_port() == port


def test_a_server_that_ends_or_never_answers_is_reported(monkeypatch) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setattr(server, "PORT", probe.getsockname()[1])
    for command, within_s in (("", 180.0), ("import time; time.sleep(600)", 0.5)):
        monkeypatch.setattr(server, "_command", lambda *_, command=command: [sys.executable, "-c", command])
        monkeypatch.setattr(server, "START_WITHIN_S", within_s)
        refusal = pytest.raises(HflrayError, match="did not start; see why: mlflow server --backend-store-uri sqlite")
        with refusal, server.local_server("sqlite:///x", RUN):
            pass


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_mlflow_serves_a_database_of_runs(tmp_path, monkeypatch) -> None:
    tracker = Tracker(default_uri(tmp_path), "tests", "mine-1", tmp_path / "mine-1")
    tracker.start("t", "t", small_config(), {})
    tracker.finish("t")
    assert tracker.close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setattr(server, "PORT", probe.getsockname()[1])
    (run_id,) = tracker.run_ids()
    with server.local_server(tracker.uri, run_id) as started:
        assert started.base == f"http://127.0.0.1:{server.PORT}"
        with server.local_server(tracker.uri, run_id) as again:
            assert again == (started.base, None)
    assert not server.answers(started.base)
