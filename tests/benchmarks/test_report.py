"""Helpers of the benchmarks: tables, conditions of a measurement, and the check that objectives agree."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks._report import (
    Conditions,
    Table,
    check_objectives,
    conditions,
    on_cpus,
    own_cpu_s,
    publish,
    watched_cpu_s,
)


def test_a_table_is_data_and_prints_in_columns() -> None:
    columns = [("row", "", ""), ("us", "us an edge", ".1f"), ("asked", "asked", "d")]
    table = Table("times", columns, [{"row": "a", "us": 1.25, "asked": 500}, {"row": "bc", "us": 33.0, "asked": None}])
    table.notes.append("in turns")
    assert table.text().splitlines() == [
        "times",
        "    us an edge  asked",
        "a          1.2    500",
        "bc        33.0",
        "  in turns",
    ]
    assert json.loads(json.dumps(dataclasses.asdict(table)))["rows"][1]["us"] == 33.0


def test_published_tables_are_printed_and_written(tmp_path, capsys) -> None:
    columns = [("row", "", ""), ("x", "x", ".1f")]
    table = Table("times", columns, [{"row": "a", "x": np.float64(1.5)}], {"n": np.int64(3)}, key="a/b")
    table.ratios = {"a": np.float32(2.0), "b": float("nan")}
    absent = Table("others", [], [], key="a/c", not_measured="no card")
    publish(iter([table, absent]), tmp_path / "tables.jsonl")
    first, second = (json.loads(line) for line in (tmp_path / "tables.jsonl").read_text().splitlines())
    assert first["rows"] == [{"row": "a", "x": 1.5}]
    assert (first["key"], first["facts"]["n"], first["ratios"]) == ("a/b", 3, {"a": 2.0, "b": None})
    assert {"load", "others_cpus"} < set(first["facts"])
    assert second["not_measured"] == "no card"
    output = capsys.readouterr().out
    assert "a  1.5\n" in output
    assert "load average" in output
    assert output.endswith("others\n  not measured: no card\n\n")


def test_own_time_includes_living_children() -> None:
    spin = "import time\nwhile time.process_time() < 1: pass\nprint('done', flush=True)\ninput()"
    before = own_cpu_s()
    with subprocess.Popen(
        [sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        assert child.poll() is None
        assert own_cpu_s() - before > 0.9
        child.communicate("\n")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_own_time_includes_processes_that_an_ended_child_has_left() -> None:
    spin = "import time\nwhile time.process_time() < 1: pass"
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {spin!r}])"
    code = (
        "import subprocess, sys, time\n"
        "from tests.benchmarks._report import adopt_orphans, own_cpu_s\n"
        "adopt_orphans()\n"
        "before = own_cpu_s()\n"
        f"subprocess.run([sys.executable, '-c', {parent!r}], check=True)\n"
        "end = time.monotonic() + 100\n"
        "while own_cpu_s() - before < 0.9 and time.monotonic() < end: time.sleep(0.1)\n"
        "print(own_cpu_s() - before)\n"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert float(run.stdout) >= 0.9


@pytest.mark.parametrize(
    "load, others, busy, says",
    [
        (0.2, None, False, "load average 0.2"),
        (3.0, None, True, "TOO BUSY: the load average"),
        (0.2, 0.1, False, "other processes had 0.10 CPUs"),
        (0.2, 1.0, True, "TOO BUSY: other processes"),
        (2.0, 0.1, False, "from what ran before"),  # the load is that of an earlier benchmark
    ],
)
def test_a_busy_machine_is_named(load: float, others: float | None, busy: bool, says: str) -> None:
    found = Conditions("a CPU", 2, load, others)
    assert found.busy is busy
    assert says in found.text()
    assert ("TOO BUSY" in found.text()) is busy
    assert "a CPU; 2 CPUs" in found.text()


def test_only_the_work_of_other_processes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 9.0, 9.0))
    spin = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    with conditions(own=lambda: 0.0) as theirs, conditions() as ours:
        child = subprocess.Popen([sys.executable, "-c", spin])
        child.wait()  # an ended child's CPU time becomes this process's
    assert theirs.others_cpus is not None
    assert ours.others_cpus is not None
    assert theirs.load == ours.load == 1.5
    assert theirs.others_cpus > ours.others_cpus + 0.01  # the difference is at least the child's CPU time


def test_work_of_processes_that_nobody_waited_for_is_not_that_of_others() -> None:
    spin = "import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass"
    # As Ray's raylet does, the parent ignores the end of its children, whose CPU time the kernel then drops.
    parent = (
        "import signal, subprocess, sys\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()\n"
    )
    with watched_cpu_s(0.1) as spent:
        subprocess.run([sys.executable, "-c", parent, spin], check=True)
        time.sleep(0.3)  # the child has ended
        assert spent() > 1.2


def test_different_objectives_end_a_comparison() -> None:
    reference = np.array([1.0, 2.0, 4.0] * 4)
    nearly = reference * (1 - 1e-6)
    assert check_objectives(nearly, reference, 1e-7, 1e-4) == pytest.approx((-1e-6, -1e-6))
    with pytest.raises(AssertionError, match="no comparison"):
        check_objectives(reference * (1 + 1e-6), reference, 1e-7, 1e-4)
    with pytest.raises(AssertionError, match="no comparison"):
        check_objectives(reference * 0.999, reference, 1e-7, 1e-4)
    with pytest.raises(AssertionError, match="no comparison"):
        check_objectives(np.where(reference == 4, np.nan, reference), reference, 1e-7, 1e-4)
    failed = reference.copy()
    failed[0] = np.nan
    check_objectives(nearly, failed, 1e-7, 1e-4)
    failed[1] = np.nan
    with pytest.raises(AssertionError, match="solved only 10 of 12"):
        check_objectives(nearly, failed, 1e-7, 1e-4)


def test_a_process_started_on_some_cpus_stays_there() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no affinities here")
    before, seen = os.sched_getaffinity(0), []
    with on_cpus([min(before)]):
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
    assert seen == [{min(before)}]
    assert os.sched_getaffinity(0) == before
