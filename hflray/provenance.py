"""Where a result comes from: the commit, the versions of the libraries, Python and the CPU.

`environment` is what a run keeps on record. `release` is the part that must be equal on all nodes of a cluster. The
package's version does not change while it is worked on, so `release` holds a digest of its source files instead: a
node with a checkout of yesterday is found out.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hflray import __version__

# Ray, or processes cannot talk to each other; the others, because they decide the low bits of a result.
EQUAL_ON_ALL_NODES = ("ray", "numpy", "scipy", "torch")
ON_RECORD = (
    "hflray",
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "cvxpy",
    "clarabel",
    "numba",
    "scikit-learn",
    "mlflow",
)
PACKAGE = Path(__file__).parent
SOURCES = ("*.py", "*.c")


@cache
def release() -> dict[str, str]:
    """Name and version of what must be equal: ``{"python": "3.11.2", "ray": "2.60.0", "hflray": "0.1.0 (3f…)", …}``."""
    mine = {"python": platform.python_version(), "hflray": f"{__version__} ({source_digest(PACKAGE)})"}
    return mine | _versions(EQUAL_ON_ALL_NODES)


@cache
def environment() -> dict[str, str]:
    """Git commit of the working tree, Python, the CPU, and the versions of the libraries that decide results."""
    mine = {"git_commit": git_commit(), "python": platform.python_version(), "cpu": _cpu()}
    return mine | _versions(ON_RECORD)


def _versions(names: Iterable[str]) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({os.cpu_count()} cores)"


def source_digest(package: Path) -> str:
    """Twelve hex digits of the SHA-256 over names and contents of a package's source files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in package.rglob(pattern)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def differences(mine: dict[str, str], theirs: dict[str, str]) -> str:
    """What differs, in words; an empty string if nothing does."""
    names = [name for name in mine if theirs.get(name) != mine[name]]
    return ", ".join(f"{name} {theirs.get(name, 'not installed')} instead of {mine[name]}" for name in names)


def git_commit(folder: Path | None = None) -> str:
    """The commit hflray runs from, with ``-dirty`` if there are changes; ``unknown`` outside a checkout."""
    command = ["git", "-C", str(folder or PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
