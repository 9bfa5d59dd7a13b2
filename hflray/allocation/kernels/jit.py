"""Compile hflray's kernels with Numba, with a cache on disk and without the interpreter lock.

The threads are Python's (`hflray.allocation.newton`). Numba's parallel mode is not used, because some of its threading
layers do not survive the forks and threads of a Ray worker, and because it compiles several times longer.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import event
from numba.core.caching import IndexDataCacheFile
from numba.extending import register_jitable

from hflray.errors import ConfigError
from hflray.support.private import changeable

Function = TypeVar("Function", bound=Callable[..., Any])

PACKAGE = Path(__file__).parents[2]
DIGITS = 16  # of a checksum in a name
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
    cache: Any = getattr(compiled, "_cache", None)
    if hasattr(cache, "_cache_file"):
        folder = cache._cache_path
        if numba.config.CACHE_DIR:  # Numba would name it by the file's path, so that a new checkout would compile anew
            part = Path(function.__code__.co_filename).parent.relative_to(PACKAGE)
            folder = str(_named_folder() / f"hflray-{_sources()[:DIGITS]}" / part)
            cache._cache_path = cache._impl.locator._cache_path = folder
        # Numba's own stamp is that of the kernel's file. It would keep code inlined from another file that has changed.
        cache._cache_file = _Index(folder, cache._impl.filename_base, (_sources(), 0))
    result: Function = compiled
    return result


def is_kept(function: Callable[..., Any]) -> bool:
    """Return whether the disk has code of a compiled function, perhaps of other sources."""
    index = getattr(getattr(getattr(function, "_cache", None), "_cache_file", None), "_index_path", None)
    return index is not None and Path(index).exists()


@cache
def _named_folder() -> Path:
    """Return the folder ``NUMBA_CACHE_DIR``, whose files run as code; raise ConfigError if others can change it."""
    folder = Path(numba.config.CACHE_DIR)
    with suppress(OSError):  # Numba says which folder it cannot write
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        intruders = changeable(folder)
        if intruders:
            raise ConfigError(
                f"NUMBA_CACHE_DIR: {folder} can be changed by {intruders}, and compiled code is loaded from it; "
                "accepted: a folder that only you can write to; name another"
            )
    return folder


class _Index(IndexDataCacheFile):  # type: ignore[misc]
    """The index of a kernel's files on the disk, in which each type's code has a file name of its own.

    Numba takes the next free number for a new file, and writes the index and then the file. Two processes that compile
    a kernel for different types at the same time would both take number 1, and the index might then name the other's
    code. Here at most an entry of the index is lost, and that code is compiled again.
    """

    def _load_index(self) -> dict[Any, Any]:
        try:
            return dict(super()._load_index())
        except AttributeError:  # it names a class that the package no longer has
            return {}

    def save(self, key: Any, data: Any) -> None:
        """Save compiled code, and then its name in the index."""
        digest = hashlib.sha256(repr((self._source_stamp, key)).encode()).hexdigest()
        name = self._data_name(int(digest[:DIGITS], 16))
        self._save_data(name, data)
        self._save_index(self._load_index() | {key: name})


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
