"""Locks of the queue's folder. An open file holds each lock, so that the lock ends with its process."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError

LOCK = ".lock"  # locked by the process that runs the queue; the file contains its process id
PAUSE = ".pause"  # locked by each running benchmark, and by a queue while it starts


def locked(path: Path, kind: int) -> Any:
    """Return the open file that holds the lock, or None if another process holds the lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the queue's folder for this process. Raises ConfigError: another queue runs in it; the message names it."""
    for _ in range(20):  # `holder` takes the lock for a moment
        file = locked(folder / LOCK, fcntl.LOCK_EX)
        if file is not None:
            break
        time.sleep(0.05)
    else:
        raise ConfigError(f"{folder}: process {holder(folder)} runs this queue; end it with `make queue-stop` first")
    with file:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def holder(folder: Path) -> int | None:
    """Return the id of the process that runs the queue, or None."""
    for _ in range(20):
        file = locked(folder / LOCK, fcntl.LOCK_SH) if folder.is_dir() else None
        if file is not None or not folder.is_dir():
            if file is not None:
                file.close()
            return None
        with suppress(OSError, ValueError):
            return int((folder / LOCK).read_text(encoding="utf-8"))
        time.sleep(0.05)
    return None
