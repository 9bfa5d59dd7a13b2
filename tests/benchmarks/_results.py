"""The file of all tables: its content, its place, and the comparison of two files.

A file is JSON: ``format``, ``commit``, ``machine`` (CPU, cores, memory, versions), ``quick``, ``bare_loops``
(of `_bare.scaling`, or null with one CPU), and ``tables``: by key, the content of `_report.Table`, with

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

from hflray.support.provenance import environment
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
        except (OSError, json.JSONDecodeError, KeyError, TypeError) as error:
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

    def measured(self, table: dict[str, Any]) -> None:
        """Store a table from a line that `_report.publish` wrote."""
        message, failed, facts = table.pop("not_measured"), table.pop("failed"), table["facts"]
        load, others = facts.pop("load", None), facts.pop("others_cpus", None)
        busy = others is not None and others > QUIET * (self.machine["cores"] or 1)
        status = "failed" if failed else "not measured" if message else "measured"
        about = {"status": status, "message": failed or message, "date": now()}
        self.tables[table.pop("key")] = about | {"load": load, "others_cpus": others, "busy": busy} | table

    def without(self, key: str, status: str, message: str) -> None:
        """Store that a table is missing, and the reason."""
        self.tables[key] = {"status": status, "message": message, "date": now(), "ratios": {}}


def compare(new: Results, old: Results) -> dict[str, list[str]]:
    """Compare the ratios of two files; seconds are not compared.

    Returns:
        Sentences by their heading: ratios that fell or rose by more than `SLOWER`, ratios and tables that one file
        lacks, tables that were measured beside other work, and all ratios that were compared.

    Raises:
        ValueError: the files are of different CPUs, or only one has the small sizes.
    """
    if new.machine["cpu"] != old.machine["cpu"]:
        raise ValueError(f"one was measured on {new.machine['cpu']}, the other on {old.machine['cpu']}")
    if new.quick != old.quick:
        raise ValueError("one has the small sizes of --quick, the other has not")
    found: dict[str, list[str]] = {name: [] for name in ("slower", "faster", "not compared", "busy", "compared")}
    for key in dict.fromkeys([*old.tables, *new.tables]):
        sides = {"new": new.tables.get(key), "old": old.tables.get(key)}
        status = {name: table["status"] if table else "not there" for name, table in sides.items()}
        found["busy"] += [f"{key} in the {name} file" for name, table in sides.items() if table and table.get("busy")]
        if set(status.values()) != {"measured"}:
            found["not compared"] += [f"{key}: {what} in the {name} file" for name, what in status.items()
                                      if what != "measured"]  # fmt: skip
            continue
        mine, theirs = new.tables[key]["ratios"], old.tables[key]["ratios"]
        for name in dict.fromkeys([*theirs, *mine]):
            before, after = theirs.get(name), mine.get(name)
            if before is None or after is None:
                found["not compared"].append(f"{key}: {name}: not in the {'old' if before is None else 'new'} file")
                continue
            change = after / before - 1
            kind = "slower" if change < -SLOWER else "faster" if change > SLOWER else "compared"
            for heading in {kind, "compared"}:
                found[heading].append(f"{key}: {name}: {before:.4g} × before, {after:.4g} × now, {change:+.0%}")
    return found
