"""Runs the tests of one module, each time with another mutant of the module, in a copy of the repository.

The mutant is written into the copy, so that the working tree never holds one.
"""

from __future__ import annotations

import compileall
import os
import py_compile
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.checkout import copy_tracked

ROOT = Path(__file__).parents[2]
# The options of pyproject.toml are left out, because they start further processes.
FLAGS = (
    *("-o", "addopts=", "-m", "not slow and not cluster and not gpu", "-p", "no:xdist", "-p", "no:cacheprovider"),
    *("-x", "-q", "--tb=no", "--no-header", "--hypothesis-seed=0"),
)


class Outcome(NamedTuple):
    """What became of a run: ``survived``, ``killed``, ``timeout`` or ``error``, the first test that failed, and s."""

    result: str
    test: str
    wall_s: float


class Worker:
    """Runs tests in a copy of the files of the repository that git tracks or would.

    Args:
        folder: an empty or earlier folder for the copy, the kernels' cache and the last output.
        root: the repository.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.tree = folder.absolute(), folder.absolute() / "tree"
        shutil.rmtree(self.tree, ignore_errors=True)
        copy_tracked(root, self.tree, "--cached", "--others", "--exclude-standard")
        # The compiled files carry the hash of their source, because two mutants may have the same size and time.
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.tree, quiet=2, invalidation_mode=checked)

    def run(self, tests: list[str], source: str = "", changed: str | None = None, limit_s: float = 1200.0) -> Outcome:
        """Run tests without those that start Ray, with the text `changed` in place of the file `source`."""
        file, original = self.tree / source, (self.tree / source).read_text(encoding="utf-8") if source else ""
        env = os.environ | {
            "PYTHONPATH": str(self.tree), "PYTHONDONTWRITEBYTECODE": "1", "HFLRAY_TEST_WITHOUT_RAY": "1",
            "NUMBA_CACHE_DIR": str(self.folder / "numba"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if changed is not None:
            file.write_text(changed, encoding="utf-8")
        began = time.monotonic()
        try:
            with (self.folder / "last.log").open("w+b") as log:
                command = [sys.executable, "-m", "pytest", *FLAGS, *tests]
                process = subprocess.Popen(
                    command, cwd=self.tree, env=env, stdout=log, stderr=log, start_new_session=True
                )
                try:
                    code = process.wait(limit_s)
                except subprocess.TimeoutExpired:
                    code = None
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
                log.seek(0)
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", log.read().decode(errors="replace"), re.MULTILINE)
        finally:
            if changed is not None:
                file.write_text(original, encoding="utf-8")
        result = {None: "timeout", 0: "survived", 1: "killed", 2: "killed"}.get(
            code, "killed" if code is not None and code < 0 else "error"
        )
        return Outcome(result, failed[1] if failed else "", time.monotonic() - began)
