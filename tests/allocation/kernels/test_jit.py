"""A change of any file with a kernel makes the cached kernels invalid."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from filelock import FileLock

import hflray
from hflray.allocation.kernels import jit
from hflray.allocation.kernels.jit import _Index, kernel_files

COMPILES = """
import numpy as np
from numba.core import event
from hflray.allocation.kernels.bundles import Devices
from hflray.allocation.kernels.lanes import fill

class Count(event.Listener):
    seen = 0
    def on_start(self, event):
        self.seen += "hflray" in str(event.data["dispatcher"].__module__)
    def on_end(self, event):
        pass

count = Count()
event.register("numba:compile", count)
row = np.ones(3)
fill(Devices(row, row, row, row), row, row, np.empty((16, 8)).reshape(-1))
print(count.seen)
"""


def test_every_file_with_a_kernel_is_watched():
    package = Path(hflray.__file__).parent
    decorated = {path for path in package.rglob("*.py") if re.search(r"^@(vector_)?kernel\b", path.read_text(), re.M)}
    assert decorated <= set(kernel_files())
    assert {"edge.py", "state.py", "terms.py"} <= {path.name for path in decorated}
    assert (
        package / "allocation" / "newton.py" in kernel_files()
    )  # it contains the word kernel, although it has no kernel
    assert package / "allocation" / "cvxpy.py" not in kernel_files()


def compiled_by(processes: int, folder: Path | None = None, **env: str) -> list[int]:
    """Start processes at the same time in a folder, and return the number of kernels that each compiled."""
    command = [sys.executable, "-c", COMPILES]
    started = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ | env, cwd=folder
        )
        for _ in range(processes)
    ]
    return [int(process.communicate(timeout=100)[0]) for process in started]


def test_processes_that_start_together_compile_once(tmp_path) -> None:
    counts = compiled_by(3, NUMBA_CACHE_DIR=str(tmp_path))
    assert sorted(counts)[:2] == [0, 0]
    assert max(counts) >= 2  # `fill` and the kernels that it calls
    assert compiled_by(1, NUMBA_CACHE_DIR=str(tmp_path)) == [0]


def test_a_named_cache_that_others_can_change_is_refused(tmp_path) -> None:
    """Its files run as code."""
    tmp_path.chmod(0o777)
    command = [sys.executable, "-c", "import hflray.allocation.kernels.lanes"]
    done = subprocess.run(command, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert f"ConfigError: NUMBA_CACHE_DIR: {tmp_path} can be changed by everybody" in done.stderr


def test_another_checkout_with_the_same_kernels_compiles_nothing(tmp_path) -> None:
    cache, package = str(tmp_path / "cache"), Path(hflray.__file__).parent
    assert compiled_by(1, NUMBA_CACHE_DIR=cache) != [0]
    shutil.copytree(package, tmp_path / "hflray", ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    assert compiled_by(1, tmp_path, NUMBA_CACHE_DIR=cache) == [0]
    with (tmp_path / "hflray" / "allocation" / "kernels" / "lanes.py").open("a") as file:
        file.write("# Another text.\n")
    assert compiled_by(1, tmp_path, NUMBA_CACHE_DIR=cache) != [0]


def test_without_a_lock_file_each_process_compiles(tmp_path) -> None:
    cache = str(tmp_path / "cache")
    place = hashlib.sha256(cache.encode()).hexdigest()[: jit.DIGITS]
    (tmp_path / "hflray" / "kernels" / f"{place}.lock").mkdir(parents=True)  # a folder where the file would be
    counts = compiled_by(2, NUMBA_CACHE_DIR=cache, XDG_CACHE_HOME=str(tmp_path))
    assert max(counts) >= 2


SAVES = """
import sys, time
from hflray.allocation.kernels.jit import _Index
index, name = _Index(sys.argv[1], "kernel", "stamp"), sys.argv[2]
assert index.load(name) is None
write = index._save_index
index._save_index = lambda overloads: (print("writes", flush=True), time.sleep(1.0), write(overloads))
index.save(name, "code for " + name)
"""


def test_processes_that_save_code_for_two_types_at_once_both_keep_theirs(tmp_path) -> None:
    """Numba takes the next free number for a file before it writes the index, and both would take the first."""
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SAVES, str(tmp_path)]
    started = [subprocess.Popen([*command, name], env=env, stdout=subprocess.PIPE) for name in ("float", "integer")]
    assert [process.wait(60) for process in started] == [0, 0]
    index = _Index(str(tmp_path), "kernel", "stamp")
    assert [index.load(name) for name in ("float", "integer")] == ["code for float", "code for integer"]


def test_a_kernel_that_fails_to_compile_keeps_the_others_waiting_for_a_while_only(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(jit, "_lock", cache(lambda: FileLock(tmp_path / "lock", thread_local=False)))
    monkeypatch.setattr(jit, "PATIENCE_S", 0.1)
    with FileLock(tmp_path / "lock"):  # as of another process
        index = _Index(str(tmp_path), "kernel", "stamp")
        assert index.load("float") is None
        index.save("float", "code")
    assert index.load("float") == "code"
