"""The folder of what hflray computes once on a machine, and the name of the CPU, which is part of its keys."""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import tempfile
from pathlib import Path


def cache_folder(name: str) -> Path:
    """Make and return ``$XDG_CACHE_HOME/hflray/<name>`` or ``~/.cache/hflray/<name>``.

    If it cannot be made or written, a temporary folder takes its place. Compiled code is loaded from a cache, so that
    folder must be closed to other users.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "hflray" / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    private = Path(tempfile.gettempdir()) / f"hflray-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        private.mkdir(mode=0o700)
    state = private.lstat()
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o022:
        private = Path(tempfile.mkdtemp(prefix="hflray-"))  # another user has made it, or may write into it
    folder = private / name
    folder.mkdir(exist_ok=True)
    return folder


def cpu_model() -> str:
    """Return the name and instruction set of the CPU. Compiled code runs on every CPU with the same text."""
    lines = {platform.machine(), platform.processor()}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines |= {line.strip() for line in file if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(lines))
