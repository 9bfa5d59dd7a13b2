"""The file of all tables: what is in it, where it lies, and what got slower between two of them.

A file is JSON: ``format``, ``commit``, ``machine`` (CPU, cores, memory, versions), ``quick``, ``bare_loops``
(`_bare.Scaling`, or null with one CPU), and ``tables``: by key, what `_report.Table` holds, with

* ``status``: ``measured``, ``not measured`` or ``failed``; ``message``: why, where it was not measured or failed;
* ``date``, in UTC; ``wall_s``; ``load`` and ``others_cpus``, as `_report.Conditions`; ``busy``.
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

from hflray.provenance import environment, git_commit
from tests.benchmarks._bare import Scaling
from tests.benchmarks._report import QUIET, cpu_name

FORMAT = 1
KEPT = Path(__file__).parent / "results"  # the last file of each type of CPU; documents take their figures from here
SLOWER = 0.10  # by how much a ratio must fall to be called slower


def slug(name: str) -> str:
    """The name of a CPU as a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def machine() -> dict[str, Any]:
    """What is here."""
    found = environment()
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        **{name: value for name, value in found.items() if name not in ("git_commit", "cpu")},
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass
class Results:
    """One file's content."""

    commit: str
    machine: dict[str, Any]
    quick: bool = False
    bare_loops: dict[str, float] | None = None
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def here(cls, quick: bool = False) -> Results:
        """Nothing measured yet, at this commit on this machine."""
        return cls(git_commit(), machine(), quick)

    @classmethod
    def read(cls, path: Path) -> Results:
        """Read a file.

        Raises:
            ValueError: it is none of these files, or of another format.
        """
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            if found["format"] != FORMAT:
                raise ValueError(f"{path} has format {found['format']}, this program reads {FORMAT}")
            return cls(**{name: found[name] for name in ("commit", "machine", "quick", "bare_loops", "tables")})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file of benchmarks: {error!r}") from error

    def write(self, path: Path) -> None:
        """Write the file; whoever reads it meanwhile sees the old one or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT} | asdict(self), indent=1, ensure_ascii=False, sort_keys=False)
        # A list of numbers or words on one line, so that a change of a row is a change of one line.
        text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]", text)
        beside = path.with_suffix(".part")
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)

    def same_conditions(self, other: Results) -> bool:
        """Whether tables of both may stand in one file: one commit, without changes beside it, on one machine."""
        mine, theirs = ((r.commit, r.machine, r.quick) for r in (self, other))
        return mine == theirs and not self.commit.endswith("-dirty") and self.commit != "unknown"

    def loops(self, found: Scaling | None) -> None:
        """Keep what bare loops did."""
        self.bare_loops = asdict(found) if found else None

    def measured(self, table: dict[str, Any]) -> None:
        """Keep a table, as `_report.publish` wrote it."""
        table, key = dict(table), table["key"]
        message = table.pop("not_measured")
        facts = table["facts"]
        load, others = facts.pop("load", None), facts.pop("others_cpus", None)
        busy = others is not None and others > QUIET * (self.machine["cores"] or 1)
        about = {"status": "not measured" if message else "measured", "message": message, "date": now()}
        del table["key"]
        self.tables[key] = about | {"load": load, "others_cpus": others, "busy": busy} | table

    def without(self, key: str, status: str, message: str) -> None:
        """Keep that there is no such table, and why."""
        self.tables[key] = {"status": status, "message": message, "date": now(), "ratios": {}}


@dataclass
class Comparison:
    """What two files say of each other.

    Attributes:
        slower: sentences about ratios that fell by more than `SLOWER`.
        missing: sentences about tables and ratios that are not in both.
        busy: tables that were measured beside other work, in either.
        compared: how many ratios were.
        faster: sentences about ratios that rose by as much.
    """

    slower: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    faster: list[str] = field(default_factory=list)
    compared: int = 0


def compare(new: Results, old: Results) -> Comparison:
    """Compare ratios, never seconds.

    Raises:
        ValueError: they are of different CPUs, or a quick one and a full one.
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
