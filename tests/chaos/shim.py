"""Orders to the processes of a sweep: die inside a change of a file, find the disk full, read a stepped clock.

``shim.c`` is the library that obeys. It is loaded into every process of the sweep by ``LD_PRELOAD``, and reads the
orders from a small file that all processes map.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")
MAX_PIDS, PATH_SIZE = 16, 1024
ORDERS = struct.Struct(f"=qqqqd{MAX_PIDS}i{PATH_SIZE}s{PATH_SIZE}s")  # the same layout as struct orders in shim.c
CHANGES_LEFT, AFTER, FULL, STRUCK, CLOCK_STEP = 0, 8, 16, 24, 32
PIDS = 40
FOLDER = PIDS + 4 * MAX_PIDS
WHERE = FOLDER + PATH_SIZE


def has_compiler() -> bool:
    """Return whether this machine can build the library."""
    return _compiler() is not None


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def build(folder: Path) -> Path:
    """Build the library in `folder`, unless it is there; return its path."""
    target = folder / "shim.so"
    if not target.exists() or target.stat().st_mtime < SOURCE.stat().st_mtime:
        scratch = folder / f"shim-{os.getpid()}.so"
        command = [str(_compiler()), "-O2", "-shared", "-fPIC", "-o", str(scratch), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True)
        scratch.replace(target)
    return target


class Shim:
    """The orders to the processes that run with `environment`.

    Args:
        library: the built library.
        path: the file of the orders, which is made.
        folder: only changes of files below this folder count.
    """

    def __init__(self, library: Path, path: Path, folder: Path) -> None:
        self._library, self.path = library, path
        with path.open("w+b") as file:
            file.truncate(ORDERS.size)
            self._orders = mmap.mmap(file.fileno(), ORDERS.size)
        name = os.fsencode(folder.resolve())
        self._orders[FOLDER : FOLDER + len(name)] = name

    def environment(self) -> dict[str, str]:
        """Return the variables with which processes obey."""
        return {
            "LD_PRELOAD": str(self._library),
            "RAY_LD_PRELOAD_ON_WORKERS": "1",  # else Ray's raylet takes the library from its workers
            "HFLRAY_CHAOS_ORDERS": str(self.path),
        }

    def arm(self, change: int, pids: Sequence[int], after: bool) -> None:
        """Let a process die at one of the next changes.

        Args:
            change: 1 is the next change.
            pids: the processes whose changes count; empty: every process. Only the first 16 count.
            after: whether the change is made in full before the process dies.
        """
        padded = [*pids[:MAX_PIDS], *[0] * (MAX_PIDS - len(pids[:MAX_PIDS]))]
        struct.pack_into(f"={MAX_PIDS}i", self._orders, PIDS, *padded)
        struct.pack_into("=qq", self._orders, AFTER, int(after), 0)
        struct.pack_into("=q", self._orders, CHANGES_LEFT, change)  # last, because this is what arms

    def disarm(self) -> None:
        """Let no process die that has not yet."""
        struct.pack_into("=q", self._orders, CHANGES_LEFT, 0)

    def struck(self) -> int:
        """Return the id of the process that died in an armed change; 0: none has."""
        return int(struct.unpack_from("=q", self._orders, STRUCK)[0])

    def where(self) -> str:
        """Return the armed change that happened, such as ``inside write /…/journal/x.jsonl``."""
        text = self._orders[WHERE : WHERE + PATH_SIZE].partition(b"\0")[0]
        return os.fsdecode(text)

    def fill(self, full: bool) -> None:
        """Let the disk of the folder have no room, or room again."""
        struct.pack_into("=q", self._orders, FULL, int(full))

    def step_clock(self, step_s: float) -> None:
        """Let every Python process read the time `step_s` seconds later than it is; a negative step is earlier."""
        struct.pack_into("=d", self._orders, CLOCK_STEP, float(int(step_s)))
