"""The file of all tables: its content, its place, and the comparison of two files.

A file is JSON: ``format``, ``commit``, ``machine`` (CPU, cores, memory, versions), ``quick``, ``bare_loops``
(`_bare.Scaling`, or null with one CPU), and ``tables``: by key, the content of `_report.Table`, with

* ``status``: ``measured``, ``not measured`` or ``failed``; ``message``: the reason if it was not measured or failed;
* ``date`` in UTC; ``wall_s``; ``load`` and ``others_cpus``, as in `_report.Conditions`; ``busy``.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from hflray.support.provenance import environment, git_commit
from tests.benchmarks._bare import Scaling
from tests.benchmarks._report import QUIET, cpu_name

FORMAT = 1
KEPT = Path(__file__).parent / "results"  # the last file of each type of CPU, from which documents take their figures
SLOWER = 0.10  # the fraction by which a ratio must fall to count as slower


def slug(name: str) -> str:
    """Return the name of a CPU as the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def machine() -> dict[str, Any]:
    """Return this machine's CPU, cores, memory, system and versions."""
    found = environment()
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        **{name: value for name, value in found.items() if name not in ("git_commit", "cpu")},
    }


def now() -> str:
    """Return the present time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass
class Results:
    """The content of a file."""

    commit: str
    machine: dict[str, Any]
    quick: bool = False
    bare_loops: dict[str, float] | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def here(cls, quick: bool = False) -> Results:
        """Return results without tables, at this commit and on this machine."""
        return cls(git_commit(), machine(), quick)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Return the content of a file.

        Raises:
            ValueError: the file is not such a file, or has another format.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError(f"{path} has format {found['format']}, this program reads {FORMAT}")
            return cls(**{name: found[name] for name in ("commit", "machine", "quick", "bare_loops", "tables")})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file of benchmarks: {error!r}") from error

    def write(self, path: Path) -> None:
        """Write the file atomically: a reader sees the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT} | asdict(self), indent=1, ensure_ascii=False, sort_keys=False)
        # Each list of numbers or words is on one line, so that a changed row is one changed line.
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]", text)
        beside = path.with_suffix(".part")
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)

    def same_conditions(self, other: Results) -> bool:
        """Return whether both are of the same clean commit on the same machine, so that tables may be merged."""
        mine, theirs = ((r.commit, r.machine, r.quick) for r in (self, other))
        return mine == theirs and not self.commit.endswith("-dirty") and self.commit != "unknown"

    def loops(self, found: Scaling | None) -> None:
        """Store the speed of bare loops."""
        self.bare_loops = asdict(found) if found else None

    def measured(self, table: dict[str, Any]) -> None:
        """Store a table from a line that `_report.publish` wrote."""
        table, key = dict(table), table["key"]
        message, failed = table.pop("not_measured"), table.pop("failed", "")
        facts = table["facts"]
        load, others = facts.pop("load", None), facts.pop("others_cpus", None)
        busy = others is not None and others > QUIET * (self.machine["cores"] or 1)
        status = "failed" if failed else "not measured" if message else "measured"
        about = {"status": status, "message": failed or message, "date": now()}
        del table["key"]
        self.tables[key] = about | {"load": load, "others_cpus": others, "busy": busy} | table

    def without(self, key: str, status: str, message: str) -> None:
        """Store that a table is missing, and the reason."""
        self.tables[key] = {"status": status, "message": message, "date": now(), "ratios": {}}


@dataclass
class Comparison:
    """The differences between two files.

    Attributes:
        slower: sentences about ratios that fell by more than `SLOWER`.
        missing: sentences about tables and ratios that one file lacks.
        busy: tables that were measured beside other work in either file.
        compared: number of ratios compared.
        faster: sentences about ratios that rose by more than `SLOWER`.
    """

    slower: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    faster: list[str] = field(default_factory=list)
    compared: int = 0


def compare(new: Results, old: Results) -> Comparison:
    """Compare the ratios of two files; seconds are not compared.

    Raises:
        ValueError: the files are of different CPUs, or only one has the small sizes.
    """
    if new.machine["cpu"] != old.machine["cpu"]:
        raise ValueError(f"one was measured on {new.machine['cpu']}, the other on {old.machine['cpu']}")
    if new.quick != old.quick:
        raise ValueError("one has the small sizes of --quick, the other has not")
    found = Comparison()
    for key in [*old.tables, *(key for key in new.tables if key not in old.tables)]:
        sides = {"the new file": new.tables.get(key), "the old file": old.tables.get(key)}
        absent = []
        for name, table in sides.items():
            if table is None:
                absent.append(f"not in {name}")
            elif table["status"] != "measured":
                absent.append(f"{table['status']} in {name} ({table['message']})")
            elif table["busy"]:
                found.busy.append(f"{key}: other processes had {table['others_cpus']:.2f} CPUs in {name}")
        if absent:
            found.missing.append(f"{key}: {'; '.join(absent)}")
            continue
        mine, theirs = new.tables[key]["ratios"], old.tables[key]["ratios"]
        for name in [*theirs, *(name for name in mine if name not in theirs)]:
            before, after = theirs.get(name), mine.get(name)
            if before is None or after is None:
                found.missing.append(f"{key}: {name}: not in the {'old' if before is None else 'new'} file")
                continue
            found.compared += 1
            change = after / before - 1
            said = f"{key}: {name}: {before:.4g} × before, {after:.4g} × now, {change:+.0%}"
            if change < -SLOWER:
                found.slower.append(said)
            elif change > SLOWER:
                found.faster.append(said)
    return found
