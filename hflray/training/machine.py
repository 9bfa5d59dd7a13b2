"""What training uses of the machine: memory, a heap that keeps freed memory, claimed CPUs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import time
from pathlib import Path

from hflray.errors import ConfigError
from hflray.support.limits import available_cpus
from hflray.support.private import private_folder

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h
HEAP_KEEPS_BYTES = 512 * 2**20
MMAP_FROM_BYTES = 64 * 2**20
MEMORY_FILES = (  # the memory that a container may use, and what it uses: cgroups of version 2 and 1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def keep_to(count: int) -> tuple[int, ...]:
    """Keep this process, and those that it starts, to so many CPUs: those that are idlest for a fifth of a second.

    Returns:
        The CPUs.

    Raises:
        ConfigError: the process may not use so many.
    """
    cpus = available_cpus()
    if not 1 <= count <= len(cpus):
        raise ConfigError(f"--cpus: got {count}; accepted: 1 to {len(cpus)}, the CPUs that this process may use")
    if not hasattr(os, "sched_setaffinity"):
        return cpus[:count]
    before = _idle_ticks()
    time.sleep(0.2)
    idle = {cpu: ticks - before.get(cpu, 0) for cpu, ticks in _idle_ticks().items()}
    chosen = tuple(sorted(sorted(cpus, key=lambda cpu: -idle.get(cpu, 0))[:count]))
    os.sched_setaffinity(0, chosen)
    return chosen


def _idle_ticks() -> dict[int, int]:
    """Return for how long each CPU has been idle, in ticks; empty where the system does not say."""
    try:
        lines = Path("/proc/stat").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    words = [line.split() for line in lines if re.match(r"cpu\d", line)]
    return {int(cpu[3:]): int(idle) for cpu, _, _, _, idle, *_ in words}


def memory_bytes() -> tuple[int, int]:
    """Return the total and the free memory in bytes of this machine, or of the container if it may use less.

    Without Linux's ``/proc/meminfo``, all of the memory counts as free.
    """
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return total, total
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines if len(line.split()) > 1}
    total, free = 1024 * kilobytes["MemTotal"], 1024 * kilobytes["MemAvailable"]
    for limit_file, used_file in MEMORY_FILES:
        try:
            limit, used = int(Path(limit_file).read_text()), int(Path(used_file).read_text())
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
        if limit < total:
            total, free = limit, min(free, max(0, limit - used))
    return total, free


def quiet_heap() -> None:
    """Let glibc keep freed memory.

    A step frees and allocates some MB; returning them to the system and faulting them in again costs a fifth of the
    step. Without glibc this does nothing. Results do not change.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_FROM_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, HEAP_KEEPS_BYTES)


class CpuClaim:
    """A CPU that this process keeps for itself, among all hflray processes of the machine, until it ends.

    A lock file for each CPU grants the claim, so that independent actors of several trials never share a CPU while
    another is free. If none is free, or the platform has no affinities, the process keeps its affinity.
    """

    def __init__(self) -> None:
        self.cpu: int | None = None
        if not hasattr(os, "sched_setaffinity"):
            return
        import fcntl

        folder = private_folder() / "hflray-cpus"
        folder.mkdir(mode=0o700, exist_ok=True)
        for cpu in available_cpus():
            self._file = os.open(folder / str(cpu), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(self._file)
                continue
            os.sched_setaffinity(0, {cpu})
            self.cpu = cpu
            return
