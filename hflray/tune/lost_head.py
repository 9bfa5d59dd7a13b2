"""The end of a sweep whose Ray has lost its head.

If Ray's raylet is killed (for example when the machine has no memory left), Ray neither ends the driver nor Tune's
loop: the sweep would wait for ever. If the GCS server is killed, the driver dies after a minute with a stack trace of
C++. Everything is on the disk at any time, so the driver ends at once instead, and says how to go on.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hflray.support import ray_private
from hflray.training import session

HEAD = ("raylet", "gcs_server")  # the processes without which no trial can go on
EVERY_S = 0.5


def end_at_once(message: str) -> None:
    """Print a message to stderr and end this process without waiting for anything."""
    print(f"\nerror: {message}", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


@contextmanager
def head_watched(go_on: str, end: Callable[[str], None] = end_at_once) -> Iterator[None]:
    """End this process if its own Ray loses its head inside the ``with`` block. A Ray of somebody else is not watched.

    Args:
        go_on: the command that goes on with the sweep.
        end: is called with the message, by another thread.
    """
    own = session.current()
    if own is None:
        yield
        return
    left = threading.Event()

    def watch() -> None:
        while not left.wait(EVERY_S):
            for name, code in ended(ray_private.head_node()):
                if not left.is_set():  # else the sweep has ended meanwhile, and Ray with it
                    session.keep()
                    end(
                        f"Ray's {name} has ended ({_reason(code)}), so no trial can go on (its logs: {own}/logs); "
                        f"every finished round is saved; go on with: {go_on}"
                    )
                return

    thread = threading.Thread(target=watch, name="hflray-head", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()


def ended(node: Any) -> list[tuple[str, int]]:
    """Return the names and exit codes of the processes of Ray's head that have ended, given Ray's node."""
    dead = node.dead_processes() if node is not None else []
    return [(name, process.returncode) for name, process in dead if name in HEAD]


def _reason(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
