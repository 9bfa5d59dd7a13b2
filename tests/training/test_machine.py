"""hflray.training.machine: the heap and a CPU for each process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from hflray.errors import ConfigError
from hflray.training import machine
from hflray.training.machine import available_cpus, keep_to, quiet_heap


def test_the_heap_can_be_configured() -> None:
    quiet_heap()


CLAIM = """
import sys
from hflray.training.machine import CpuClaim, available_cpus
claim = CpuClaim()
print(claim.cpu, *available_cpus(), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities on this platform")
def test_processes_never_share_a_claimed_cpu_and_give_it_back(monkeypatch, tmp_path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    cpus = available_cpus()

    def start() -> tuple[subprocess.Popen[str], list[str]]:
        pipe = subprocess.PIPE
        process = subprocess.Popen([sys.executable, "-c", CLAIM], stdin=pipe, stdout=pipe, text=True, env=env)
        assert process.stdout is not None
        return process, process.stdout.readline().split()

    started = [start() for _ in range(min(2, len(cpus)))]
    claimed = [answer[0] for _, answer in started]
    assert len(set(claimed)) == len(claimed)
    assert all(answer == [answer[0], answer[0]] for _, answer in started)
    if len(cpus) == len(started):  # all CPUs are claimed, so the next process is not pinned
        process, answer = start()
        assert answer == ["None", *map(str, cpus)]
        process.communicate()
    started[0][0].communicate()
    process, answer = start()
    assert answer[0] == claimed[0]
    for remaining in (process, started[-1][0]):
        remaining.communicate() if remaining.poll() is None else None


def test_a_container_may_have_less_memory_than_its_machine(tmp_path, monkeypatch) -> None:
    limit, used = tmp_path / "limit", tmp_path / "used"
    monkeypatch.setattr(machine, "MEMORY_FILES", ((str(limit), str(used)),))
    total, _ = machine.memory_bytes()
    limit.write_text("max")
    assert machine.memory_bytes()[0] == total
    limit.write_text(str(2**30))
    used.write_text(str(2**29))
    assert machine.memory_bytes() == (2**30, min(2**29, machine.memory_bytes()[1]))


KEEPS = """
import os, subprocess, sys
from hflray.training.machine import available_cpus, keep_to
kept = keep_to(1)
child = subprocess.run([sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"], capture_output=True)
print(kept == available_cpus(), len(kept), child.stdout.decode().split() == [str(cpu) for cpu in kept])
"""


def test_a_process_and_its_children_keep_to_one_cpu() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "1", "True"]


def test_the_idlest_cpus_are_kept(monkeypatch) -> None:
    samples = iter([{0: 100, 1: 100, 2: 100, 3: 100}, {0: 101, 1: 120, 2: 119, 3: 100}])
    kept = []
    monkeypatch.setattr(machine, "available_cpus", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(machine, "_idle_ticks", lambda: next(samples))
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, cpus: kept.append(tuple(cpus)))
    assert keep_to(2) == (1, 2)
    assert kept == [(1, 2)]


@pytest.mark.parametrize("count", [0, -1, 100_000])
def test_more_cpus_than_there_are_are_refused(count: int) -> None:
    before = available_cpus()
    with pytest.raises(ConfigError, match=f"--cpus: got {count}; accepted: 1 to {len(before)}"):
        keep_to(count)
    assert available_cpus() == before
