"""The provenance of a result: the commit, the versions of the libraries, Python, the CPU and the GPUs.

Every run records its `environment`. `release` is the part that must be equal on all nodes of a cluster. The package's
version does not change during development, so `release` also holds a digest of the source files. It reveals a node with
an outdated checkout.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hflray import __version__

# Processes with different versions of Ray cannot communicate. The other libraries decide the low bits of a result.
EQUAL_ON_ALL_NODES = ("ray", "numpy", "scipy", "torch")
ON_RECORD = (
    "hflray", "ray", "torch", "torchvision", "numpy", "scipy", "cvxpy", "clarabel", "numba", "scikit-learn", "mlflow",
)  # fmt: skip
RULES = "2"  # the revision of the local rules, on record since SCAFFOLD's variates stay fixed in a round
PACKAGE = Path(__file__).parents[1]
SOURCES = ("*.py", "*.toml", "*.c")
NVIDIA = Path("/proc/driver/nvidia/gpus")  # the driver's folder for each GPU


@cache
def release() -> dict[str, str]:
    """Return the versions that must be equal: ``{"python": "3.11.2", "ray": "2.60.0", "hflray": "0.1.0 (3f…)", …}``."""
    versions = {"python": platform.python_version(), "hflray": f"{__version__} ({source_digest(PACKAGE)})"}
    return versions | _versions(EQUAL_ON_ALL_NODES)


@cache
def environment() -> dict[str, str]:
    """Return the git commit, Python, CPU and GPUs, and the versions of the libraries that decide results."""
    facts = {"git_commit": git_commit(), "python": platform.python_version(), "cpu": _cpu(), "rules": RULES}
    gpus = gpu_models(NVIDIA)
    return facts | ({"gpu": gpus} if gpus else {}) | _versions(ON_RECORD)


def _versions(names: Iterable[str]) -> dict[str, str]:
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name} ({os.cpu_count()} cores)"


def gpu_models(folder: Path) -> str:
    """Return the machine's GPUs, such as ``2 × NVIDIA H200``, from the files of their driver; empty without any.

    CUDA is not asked, because it shows none to a process that reserves no GPU with Ray, such as a trial.
    """
    models: Counter[str] = Counter()
    for path in sorted(folder.glob("*/information")):
        lines = path.read_text(encoding="utf-8").splitlines()
        models[next((line.partition(":")[2].strip() for line in lines if line.startswith("Model:")), "a GPU")] += 1
    return ", ".join(f"{count} × {model}" if count > 1 else model for model, count in models.items())


def source_digest(package: Path) -> str:
    """Return twelve hex digits of the SHA-256 over names and contents of a package's source files."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in SOURCES for path in package.rglob(pattern)):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0")
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def differences(expected: dict[str, str], actual: dict[str, str]) -> str:
    """Return a text that names the differing versions; it is empty if none differs."""
    names = [name for name in expected if actual.get(name) != expected[name]]
    return ", ".join(f"{name} {actual.get(name, 'not installed')} instead of {expected[name]}" for name in names)


def git_commit(folder: Path | None = None) -> str:
    """Return the commit of the checkout, with ``-dirty`` if there are changes; ``unknown`` outside a checkout."""
    command = ["git", "-C", str(folder or PACKAGE), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        done = subprocess.run([*command, "--exclude=*"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() or "unknown"
