"""A change of any file with a kernel makes the cached kernels invalid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hflray
from hflray.allocation import COMPILE, compile_soon
from hflray.allocation.kernels.jit import _Index, kernel_files
from hflray.config import AllocationConfig
from tests.conftest import own_module

COMPILES = own_module("compiles")


def test_every_file_with_a_kernel_is_watched():
    package = Path(hflray.__file__).parent
    decorated = {path for path in package.rglob("*.py") if re.search(r"^@(vector_)?kernel\b", path.read_text(), re.M)}
    assert decorated <= set(kernel_files())
    assert {"edge.py", "state.py", "lanes.py"} <= {path.name for path in decorated}
    assert package / "allocation" / "__init__.py" in kernel_files()  # it has the word kernel, although it has none
    assert package / "allocation" / "cvxpy.py" not in kernel_files()


def compiled(folder: Path | None = None, **env: str) -> int:
    """Return the number of kernels that a process in a folder compiles."""
    command = [sys.executable, "-c", COMPILES]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | env, cwd=folder, check=True)
    return int(done.stdout)


def test_a_named_cache_that_others_can_change_is_refused(tmp_path) -> None:
    """Its files run as code."""
    tmp_path.chmod(0o777)
    command = [sys.executable, "-c", "import hflray.allocation.kernels.lanes"]
    done = subprocess.run(command, env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}, capture_output=True, text=True)
    assert f"ConfigError: NUMBA_CACHE_DIR: {tmp_path} can be changed by everybody" in done.stderr


def test_another_checkout_with_the_same_kernels_compiles_nothing(tmp_path) -> None:
    cache, package = str(tmp_path / "cache"), Path(hflray.__file__).parent
    assert compiled(NUMBA_CACHE_DIR=cache) >= 2  # `fill` and the kernels that it calls
    shutil.copytree(package, tmp_path / "hflray", ignore=shutil.ignore_patterns("__pycache__", "vendor"))
    assert compiled(tmp_path, NUMBA_CACHE_DIR=cache) == 0
    with (tmp_path / "hflray" / "allocation" / "kernels" / "lanes.py").open("a") as file:
        file.write("# Another text.\n")
    assert compiled(tmp_path, NUMBA_CACHE_DIR=cache) >= 2


@pytest.mark.parametrize(
    ("kept", "setting", "starts"),
    [
        (False, {}, 1),
        (True, {}, 0),  # the disk has them
        (False, {"method": "equal"}, 0),  # it needs no kernel
        (False, {"coupling": "joint"}, 0),  # it needs others
    ],
)
def test_kernels_are_compiled_in_the_background_if_they_are_needed_and_missing(monkeypatch, kept, setting, starts):
    begun: list[list[str]] = []
    monkeypatch.setattr("hflray.allocation.kernels.jit.is_kept", lambda function: kept)
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: begun.append(command))
    compile_soon(AllocationConfig(**setting))
    assert begun == [[sys.executable, "-P", "-c", COMPILE]] * starts


def test_the_process_in_the_background_imports_no_file_of_the_folder_it_runs_in(tmp_path, monkeypatch) -> None:
    """The folder may be a stranger's."""
    for name in ("numpy", "hflray"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close(); raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hflray.allocation.kernels.jit.is_kept", lambda function: False)
    begun: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **options: begun.append(start(*a, **options)) or begun[-1])
    compile_soon(AllocationConfig())
    assert [process.wait() for process in begun] == [0]
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_the_process_in_the_background_leaves_nothing_to_compile(tmp_path) -> None:
    kept = "from hflray.allocation.kernels.jit import is_kept; from hflray.allocation.newton import *; "
    kept += "print(is_kept(allocate_in_one_call))"
    listens, env = COMPILES.partition("fill(")[0], os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    answers = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True).stdout.strip()
        for code in (kept, COMPILE, kept, f"{listens}\n{COMPILE}\nprint(count.seen)")
    ]
    assert answers == ["False", "", "True", "0"]


def test_processes_that_save_code_for_two_types_at_once_never_get_each_others(tmp_path, monkeypatch) -> None:
    """Numba takes the next free number for a file before it writes the index, and both would take the first."""
    here, there = (_Index(str(tmp_path), "kernel", "stamp") for _ in range(2))
    write = here._save_index

    def meanwhile(overloads):
        there.save("integer", "code for integer")
        write(overloads)

    monkeypatch.setattr(here, "_save_index", meanwhile)
    here.save("float", "code for float")
    index = _Index(str(tmp_path), "kernel", "stamp")
    assert index.load("float") == "code for float"
    assert index.load("integer") in (None, "code for integer")  # it may be compiled again
    index.save("integer", "code for integer")
    assert [index.load(name) for name in ("float", "integer")] == ["code for float", "code for integer"]
    assert _Index(str(tmp_path), "kernel", "stamp of other sources").load("float") is None
