"""The temporary folders of the Rays that hflray starts on this machine, which Ray itself never removes.

A Ray makes a folder such as ``/tmp/ray/session_2026-01-31_…`` of 0.5 MB and more, with its logs and the results that
Tune stages. It is removed when the process that started this Ray ends. It stays if something failed, because its logs
and tracebacks say why, or if the process was killed; a later start removes all but the newest five of these.

A file in the folder, which its process locks, marks a folder as hflray's. No folder of another program's Ray has it.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

MARK = "hflray.lock"
MAX_ENDED_FOLDERS = 5  # how many folders of processes that failed or were killed stay on a machine

_current: Session | None = None


class Session:
    """The folder of the Ray that this process has started.

    Args:
        folder: the folder.
        end: ends that Ray and waits for its processes.
    """

    def __init__(self, folder: Path, end: Callable[[], None]) -> None:
        self.folder, self._end, self._failed = folder, end, False
        self._lock = FileLock(folder / MARK, fallback_to_soft=False)
        self._lock.acquire(timeout=1.0)  # another process may look at the mark at this very moment

    def keep(self) -> None:
        """Let the folder stay, because something failed."""
        self._failed = True

    def close(self) -> None:
        """End this Ray, and remove its folder unless something failed."""
        self._end()
        self.clear()

    def clear(self) -> None:
        """Remove the folder of a Ray that has ended, unless something failed."""
        self._lock.release()
        traceback = getattr(sys, "last_value", None)  # the process ends with one
        if not self._failed and traceback is None:
            remove(self.folder)


def take_over(folder: Path, end: Callable[[], None]) -> None:
    """Take over the folder of the Ray that this process has just started; see `Session`. Errors are only logged."""
    global _current
    try:
        if _current is None:
            atexit.register(_close)
        else:
            _current.clear()  # the caller has ended that Ray
            _current = None
        remove_ended(folder.parent)
        _current = Session(folder, end)
    except (OSError, Timeout) as error:
        log.info("%s: the folder will stay after Ray's end (%s)", folder, error)


def keep() -> None:
    """Let the folder of this process's Ray stay, because something failed."""
    if _current is not None:
        _current.keep()


def _close() -> None:
    global _current
    session, _current = _current, None
    if session is not None:
        with suppress(OSError):
            session.close()


def remove(folder: Path) -> None:
    """Remove a session's folder and the links to it. A part that cannot be removed is left for a later start."""
    for entry in folder.parent.iterdir():
        with suppress(OSError):
            if entry.is_symlink() and Path(os.readlink(entry)).is_relative_to(folder):
                entry.unlink()  # Ray would never replace a link that leads nowhere
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != MARK:
            path.unlink(missing_ok=True)
    if {path.name for path in folder.iterdir()} <= {MARK}:  # the mark is the last file, so that a later start sees it
        shutil.rmtree(folder, ignore_errors=True)


def remove_ended(root: Path) -> None:
    """Remove the marked folders in Ray's temporary folder whose processes have ended, except the newest five."""
    ended = []
    for mark in sorted(root.glob(f"session_*/{MARK}")):  # the names contain the time of the start
        lock = FileLock(mark, fallback_to_soft=False)
        with suppress(OSError, Timeout), lock.acquire(blocking=False):
            ended.append(mark.parent)
    for folder in ended[:-MAX_ENDED_FOLDERS]:
        with suppress(OSError):
            remove(folder)
