"""The form of every benchmark's result: a table as data, and the conditions under which it was measured."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from hflray.support.limits import available_cpus

QUIET = 0.25  # CPUs per CPU of the machine that other processes may use during a measurement
LOOK_S = 0.2  # time between two looks at the processes of a benchmark


@dataclass
class Table:
    """A table of a benchmark.

    Attributes:
        key: name of the table in the file of all tables, ``benchmark/table``.
        title: the measurement and its settings.
        columns: the key of each column in `rows`, its heading, and the format of its values; the first holds names.
        rows: one value or None for each key.
        facts: single figures besides the rows, by name.
        notes: sentences that are printed below the table.
        ratios: by name, speed divided by that of something else in the same run (another program, the bare loop without
            the measured part, or `_bare.work`). A greater ratio is better; `make bench-check` compares them.
        not_measured: the reason why the table is empty; empty if it was measured.
        failed: the reason why its figures may not be compared, which ends the run after the table; empty if they may.
    """

    key: str
    title: str
    columns: list[tuple[str, str, str]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    not_measured: str = ""
    failed: str = ""

    def add(self, row: str, **values: Any) -> None:
        """Add a row with this name and these values."""
        self.rows.append({"row": row, **values})

    def text(self) -> str:
        """Return the table as text for the screen."""
        if self.not_measured:
            return f"{self.title}\n  not measured: {self.not_measured}"
        cells = [
            ["" if row[key] is None else format(row[key], spec) for key, _, spec in self.columns] for row in self.rows
        ]
        table = pd.DataFrame(cells, columns=[heading for _, heading, _ in self.columns])
        lines = [table.to_string(index=False)] if cells else []
        notes = [*self.notes, *([f"FAILED: {self.failed}"] if self.failed else [])]
        return "\n".join([self.title, *lines, *(f"  {note}" for note in notes)])

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


def publish(tables: Iterable[Table], file: Path | None = None) -> None:
    """Print each table and its conditions as soon as it is measured, and append it to `file` as a line of JSON.

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
            surroundings.note(table)
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
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    name = found.get("model name", os.uname().machine)
    return f"{name}, family {found['cpu family']}, model {found.get('model')}" if "cpu family" in found else name


def busy_cpu_s() -> float:
    """Return the CPU seconds that this machine has worked since its start, and that its host took from it ("steal")."""
    spent = psutil.cpu_times()._asdict()
    return sum(spent.get(name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


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
        with suppress(psutil.Error):
            for process in (self._root, *self._root.children(recursive=True)):
                with suppress(psutil.Error):  # the process is just ending
                    self._cpu_s[process.pid, process.create_time()] = sum(process.cpu_times()[:2])
        return sum(self._cpu_s.values())


@dataclass
class Conditions:
    """The machine and the other work during a measurement.

    Attributes:
        machine: name of the CPU.
        cpus: number of CPUs that this process may use.
        load: load average over the minute before the start, which may be that of the benchmark before.
        others_cpus: average number of CPUs that other processes and the host used meanwhile.
    """

    machine: str
    cpus: int
    load: float
    others_cpus: float = float("nan")

    def note(self, table: Table) -> None:
        """Add the figures and a sentence to a table."""
        table.facts |= {"load": self.load, "others_cpus": self.others_cpus}
        table.notes.append(
            f"{self.machine}; {self.cpus} CPUs; load average {self.load:.1f} at the start; "
            f"other processes had {self.others_cpus:.2f} CPUs meanwhile"
        )
        if self.others_cpus > (limit := QUIET * self.cpus):
            table.notes.append(
                f"TOO BUSY: other processes had more than {limit:.1f}; do not compare these figures with others'"
            )


@contextmanager
def conditions(load: float | None = None) -> Iterator[Conditions]:
    """Measure the machine's other work while the block runs, which is all but this process and its descendants.

    Args:
        load: load average before the benchmark started any process; None: the present one.
    """
    found = Conditions(cpu_name(), len(available_cpus()), os.getloadavg()[0] if load is None else load)
    processes, ended = Processes(), threading.Event()

    def watch() -> None:
        while not ended.wait(LOOK_S):
            processes.look()

    thread = threading.Thread(target=watch, daemon=True)
    begin, busy, mine = time.perf_counter(), busy_cpu_s(), processes.look()
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
    others = busy_cpu_s() - busy - (processes.look() - mine)
    found.others_cpus = max(0.0, others) / max(time.perf_counter() - begin, 1e-9)
