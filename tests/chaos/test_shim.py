"""The library that breaks processes: it dies where it is told, and nowhere else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.shim import Shim, build, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")


@pytest.fixture
def shim(tmp_path) -> Shim:
    (tmp_path / "inside").mkdir()
    return Shim(build(tmp_path), tmp_path / "orders", tmp_path / "inside")


def run(shim: Shim, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process that obeys the orders; `arguments` are in sys.argv from 1 on."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    env = os.environ | shim.environment()
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


WRITE = "import sys; open(sys.argv[1], 'wb', buffering=0).write(bytes(1000)); print('alive')"


@pytest.mark.parametrize("after, size", [(False, 500), (True, 1000)])
def test_a_write_is_cut_in_half_or_is_the_last(shim, tmp_path, after: bool, size: int) -> None:
    shim.arm(1, [], after)
    done = run(shim, WRITE, tmp_path / "inside" / "file")
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "inside" / "file").stat().st_size == size
    assert shim.struck()
    assert shim.where().endswith("inside/file")


def test_changes_elsewhere_and_of_other_processes_do_not_count(shim, tmp_path) -> None:
    shim.arm(1, [], after=False)
    assert run(shim, WRITE, tmp_path / "outside").stdout == "alive\n"
    shim.arm(1, [os.getpid()], after=False)
    assert run(shim, WRITE, tmp_path / "inside" / "file").stdout == "alive\n"
    assert not shim.struck()


def test_the_nth_change_strikes_and_a_rename_is_not_made(shim, tmp_path) -> None:
    """The first change is the write, the second is the rename."""
    code = "import os, sys; open(sys.argv[1], 'wb', buffering=0).write(b'new'); os.replace(sys.argv[1], sys.argv[2])"
    target = tmp_path / "inside" / "target"
    target.write_text("old")
    shim.arm(2, [], after=False)
    assert run(shim, code, tmp_path / "inside" / "scratch", target).returncode == -signal.SIGKILL
    assert target.read_text() == "old"
    assert (tmp_path / "inside" / "scratch").read_text() == "new"
    assert shim.where().startswith("before rename")


@pytest.mark.parametrize(
    "code",
    [
        "import pyarrow.fs as f, sys; f.LocalFileSystem().open_output_stream(sys.argv[1]).write(bytes(1000))",
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('create table t (a)'); c.commit()",
        "import sys, numpy as n; from safetensors.numpy import save_file; save_file({'a': n.zeros(9)}, sys.argv[1])",
    ],
    ids=["pyarrow", "sqlite", "safetensors"],
)
def test_writes_that_no_python_code_makes_are_reached(shim, tmp_path, code: str) -> None:
    shim.arm(1, [], after=False)
    assert run(shim, code, tmp_path / "inside" / "file").returncode == -signal.SIGKILL


def test_a_full_disk_has_no_room_until_it_has(shim, tmp_path) -> None:
    code = (
        "import shutil, sys\n"
        "print(shutil.disk_usage(sys.argv[2]).free == 0)\n"
        "try: open(sys.argv[1], 'wb', buffering=0).write(b'x')\n"
        "except OSError as error: print(error.errno)\n"
    )
    arguments = (tmp_path / "inside" / "file", tmp_path / "inside")
    shim.fill(True)
    assert run(shim, code, *arguments).stdout.split() == ["True", "28"]
    shim.fill(False)
    assert run(shim, code, *arguments).stdout.split() == ["False"]


@pytest.mark.parametrize("step_s", [-86400.0, 3600.0])
def test_the_clock_is_stepped_for_python_and_waits_are_not(shim, step_s: float) -> None:
    code = (
        "import time, threading, datetime\n"
        "begin = time.monotonic(); threading.Event().wait(0.05); print(time.monotonic() - begin < 5)\n"
        "print(time.time()); print(datetime.datetime.now().timestamp())\n"
    )
    shim.step_clock(step_s)
    waited, now_s, later_s = run(shim, code).stdout.split()
    assert waited == "True"
    assert float(now_s) - time.time() == pytest.approx(step_s, abs=30)
    assert float(later_s) - float(now_s) == pytest.approx(0, abs=5)


def test_a_library_is_built_once(tmp_path) -> None:
    first = build(tmp_path).stat().st_mtime_ns
    assert build(tmp_path).stat().st_mtime_ns == first
    assert not list(Path(tmp_path).glob("shim-*"))
