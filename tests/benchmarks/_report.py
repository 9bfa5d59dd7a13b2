"""What benchmarks share: tables as data, and the conditions under which they were measured. Run by none by itself.

A benchmark returns `Table` objects, and prints them afterwards; `dataclasses.asdict` makes JSON of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

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
    """

    title: str
    columns: list[tuple[str, str, str]]
    rows: list[dict[str, object]]
    facts: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The table for the screen."""
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


def own_cpu_s() -> float:
    """CPU seconds of this process and of its children that have ended."""
    return sum(os.times()[:4])


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
