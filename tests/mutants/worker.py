"""Runs the tests of one module in forks of this process, each with another mutant of the module.

A new interpreter needs seconds to import torch, Ray and Numba. This process imports them once, and every run is a fork,
which imports hflray and the tests anew from a copy of the repository. The mutant is written into the copy, so that
the working tree never holds one.
"""

from __future__ import annotations

import compileall
import contextlib
import gc
import importlib
import json
import os
import py_compile
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
OUR_OWN = ("hflray", "tests")
# The options of pyproject.toml are left out, because a fork runs its tests by itself and not in further processes.
FLAGS = (
    *("-o", "addopts=", "-m", "not slow and not cluster and not gpu", "-p", "no:xdist", "-p", "no:cacheprovider"),
    *("-x", "-q", "--tb=line", "--no-header", "--hypothesis-seed=0"),
)


@dataclass
class Outcome:
    """What became of one run of a module's tests.

    Attributes:
        result: ``survived``, ``killed`` or ``timeout``; ``error`` if no test ran.
        test: the first test that failed.
        wall_s, cpu_s: how long the run took, s.
        durations: each test's time, s.
        modules: the names of the modules that the run imported.
    """

    result: str
    test: str = ""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    durations: dict[str, float] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)


class _Plugin:
    """Runs quick tests first, leaves out those that start Ray, and writes what happened to a file."""

    def __init__(self, durations: dict[str, float], notes: Path) -> None:
        self.known, self.notes = durations, notes
        self.failed, self.durations = "", dict[str, float]()

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        with_ray = [item for item in items if "ray_session" in item.fixturenames]
        if with_ray:
            config.hook.pytest_deselected(items=with_ray)
        items[:] = [item for item in items if item not in with_ray]
        items.sort(key=lambda item: self.known.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (not collected)"

    def pytest_sessionfinish(self) -> None:
        modules = [name for name in sys.modules if name.partition(".")[0] not in OUR_OWN]
        notes = {"failed": self.failed, "durations": self.durations, "modules": modules}
        self.notes.write_text(json.dumps(notes), encoding="utf-8")


class Worker:
    """Runs tests in a copy of the repository in `folder`, one fork at a time.

    Args:
        folder: an empty or earlier folder for the copy, the kernels' cache and the logs.
        root: the repository.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.tree = folder.absolute(), folder.absolute() / "tree"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._copy(root)
        os.environ["NUMBA_CACHE_DIR"] = str(self.folder / "numba")
        os.environ["OMP_NUM_THREADS"] = "1"

    def _copy(self, root: Path) -> None:
        """Copy the files of the repository that git tracks or would, and compile them.

        The compiled files carry the hash of their source, because two mutants may have the same size and time.
        """
        shutil.rmtree(self.tree, ignore_errors=True)
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (root / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(root / name, self.tree / name)
        checked = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(self.tree, quiet=2, invalidation_mode=checked)

    def prepare(self, modules: list[str]) -> None:
        """Import the libraries of an unchanged run, so that the forks need not."""
        for name in modules:
            if name not in sys.modules and not name.startswith(("_pytest", "__")):
                try:
                    importlib.import_module(name)
                except Exception:
                    continue

    def run(
        self,
        tests: list[str],
        source: str = "",
        changed: str | None = None,
        limits_s: tuple[float, float] = (1200.0, 1200.0),
        durations: dict[str, float] | None = None,
    ) -> Outcome:
        """Run tests, with the text `changed` in place of the file `source`.

        Args:
            tests: paths of test files and folders in the repository.
            source: path of the mutated file in the repository.
            changed: the mutant's text; None: the file stays.
            limits_s: the largest wall and CPU time, s.
            durations: times of an earlier run, by which the tests are ordered.
        """
        notes, log = self.folder / "notes.json", self.folder / "last.log"
        notes.unlink(missing_ok=True)
        file, original = self.tree / source, ""
        if changed is not None:
            original = file.read_text(encoding="utf-8")
            file.write_text(changed, encoding="utf-8")
        began = time.monotonic()
        try:
            child = os.fork()
            if child == 0:
                try:
                    _run_in_fork(self.tree, tests, _Plugin(durations or {}, notes), log, changed is None, limits_s[1])
                finally:
                    os._exit(70)
            status, cpu_s = _wait(child, limits_s[0])
        finally:
            if changed is not None:
                file.write_text(original, encoding="utf-8")
            shutil.rmtree(self.tree / ".hypothesis", ignore_errors=True)
        wall_s = time.monotonic() - began
        told = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
        failed = str(told.get("failed", ""))
        if status is None or -status == signal.SIGXCPU:
            return Outcome("timeout", failed, wall_s, cpu_s)
        result = {0: "survived", 1: "killed", 2: "killed"}.get(status, "killed" if status < 0 or failed else "error")
        return Outcome(result, failed or (f"signal {-status}" if status < 0 else ""), wall_s, cpu_s,
                       told.get("durations", {}), told.get("modules", []))  # fmt: skip


def _wait(child: int, limit_s: float) -> tuple[int | None, float]:
    """Wait for a fork; return its exit code, or None if it was ended after `limit_s`, and its CPU time, s."""
    end, status = time.monotonic() + limit_s, None
    pause_s = 0.01
    while True:
        pid, code, usage = os.wait4(child, os.WNOHANG)
        if pid:
            status = os.waitstatus_to_exitcode(code)
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            break
        time.sleep(pause_s)
        pause_s = min(0.2, pause_s * 1.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests have left running
    return status, usage.ru_utime + usage.ru_stime


def _run_in_fork(tree: Path, tests: list[str], plugin: _Plugin, log: Path, unchanged: bool, cpu_s: float) -> None:
    os.setsid()
    gc.freeze()  # what belongs to the parent, such as its database, is not collected here
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(tree)
    for name in [name for name in sys.modules if name.partition(".")[0] in OUR_OWN]:
        del sys.modules[name]
    sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", str(ROOT)))]
    importlib.invalidate_caches()
    sys.dont_write_bytecode = not unchanged  # only the unchanged run leaves compiled tests for the later ones
    limit = int(cpu_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import pytest

    code = int(pytest.main([*FLAGS, *tests], plugins=[plugin]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
