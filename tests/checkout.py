"""The files of a checkout that git tracks, which tools copy to where nothing else is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def tracked(root: Path, *more: str) -> list[str]:
    """Return the paths of the tracked files of a checkout that are there; `more` are options of ``git ls-files``."""
    listed = subprocess.run(["git", "ls-files", "-z", *more], cwd=root, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def copy_tracked(root: Path, target: Path, *more: str) -> None:
    """Copy the tracked files of a checkout, with their present contents."""
    for name in tracked(root, *more):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, target / name)
