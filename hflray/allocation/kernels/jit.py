"""How hflray's kernels are compiled: Numba, cached on disk, without the interpreter lock.

Processes that need a kernel at the same time compile it once: the others wait, and take it from the disk.

Threads come from Python (`hflray.allocation.batch`), not from Numba's parallel mode: its threading layers do not all
survive the forks and threads of a Ray worker, and compile several times longer.
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
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parents[2]
FOLDERS = ("allocation", "allocation/kernels", "assignment")  # kernels are written nowhere else (a test looks)
logger = logging.getLogger("hflray")


def kernel(function: Function) -> Function:
    """Compile with Numba on first use; division by zero gives infinity, as in NumPy."""
    return _compiled(function, fastmath=False)


def vector_kernel(function: Function) -> Function:
    """The same for what is to become vector code: a multiplication and an addition may be one instruction."""
    return _compiled(function, fastmath={"contract"})


def shared(function: Function) -> Function:
    """Leave a function as it is for Python, and let kernels call it: there it is compiled as part of them."""
    result: Function = register_jitable(error_model="numpy")(function)
    return result


def _compiled(function: Function, fastmath: Any) -> Function:
    compiled = numba.njit(cache=True, nogil=True, error_model="numpy", fastmath=fastmath)(function)
    # Numba's cache looks at a kernel's own file only, and would go on using what it inlined from another that has
    # changed since. The stamp it compares is made to cover all kernels.
    index = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if index is not None and hasattr(index, "_source_stamp"):
        index._source_stamp = (_sources(), 0)
        compiled.compile = _once(compiled)
    result: Function = compiled
    return result


def _once(compiled: Any) -> Callable[[Any], Any]:
    """The dispatcher's `compile`, while no other process of this machine compiles one of these kernels."""
    compile_now = compiled.compile

    def compile_once(signature: Any) -> Any:
        with global_compiler_lock:  # Numba's own, of the threads; taken first, as a caller of ours may hold it
            if _gate.held or _kept(compiled, signature):
                return compile_now(signature)
            with _gate.alone():
                return compile_now(signature)  # which looks on the disk first

    return compile_once


def _kept(compiled: Any, signature: Any) -> bool:
    """Whether it need not be compiled."""
    if signature in compiled.overloads:
        return True
    try:
        key = compiled._cache._index_key(signature, compiled.targetctx.codegen())
        return key in compiled._cache._cache_file._load_index()
    except (AttributeError, OSError):  # another Numba, an unreadable cache: better twice than not at all
        return True


class _Gate:
    """A lock that the processes of this user hold while they compile into the same cache."""

    def __init__(self) -> None:
        self.held = False  # by this process; read and written under Numba's own lock

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it; without, where there can be no such file."""
        where = f"{PACKAGE}\0{os.environ.get('NUMBA_CACHE_DIR', '')}"
        name = f"hflray-kernels-{os.getuid()}-{hashlib.sha256(where.encode()).hexdigest()[:12]}"
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
    """A hash of every file that holds kernels."""
    digest = hashlib.sha256()
    for path in kernel_files():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kernel_files() -> list[Path]:
    """The files whose change makes every cached kernel out of date: those of `FOLDERS` that speak of kernels."""
    paths = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    return [path for path in paths if b"kernel" in path.read_bytes()]


class _Announcer(event.Listener):  # type: ignore[misc]
    """Say once why the first call takes seconds."""

    def __init__(self) -> None:
        self.silent = False

    def on_start(self, event: Any) -> None:
        dispatcher = event.data.get("dispatcher")
        if self.silent or not str(getattr(dispatcher, "__module__", "")).startswith("hflray."):
            return
        self.silent = True
        folder = dispatcher.stats.cache_path
        # A warning, so that it is seen where nobody has set logging up.
        logger.warning("compiling hflray's kernels, once (a few seconds); kept in %s", folder)

    def on_end(self, event: Any) -> None:
        pass


event.register("numba:compile", _Announcer())
