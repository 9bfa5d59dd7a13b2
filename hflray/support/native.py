"""C code that hflray builds with the machine's compiler at first use, and keeps in its cache folder."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hflray.errors import HflrayError
from hflray.support.checksum import file_digest
from hflray.support.private import cache_folder, cpu_model

OPTIONS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
DIGITS = 16  # of a library's checksum in its name


def compiler() -> str | None:
    """Return the path of the C compiler: ``$CC``, else cc, gcc or clang; None if there is none."""
    names = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in names if (path := shutil.which(name))), None)


def load_library(source: Path, *options: str) -> ctypes.CDLL:
    """Build a C file for this CPU, unless the cache folder has the library already, and load it.

    The library's name ends with digits of its own checksum, so that a damaged library is built anew.

    Args:
        source: the file.
        options: further options of the compiler.

    Raises:
        HflrayError: there is no compiler, or it fails. The caller puts what needs the code before the message.
    """
    compiler_path = compiler()
    if compiler_path is None:
        raise HflrayError("needs a C compiler (cc, gcc or clang), and this machine has none; install gcc")
    version = subprocess.run([compiler_path, "--version"], capture_output=True, text=True, check=False).stdout
    options = (*OPTIONS, *options)
    name = hashlib.sha256("\0".join([source.read_text(), version, cpu_model(), *options]).encode()).hexdigest()[:16]
    folder = cache_folder(source.stem)
    target = next((path for path in sorted(folder.glob(f"{name}-*.so")) if _is_whole(path)), None)
    if target is None:
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            output = Path(scratch) / "kernel.so"
            command = [compiler_path, *options, "-o", str(output), str(source), "-lm"]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode:
                raise HflrayError(
                    f"needs a C compiler, and {' '.join(command)} failed: {result.stderr.strip()[:300]}; install gcc"
                )
            target = folder / f"{name}-{file_digest(output)[:DIGITS]}.so"
            output.replace(target)  # atomically, because several processes may build at once
    return ctypes.CDLL(str(target))


def _is_whole(path: Path) -> bool:
    """Return whether a library's content has the checksum in its name; remove it if not."""
    try:
        whole = file_digest(path)[:DIGITS] == path.stem.rpartition("-")[2]
        if not whole:
            path.unlink(missing_ok=True)
        return whole
    except OSError:
        return False
