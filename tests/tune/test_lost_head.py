"""`hflray.tune.lost_head`: a sweep whose Ray has lost its head ends and says how to go on. tests/chaos kills real
heads.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from hflray.support import ray_private
from hflray.training import session
from hflray.tune import lost_head
from hflray.tune.lost_head import ended, head_watched

GO_ON = "python -m hflray.tune --resume x"


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Make a Ray that this process has started, with processes that can be declared dead."""
    dead: list[tuple[str, SimpleNamespace]] = []
    made = SimpleNamespace(dead=dead, dead_processes=lambda: dead)
    monkeypatch.setattr(ray_private, "head_node", lambda: made)
    monkeypatch.setattr(lost_head, "EVERY_S", 0.01)
    monkeypatch.setattr(session, "current", lambda: Path("/tmp/ray/session_1"))
    return made


def test_the_loss_of_a_head_ends_the_sweep_with_one_line(node) -> None:
    messages: list[str] = []
    told = threading.Event()
    with head_watched(GO_ON, lambda message: (messages.append(message), told.set())):
        node.dead.append(("log_monitor", SimpleNamespace(returncode=-9)))
        assert not told.wait(0.1)  # trials go on without it
        node.dead.append(("raylet", SimpleNamespace(returncode=-9)))
        assert told.wait(60)
    (message,) = messages
    assert "\n" not in message
    assert "Ray's raylet has ended (killed by signal 9)" in message
    assert "/tmp/ray/session_1/logs" in message
    assert message.endswith(GO_ON)


def test_a_ray_that_ends_after_the_sweep_is_no_loss(node) -> None:
    messages: list[str] = []
    with head_watched(GO_ON, messages.append):
        pass
    node.dead.append(("gcs_server", SimpleNamespace(returncode=0)))
    assert not threading.Event().wait(0.1)
    assert messages == []


def test_a_ray_of_somebody_else_is_not_watched(node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "current", lambda: None)
    node.dead.append(("raylet", SimpleNamespace(returncode=1)))
    messages: list[str] = []
    with head_watched(GO_ON, messages.append):
        assert not threading.Event().wait(0.1)
    assert messages == []
    assert ended(None) == []


def test_the_process_ends_at_once_with_an_error() -> None:
    code = (
        "import atexit\n"
        "from hflray.tune.lost_head import end_at_once\n"
        "atexit.register(lambda: print('waited'))\n"
        "print('before'); end_at_once('the head is gone')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stdout == "before\n"
    assert done.stderr.splitlines()[-1] == "error: the head is gone"
