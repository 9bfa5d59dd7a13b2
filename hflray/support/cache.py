"""The folder of what hflray computes once on a machine, and the name of the CPU, which is part of its keys."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import tempfile
from pathlib import Path

from hflray.errors import ConfigError
from hflray.support.private import changeable, private_folder

log = logging.getLogger(__name__)


def cache_folder(name: str) -> Path:
    """Make and return ``$XDG_CACHE_HOME/hflray/<name>`` or ``~/.cache/hflray/<name>``.

    If it cannot be made or written, or others can change what is in it, a temporary folder takes its place: compiled
    code is loaded from a cache.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "hflray" / name
    with contextlib.suppress(OSError):
        for place in (base, folder.parent, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        intruders = changeable(folder)
        if intruders:
            log.warning("%s is not used: it can be changed by %s; a temporary cache takes its place", folder, intruders)
        elif os.access(folder, os.W_OK):
            return folder
    try:
        private = private_folder()
    except ConfigError:
        private = Path(tempfile.mkdtemp(prefix="hflray-"))
    folder = private / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def own_compiled_code() -> None:
    """Let torch keep the code that it compiles in a cache folder, unless the user names another place.

    It would make, and later load code from, a folder in ``/tmp`` that any user can make first.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder("compiled")))


def cpu_model() -> str:
    """Return the name and instruction set of the CPU. Compiled code runs on every CPU with the same text."""
    lines = {platform.machine(), platform.processor()}
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        lines |= {line.strip() for line in file if line.startswith(("model name", "flags", "Features", "CPU part"))}
    return "\n".join(sorted(lines))
