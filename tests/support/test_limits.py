"""`hflray.support.limits`: a limit that Ray cannot live with is one line that names it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from hflray import FleetConfig, Workload, allocate_round, sample_fleet
from hflray.config.decisions import LimitsConfig
from hflray.errors import ConfigError
from hflray.support import limits
from hflray.support.limits import within


def test_a_system_without_affinities_such_as_macos_uses_every_cpu(monkeypatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert limits.available_cpus() == (0, 1, 2)
    fleet = sample_fleet(FleetConfig(num_devices=4, num_edges=1), np.random.default_rng(0))
    work = Workload(model_bits=1e6, limits=LimitsConfig(device_delay_s=1e6))
    assert allocate_round(fleet, work, [0, 3], [0, 0]).bandwidth_hz.shape == (2,)


def test_affinities_are_asked_for_in_one_place() -> None:
    package = Path(limits.__file__).parents[1]
    asking = [path for path in package.rglob("*.py") if "sched_getaffinity" in path.read_text(encoding="utf-8")]
    assert asking == [Path(limits.__file__)]


@pytest.mark.parametrize("kib, fits", [(1_500_000, False), (4_000_000, False), (4_718_592, True), (-1, True)])
def test_less_address_space_than_ray_maps_is_refused(monkeypatch, kib: int, fits: bool) -> None:
    monkeypatch.setattr(limits.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (kib * 1024 if kib > 0 else resource.RLIM_INFINITY, -1))
    if fits:
        limits.check_address_space()
        return
    with pytest.raises(ConfigError, match=rf"ulimit -v: got {kib:,} KiB .* maps 4.5 GiB; accepted: 4,718,592 or more"):
        limits.check_address_space()


def test_a_sweep_in_a_shell_with_that_limit_is_one_line(tmp_path: Path) -> None:
    kib = 400_000
    command = f'ulimit -v {kib} && exec "$0" -m hflray.tune'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: ulimit -v: got {kib:,} KiB")
    assert len((done.stdout + done.stderr).splitlines()) == 1
    assert not list(tmp_path.iterdir())


# `hflray.support.limits`: a call ends in time, with its value, with its error, or with a TimeoutError.


def test_a_call_gives_its_value_or_its_error() -> None:
    assert within(60, lambda: None) is None
    assert within(60, lambda: [1]) == [1]
    with pytest.raises(ZeroDivisionError):
        within(60, lambda: 1 // 0)


def test_a_call_that_takes_longer_is_left_alone() -> None:
    begin, stop = time.monotonic(), threading.Event()
    with pytest.raises(TimeoutError, match="no answer in 0 s"):
        within(0.1, lambda: stop.wait(60))
    assert time.monotonic() - begin < 30
    stop.set()
