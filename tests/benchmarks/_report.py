"""Helpers of all benchmarks: tables as data, and the conditions under which they are measured.

A benchmark yields `Table` objects to `publish`, which prints each one as soon as it is measured and, with ``--json
FILE``, appends it to a file as a line of JSON. `python -m tests.benchmarks` runs all benchmarks in this way.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hflray.training.machine import available_cpus

QUIET = 0.25  # CPUs per CPU of the machine that other processes may use during a measurement


@dataclass
class Table:
    """A table of a benchmark.

    Attributes:
        title: the measurement and its settings.
        columns: the key of each column in `rows`, its heading, and the format of its values; the first holds names.
        rows: one value or None for each key.
        facts: single figures besides the rows, by name.
        notes: sentences that are printed below the table.
        key: name of the table in the file of all tables, ``benchmark/table``.
        ratios: by name, speed divided by that of something else in the same run (another program, the bare loop without
            the measured part, or `_bare.work`). A greater ratio is better; `make bench-check` compares them.
        not_measured: the reason why the table is empty; empty if it was measured.
        failed: the reason why its figures may not be compared, which ends the run after the table; empty if they may.
    """

    title: str
    columns: list[tuple[str, str, str]]
    rows: list[dict[str, object]]
    facts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    key: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    not_measured: str = ""
    failed: str = ""

    def text(self) -> str:
        """Return the table as text for the screen."""
        if self.not_measured:
            return f"{self.title}\n  not measured: {self.not_measured}"
        cells = [[heading for _, heading, _ in self.columns]]
        for row in self.rows:
            cells.append(["" if row[key] is None else format(row[key], spec) for key, _, spec in self.columns])
        widths = [max(len(line[i]) for line in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in cells
        ]
        notes = [*self.notes, *([f"FAILED: {self.failed}"] if self.failed else [])]
        return "\n".join([self.title, *(lines if self.columns else ()), *(f"  {note}" for note in notes)])

    def json(self) -> dict[str, Any]:
        """Return the table as values for JSON, with null for numbers that are not finite."""
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found


def _plain(value: Any) -> Any:
    """Return the value with plain numbers of six digits, and None for numbers that are not finite."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark; `doc` is its module's docstring. For `main` only."""
    adopt_orphans()
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast it is")
    parser.add_argument("--json", type=Path, help="append the tables to this file too, a line of JSON each")
    return parser


def publish(tables: Iterable[Table], file: Path | None = None) -> None:
    """Print each table and its conditions as soon as it is measured, and append it to `file` as JSON.

    Raises:
        AssertionError: a table that has been printed failed.
    """
    remaining = iter(tables)
    while True:
        begin = time.perf_counter()
        with conditions() as surroundings:
            table = next(remaining, None)
        if table is None:
            return
        if "load" not in table.facts and not table.not_measured:
            table.facts |= surroundings.facts()
            table.notes += surroundings.text().splitlines()
        print(table.text() + "\n", flush=True)
        if file is not None:
            line = table.json() | {"wall_s": round(time.perf_counter() - begin, 1)}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")
        if table.failed:
            raise AssertionError(table.failed)


def cpu_name() -> str:
    """Return the system's name of the CPU, with family and model, which virtual machines do not hide."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        return os.uname().machine
    if "cpu family" not in found:
        return found.get("model name", os.uname().machine)
    return f"{found.get('model name', '?')}, family {found['cpu family']}, model {found.get('model', '?')}"


def busy_cpu_s() -> float:
    """Return the CPU seconds that this machine has worked since its start, and that its host took from it ("steal")."""
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def adopt_orphans() -> None:
    """Adopt the processes that ended children (such as Ray's) leave, so that `own_cpu_s` counts them. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def own_cpu_s() -> float:
    """Return the CPU seconds of this process and of its living and ended descendants, where their parents waited."""
    spent = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue  # the process has just ended
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


class Processes:
    """A process and its descendants; ended ones keep the CPU time of the last look.

    The kernel drops the CPU time of a process whose parent does not wait for it, as Ray does not for its workers.

    Args:
        pid: id of the process; None: this one.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._root, self._cpu_s = psutil.Process(pid), dict[tuple[int, float], float]()

    def look(self) -> float:
        """Return the CPU seconds that the processes have spent so far."""
        try:
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):  # the process is just ending
                    self._cpu_s[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        except psutil.Error:
            pass
        return sum(self._cpu_s.values())


@contextmanager
def watched_cpu_s(step_s: float = 0.5) -> Iterator[Callable[[], float]]:
    """Look at this process and its descendants every `step_s` seconds; yield a function for their CPU seconds.

    Both ways to count miss something, namely the workers of Ray and what a process did after the last look, so that
    the larger figure is the better one.
    """
    processes, ended = Processes(), threading.Event()
    seen = first = processes.look()
    own = own_cpu_s()

    def watch() -> None:
        nonlocal seen
        while not ended.wait(step_s):
            seen = processes.look()

    def spent() -> float:
        return max(own_cpu_s() - own, seen - first)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield spent
    finally:
        ended.set()
        thread.join()


@dataclass
class Conditions:
    """The machine and the other work during a measurement.

    Attributes:
        machine: name of the CPU.
        cpus: number of CPUs that this process may use.
        load: load average over the minute before the start, which may be that of the benchmark before.
        others_cpus: average number of CPUs that other processes and the host used meanwhile; None before the end.
    """

    machine: str
    cpus: int
    load: float
    others_cpus: float | None = None

    @property
    def busy(self) -> bool:
        """Whether other processes used too much; before the end, the load average decides."""
        return (self.load if self.others_cpus is None else self.others_cpus) > QUIET * self.cpus

    def facts(self) -> dict[str, float]:
        """Return the figures for `Table.facts`."""
        return {"load": self.load, "others_cpus": float("nan") if self.others_cpus is None else self.others_cpus}

    def text(self) -> str:
        """Return the lines that are printed with the figures."""
        said = f"{self.machine}; {self.cpus} CPUs; load average {self.load:.1f} at the start"
        if self.others_cpus is not None:
            said += f"; other processes had {self.others_cpus:.2f} CPUs meanwhile"
        limit = f"more than {QUIET * self.cpus:.1f}"
        if self.busy:
            why = "the load average is" if self.others_cpus is None else "other processes had"
            said += f"\nTOO BUSY: {why} {limit}; do not compare these figures with others'"
        elif self.load > QUIET * self.cpus:
            said += f"\nthe load average was {limit}, but from what ran before: others did little meanwhile"
        return said


@contextmanager
def conditions(own: Callable[[], float] | None = None, load: float | None = None) -> Iterator[Conditions]:
    """Measure the machine's other work while the block runs.

    Args:
        own: returns the CPU seconds of the benchmark's processes so far; None: those of this process and its
            descendants are watched.
        load: load average before the benchmark started any process; None: the present one.
    """
    found = Conditions(cpu_name(), len(available_cpus()), os.getloadavg()[0] if load is None else load)
    with watched_cpu_s() if own is None else nullcontext(own) as spent:
        begin, busy, mine = time.perf_counter(), busy_cpu_s(), spent()
        yield found
        others = busy_cpu_s() - busy - (spent() - mine)
        found.others_cpus = max(0.0, others) / max(time.perf_counter() - begin, 1e-9)


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and the threads and processes that it starts, on these CPUs, if the system supports that."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(cpus))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_objectives(mine: np.ndarray, reference: np.ndarray, above: float, below: float) -> tuple[float, float]:
    """Check that objectives, (n,), agree with a reference's, which are NaN where the reference failed.

    Returns:
        The smallest and the largest of ``(mine - reference) / reference``.

    Raises:
        AssertionError: an objective is above the reference by more than `above`, or below it by more than `below`,
            relative; or the reference solved less than nine tenths.
    """
    solved = ~np.isnan(reference)
    if solved.mean() < 0.9:
        raise AssertionError(f"the reference solved only {solved.sum()} of {len(reference)}: no comparison")
    excess = (mine[solved] - reference[solved]) / reference[solved]
    least, most = float(excess.min()), float(excess.max())
    if not (most <= above and least >= -below):
        raise AssertionError(
            f"the objectives differ from the reference's by {least:.1e} to {most:.1e}, accepted: {-below:.0e} to "
            f"{above:.0e}: no comparison"
        )
    return least, most
