"""tests/benchmarks/training.py still runs, on a few devices of noise; what it measures is not looked at here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("training.py")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Where Ray's sockets can be: their paths may have 107 characters."""
    folder = Path(tempfile.mkdtemp(prefix="hflray"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(900)  # of a busy machine; 25 s of a quiet one
def test_the_benchmark_runs_and_all_do_the_same_work(short_folder, tmp_path) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("HFLRAY_DATA", "RAY_ADDRESS")}
    env |= {"RAY_TMPDIR": str(short_folder), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, str(SCRIPT), "--quick", "--devices", "4", "--repeats", "1"]
    command += ["--only", "bare1,bare2,serial,actors", "--kernel", "channels_last"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    for name in ("serial (c)", "actors (d)"):
        error = re.search(rf"{re.escape(name)} +differs from bare1 \(a\) by (\S+) of the weights", done.stdout)
        assert error is not None, done.stdout
        assert float(error.group(1)) < 1e-4
    for local_iterations in (5, 1):
        assert f"L = {local_iterations}: " in done.stdout
    assert len(re.findall(r"^(?:bare1 \(a\)|bare2 \(b\)|serial \(c\)|actors \(d\)) +[\d,]+", done.stdout, re.M)) == 8
    assert len(re.findall(r"Ray's share of a round .* -?[\d.]+%", done.stdout)) == 2
    assert done.stdout.count("speed-up from one CPU to") == 2
    # Their environments would be installed from PyPI.
    assert not list((tmp_path / "hflray" / "bench").glob("flwr*"))
