"""Files that are written whole or not at all, and disks that are full, read-only or failing.

Every file of hflray is written here, or in a block of `replacing` or `replacing_folder` (`tests/test_house.py` checks
this and lists the exceptions). A reader, or a process that continues after a kill or a full disk, therefore sees the
former file or the new one, and never a part. A file that only grows, such as a journal, gains whole entries by
`append`.

A file is flushed to the disk before it takes its name if it is `durable`, so that not even a loss of power leaves an
empty file under that name. Records from which a run continues are durable; reports and caches are not, because they can
be made again and a flush takes milliseconds.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from hflray.errors import ConfigError

MIB = 2**20
SWEEP = "sweep.json"  # the file by which a sweep's folder is known
# No space, over the quota, a read-only file system, and a defect of the device.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
# The same in the messages of libraries that raise errors of their own: SQLite, safetensors, PyArrow, Ray.
DISK_MESSAGES = {
    "No space left on device": errno.ENOSPC,
    "database or disk is full": errno.ENOSPC,
    "OutOfDiskError": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "Read-only file system": errno.EROFS,
    "attempt to write a readonly database": errno.EROFS,
    "Input/output error": errno.EIO,
    "disk I/O error": errno.EIO,
}
ADVICE = {
    errno.ENOSPC: "free space there",
    errno.EDQUOT: "free space there, or raise the quota",
    errno.EIO: "check that disk",
}


@contextmanager
def replacing(path: str | Path, durable: bool = False) -> Iterator[Path]:
    """Yield a new path with the same suffix, whose file replaces `path` atomically at the end of the block.

    After an error `path` has not changed, and the new file is removed. Of two blocks at the same time, the one that
    ends last wins.

    Args:
        path: the file; its folder is made.
        durable: whether the file is flushed to the disk before it takes its name.

    Raises:
        OSError: the file cannot be written. The error names `path`.
        ConfigError: the way to `path` leads through a link below a sweep's folder.
    """
    target = Path(path)
    scratch = target.with_name(f".{uuid.uuid4().hex[:8]}-{target.name[-40:]}")  # names are limited to 255 bytes
    _refuse_way(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield scratch
        if durable:
            with scratch.open("rb") as file:
                os.fsync(file.fileno())
        scratch.replace(target)
    except BaseException as error:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
        _name(error, target)
        raise


@contextmanager
def replacing_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder that replaces the folder `path` atomically at the end; after an error nothing has changed.

    Args:
        path: the folder to replace; its parents are made.

    Raises:
        OSError: a file of the folder cannot be written. The error names `path`.
    """
    target = Path(path)
    scratch = None
    _refuse_way(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        yield scratch
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}-old-", dir=target.parent))
        if target.exists():
            target.replace(old)  # a folder can be renamed only over an empty one
        scratch.replace(target)
        shutil.rmtree(old, ignore_errors=True)
    except BaseException as error:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        _name(error, target)
        raise


def write(path: str | Path, content: str | bytes, durable: bool = False) -> Path:
    """Write `content`, as UTF-8 if it is a text, and replace a former file atomically; return the path.

    Raises:
        OSError: the file cannot be written. The error names `path`.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        with replacing(path, durable) as scratch:
            scratch.write_bytes(data)
    except OSError as error:
        _name(error, Path(path), len(data))
        raise
    return Path(path)


def append(path: Path, content: bytes, create: bool = True) -> None:
    """Add `content` to the end of a file: all of it, or nothing if there is an error.

    Args:
        path: the file; its folder exists.
        content: one or several whole entries.
        create: whether to make a missing file.

    Raises:
        OSError: the file cannot be written, or is missing and may not be made. The error names `path`.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
    _refuse_way(path)
    try:
        file = os.open(path, flags, 0o666)
        try:
            size = os.lseek(file, 0, os.SEEK_END)
            try:
                rest = memoryview(content)
                while rest:  # a disk that becomes full takes a part, and the next call raises the reason
                    rest = rest[os.write(file, rest) :]
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)
    except OSError as error:
        _name(error, path, len(content))
        raise


def append_line(path: Path, text: str) -> None:
    """Add `text` as a line of its own, also after a line that a kill has cut off. Raises OSError: see `append`."""
    content = f"{text}\n".encode()
    with suppress(FileNotFoundError), path.open("rb") as file:
        if file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n":
            content = b"\n" + content
    append(path, content)


def _name(error: BaseException, path: Path, needed_bytes: int = 0) -> None:
    """Let the error of a disk name the file that was to be written, and its size, and not the scratch file."""
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        error.filename, error.filename2 = str(path), None
        error.needed_bytes = needed_bytes  # type: ignore[attr-defined]  # for `disk_failure`


class Failure(NamedTuple):
    """Why a write failed: the operating system's error number, and path and size if they are known."""

    number: int
    path: Path | None
    needed_bytes: int = 0

    @property
    def reason(self) -> str:
        """The operating system's description, such as ``No space left on device``."""
        return os.strerror(self.number)

    def line(self, place: str | Path, command: str) -> str:
        """Return one line for the user.

        Args:
            place: the folder that is named if the path is not known.
            command: the command that goes on.
        """
        path = self.path or Path(place)
        room = f"; {size_text(self.needed_bytes)} needed" if self.needed_bytes else ""
        with suppress(OSError):
            room += f"; {size_text(free_bytes(path))} free"
        advice = ADVICE.get(self.number, "make it writable")
        return f"{path}: cannot be written ({self.reason}{room}); {advice}, then go on with: {command}"


def disk_failure(error: BaseException | None) -> Failure | None:
    """Return the failure of a disk that caused `error`, or None if no disk is to blame.

    Libraries wrap the error of the operating system in their own types, or only quote it, so the causes of `error` and
    their messages are searched as well.
    """
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            path = Path(os.fsdecode(error.filename)) if error.filename else None
            return Failure(error.errno, path, getattr(error, "needed_bytes", 0))
        text = f"{type(error).__name__}: {error}"
        for message, number in DISK_MESSAGES.items():
            if message.lower() in text.lower():
                quoted = re.search(r"\[Errno \d+\] [\w ]+: '([^']+)'", text)
                return Failure(number, Path(quoted[1]) if quoted else None)
        error = error.__cause__ or error.__context__
    return None


def existing(path: str | Path) -> Path:
    """Return `path`, or the nearest folder above it that exists."""
    place = Path(path).absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def free_bytes(path: str | Path) -> int:
    """Return the bytes that this user can still write to the file system of `path`, which need not exist yet.

    The result is 0 if the file system is read-only or has no room for another file. A quota is not seen.

    Raises:
        OSError: the file system does not answer.
    """
    state = os.statvfs(existing(path))
    if state.f_flag & os.ST_RDONLY or (state.f_files and not state.f_favail):
        return 0
    return state.f_bavail * state.f_frsize


def size_text(size_bytes: float) -> str:
    """Return a number of bytes in a readable unit: 0.4 MiB, 12 MiB, 3.5 GiB."""
    mib = size_bytes / MIB
    if mib < 1024:
        return f"{mib:.1f} MiB" if mib < 9.95 else f"{mib:.0f} MiB"
    return f"{mib / 1024:.1f} GiB"


def refuse_links(folder: Path) -> None:
    """Refuse a folder with other things than files and folders, because it may be a stranger's.

    A link would let hflray write into other files, and a pipe would let it wait for ever.

    Raises:
        ConfigError: the folder holds such a thing. The folder itself may be a link.
    """
    for place, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(place, name)
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                raise _linked(path)
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise ConfigError(f"{path}: a pipe, a socket or a device, and no file; remove it")


def _linked(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: a symbolic link to {os.readlink(path)}, through which another file would be changed; "
        "put the file itself in its place, or remove the link"
    )


def _refuse_way(path: Path) -> None:
    """Refuse to write through a symbolic link below a sweep's folder, which may be a stranger's.

    A link to that folder, or above it, is the user's own. Raises ConfigError: there is a link below it.
    """
    link: Path | None = None
    for place in Path(os.path.abspath(path)).parents:
        if link is not None and os.path.lexists(place / SWEEP):
            raise _linked(link)
        if place.is_symlink():
            link = place
