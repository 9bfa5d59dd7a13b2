"""What other users of the machine can reach or change, and folders that are closed to them, such as those of caches.

Whoever can write into a folder decides what is read there: code, sockets, locks. Of what lies at a predictable place
below a folder of several users, such as ``/tmp``, hflray reads only what is in a folder that was made or checked here.
"""

from __future__ import annotations

import contextlib
import grp
import logging
import os
import platform
import pwd
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from hflray.errors import ConfigError


def reachable(state: os.stat_result) -> str:
    """Return why other users may reach what has this ``lstat``, for a message; empty if only this user can."""
    if stat.S_ISLNK(state.st_mode):
        return "is a link"
    if state.st_uid != os.getuid():
        return f"belongs to another user (uid {state.st_uid})"
    mode = stat.S_IMODE(state.st_mode)
    return f"is open to other users (mode {mode:o})" if mode & 0o077 else ""


def changeable(folder: Path) -> str:
    """Return who else may change what is in a folder or replace it, for a message; empty if nobody may.

    The system may, and so may the owners of the folders above the next one.
    """
    # In a container that knows only this user, the files of the system's administrator have another owner.
    owners = {0, os.getuid(), os.stat("/proc").st_uid}
    folder = folder.resolve()
    for place in (folder, *folder.parents):
        state = place.stat()
        if place in (folder, folder.parent) and state.st_uid not in owners:
            return f"the owner of {place} (uid {state.st_uid})"
        if _writable_by_others(state) and (place == folder or not state.st_mode & stat.S_ISVTX):
            return f"everybody who can write to {place} (mode {stat.S_IMODE(state.st_mode):o})"
    return ""


def _writable_by_others(state: os.stat_result) -> bool:
    """Return whether others can write there. A group with the name of its only user is no other."""
    with suppress(KeyError):
        if grp.getgrgid(state.st_gid).gr_name == pwd.getpwuid(os.getuid()).pw_name:
            return bool(state.st_mode & 0o002)
    return bool(state.st_mode & 0o022)


def private_folder(base: str | Path | None = None) -> Path:
    """Return a folder that is closed to other users: `base` itself if it is, else ``hflray-<uid>`` in it.

    Args:
        base: a folder, which is made if it is missing; by default the system's for temporary files.

    Raises:
        ConfigError: the folder is no folder, a link, another user's or open to others, or others can replace it.
        OSError: it cannot be made.
    """
    folder = Path(base or tempfile.gettempdir()).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if reachable(folder.lstat()):
        folder /= f"hflray-{os.getuid()}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    state = folder.lstat()
    problem = reachable(state) or ("" if stat.S_ISDIR(state.st_mode) else "is not a folder")
    intruders = "" if problem else changeable(folder)
    if problem or intruders:
        raise ConfigError(
            f"the temporary folder {folder} {problem or f'can be replaced by {intruders}'}; accepted: a folder of "
            "yours with mode 700; remove it, or set TMPDIR (or RAY_TMPDIR, where that is set) to another folder"
        )
    return folder


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
