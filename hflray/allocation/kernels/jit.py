"""Compile hflray's kernels with Numba, with a cache on disk and without the interpreter lock.

If several processes need a kernel at the same time, one compiles it, and the others wait and read it from the disk.

The threads are Python's (`hflray.allocation.batch`). Numba's parallel mode is not used, because some of its threading
layers do not survive the forks and threads of a Ray worker, and because it compiles several times longer.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parents[2]
DIGITS = 16  # of the checksum in a folder's name
FOLDERS = ("allocation", "allocation/kernels", "assignment", "world")  # a test checks that no other folder has kernels
logger = logging.getLogger("hflray")


def kernel(function: Function) -> Function:
    """Compile with Numba on first use; division by zero gives infinity, as in NumPy."""
    return _compiled(function, fastmath=False)


def vector_kernel(function: Function) -> Function:
    """Compile as `kernel` does, and allow a fused multiplication and addition, so that loops become vector code."""
    return _compiled(function, fastmath={"contract"})


def shared(function: Function) -> Function:
    """Let kernels call a function, which is then compiled as part of them; Python calls it as it is."""
    result: Function = register_jitable(error_model="numpy")(function)
    return result


def _compiled(function: Function, fastmath: Any) -> Function:
    """Return the compiled function, whose cache is valid as long as no file with kernels changes."""
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    # Numba's cache compares a kernel's own file only, and would keep code that it inlined from another file after that
    # file changed. This stamp covers all files with kernels.
    cache = getattr(compiled, "_cache", None)
    index = getattr(cache, "_cache_file", None)
    if index is not None and hasattr(index, "_source_stamp"):
        if numba.config.CACHE_DIR:
            index = _by_content(function, cache)
        index._source_stamp = (_sources(), 0)
        compiled.compile = _once(compiled)
    result: Function = compiled
    return result


def _by_content(function: Callable[..., Any], cache: Any) -> Any:
    """Let a kernel's cache lie in a folder of ``NUMBA_CACHE_DIR`` that the kernels' text names; return its index.

    Numba would name it by the path of the file, so that each new checkout would compile for minutes.
    """
    part = Path(function.__code__.co_filename).parent.relative_to(PACKAGE)
    folder = str(Path(numba.config.CACHE_DIR) / f"hflray-{_sources()[:DIGITS]}" / part)
    cache._cache_path = cache._impl.locator._cache_path = folder
    cache._cache_file = IndexDataCacheFile(folder, cache._impl.filename_base, None)
    return cache._cache_file


def _once(compiled: Any) -> Callable[[Any], Any]:
    """Return the dispatcher's `compile` under a lock, so that one process of this machine compiles at a time."""
    compile_now = compiled.compile

    def compile_once(signature: Any) -> Any:
        with global_compiler_lock:  # Numba's lock of the threads is taken first, because a caller may hold it
            if _gate.held or _is_compiled(compiled, signature):
                return compile_now(signature)
            with _gate.alone():
                return compile_now(signature)  # it reads the disk first

    return compile_once


def _is_compiled(compiled: Any, signature: Any) -> bool:
    """Return whether the kernel is compiled for this signature, in this process or on the disk."""
    if signature in compiled.overloads:
        return True
    try:
        key = compiled._cache._index_key(signature, compiled.targetctx.codegen())
        return key in compiled._cache._cache_file._load_index()
    except (AttributeError, OSError):  # another Numba or an unreadable cache: compile without the lock
        return True


class _Gate:
    """A lock that the processes of this user hold while they compile into the same cache."""

    def __init__(self) -> None:
        self.held = False  # by this process; Numba's lock protects it

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock during the block, or no lock if its file cannot be made."""
        place = f"{PACKAGE}\0{os.environ.get('NUMBA_CACHE_DIR', '')}"
        name = f"hflray-kernels-{os.getuid()}-{hashlib.sha256(place.encode()).hexdigest()[:12]}"
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                file = os.open(Path(tempfile.gettempdir()) / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, file)
                fcntl.flock(file, fcntl.LOCK_EX)
            self.held = True
            try:
                yield
            finally:
                self.held = False


_gate = _Gate()


@cache
def _sources() -> str:
    """Return a hash of every file with kernels."""
    digest = hashlib.sha256()
    for path in kernel_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel_files() -> list[Path]:
    """Return the files whose change makes every cached kernel invalid: those in `FOLDERS` that contain "kernel"."""
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    return [path for path in paths if b"kernel" in path.read_bytes()]


class _Announcer(event.Listener):  # type: ignore[misc]
    """A listener that logs once why the first call takes seconds."""

    def __init__(self) -> None:
        self.announced = False

    def on_start(self, event: Any) -> None:
        dispatcher = event.data.get("dispatcher")
        if self.announced or not str(getattr(dispatcher, "__module__", "")).startswith("hflray."):
            return
        self.announced = True
        folder = dispatcher.stats.cache_path
        # The level is warning, so that it is shown even if logging is not configured.
        logger.warning("compiling hflray's kernels, once (a few seconds); kept in %s", folder)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcer())
