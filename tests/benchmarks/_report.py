"""What benchmarks share: tables as data, and the conditions under which they were measured. Run by none by itself.

A benchmark yields `Table` objects to `publish`, which prints each one when it is there and, with ``--json FILE``,
appends it to a file as a line of JSON. `python -m tests.benchmarks` runs all of them that way.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from hflray.training.machine import available_cpus

QUIET = 0.25  # of a CPU, for each CPU that there is: what the rest of the machine may do beside a measurement


@dataclass
class Table:
    """A table of a benchmark.

    Attributes:
        title: what was measured, with the settings.
        columns: the key of each column in `rows`, its heading, and the format of its values; the first holds names.
        rows: one value or None for each key.
        facts: single figures beside the table, by name.
        notes: sentences to print below it.
        key: its name in the file of all tables, ``benchmark/what``.
        ratios: by name, how many times as fast it was as something else in the same run (another program, the bare loop
            without what is measured, or `_bare.work`). A greater one is better; `make bench-check` compares them.
        not_measured: why there is nothing in it; empty if there is.
    """

    title: str
    columns: list[tuple[str, str, str]]
    rows: list[dict[str, object]]
    facts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    key: str = ""
    ratios: dict[str, float] = field(default_factory=dict)
    not_measured: str = ""

    def text(self) -> str:
        """The table for the screen."""
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
        return "\n".join([self.title, *(lines if self.columns else ()), *(f"  {note}" for note in self.notes)])

    def json(self) -> dict[str, Any]:
        """The table as JSON has it: plain numbers, and null for what is none."""
        found: dict[str, Any] = _plain(dataclasses.asdict(self))
        return found


def _plain(value: Any) -> Any:
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
    """A parser with what every benchmark understands; `doc`: its module's docstring. For the program itself only."""
    adopt_orphans()
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not how fast it is")
    parser.add_argument("--json", type=Path, help="append the tables to this file too, a line of JSON each")
    return parser


def publish(tables: Iterable[Table], file: Path | None = None) -> None:
    """Print each table when it is there, with the conditions it was measured in; `file`: append it there as JSON."""
    left = iter(tables)
    while True:
        begin = time.perf_counter()
        with conditions() as found:
            table = next(left, None)
        if table is None:
            return
        if "load" not in table.facts and not table.not_measured:
            table.facts |= found.facts()
            table.notes += found.text().splitlines()
        print(table.text() + "\n", flush=True)
        if file is not None:
            line = table.json() | {"wall_s": round(time.perf_counter() - begin, 1)}
            with file.open("a", encoding="utf-8") as out:
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


def cpu_name() -> str:
    """The CPU as the system names it, with family and model, because virtual machines hide the rest."""
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
    """CPU seconds that this machine has worked since it started, and that its host took away from it ("steal")."""
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


def adopt_orphans() -> None:
    """Become the parent of what ended children leave behind (Ray's do), so that `own_cpu_s` counts it. Linux only."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER


def own_cpu_s() -> float:
    """CPU seconds of this process and of all below it, those that have ended and those that live."""
    spent = sum(os.times()[:4])
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:
            continue  # it has just ended
        spent += times.user + times.system + times.children_user + times.children_system
    return spent


@dataclass
class Conditions:
    """Where and beside what something was measured.

    Attributes:
        machine: the CPU.
        cpus: how many this process may use.
        load: the average over the minute before the start. After another benchmark it is that one's.
        others_cpus: CPUs that other processes (and the host) had meanwhile, on average; None while it is not over.
    """

    machine: str
    cpus: int
    load: float
    others_cpus: float | None = None

    @property
    def busy(self) -> bool:
        """Whether the rest of the machine did too much; before the end, by the load average."""
        return (self.load if self.others_cpus is None else self.others_cpus) > QUIET * self.cpus

    def facts(self) -> dict[str, float]:
        """For `Table.facts`."""
        return {"load": self.load, "others_cpus": float("nan") if self.others_cpus is None else self.others_cpus}

    def text(self) -> str:
        """What to print beside the figures."""
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
def conditions(own: Callable[[], float] = own_cpu_s, load: float | None = None) -> Iterator[Conditions]:
    """Watch the machine while the block runs.

    Args:
        own: CPU seconds so far of all that belongs to the benchmark.
        load: the load average before it started anything; None: now.
    """
    found = Conditions(cpu_name(), len(available_cpus()), os.getloadavg()[0] if load is None else load)
    begin, busy, mine = time.perf_counter(), busy_cpu_s(), own()
    yield found
    others = busy_cpu_s() - busy - (own() - mine)
    found.others_cpus = max(0.0, others) / max(time.perf_counter() - begin, 1e-9)


@contextmanager
def on_cpus(cpus: Iterable[int]) -> Iterator[None]:
    """Keep this thread, and the threads and processes it starts meanwhile, on these CPUs (where that can be done)."""
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
    """Both sides must have found the same objectives, (n,); NaN where the reference failed.

    Returns:
        The least and the greatest of ``(mine - reference) / reference``.

    Raises:
        AssertionError: mine is above the reference by more than `above`, or below it by more than `below`, relative;
            or the reference solved less than nine tenths.
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
