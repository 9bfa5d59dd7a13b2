"""The journal: one JSON line per event in ``<sweep>/journal/<trial>.jsonl``, written before any tracker is called.

It holds all that a run needs, so that a run does not depend on a tracker. A run's lines are ``start`` (name,
parameters, tags, texts), ``round`` (metrics, schedule), ``devices`` and ``end`` (status, error, tags).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hflray.files import append_line
from hflray.tracking.sink import Ending, Round, Run

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Tables:
    """The tables of a run's rounds and devices.

    Attributes:
        rounds: a row per round with ``round`` and the glossary's metrics by name. Small fleets also have (H,) lists:
            ``devices`` (indices), ``edges``, ``bandwidth_hz``, ``cpu_hz``.
        devices: a row per device with ``device``, ``samples``, ``cluster`` (if the run clustered) and ``class/<c>``,
            the number of samples of class c. None if the run recorded no devices.
    """

    rounds: pd.DataFrame
    devices: pd.DataFrame | None = None

    def write(self, folder: Path) -> list[Path]:
        """Write ``rounds.parquet`` and, if the run recorded devices, ``devices.parquet``; return their paths."""
        named = {"rounds.parquet": self.rounds, "devices.parquet": self.devices}
        paths = []
        for name, table in named.items():
            if table is not None:
                table.to_parquet(folder / name, compression="zstd")
                paths.append(folder / name)
        return paths

    @classmethod
    def of(cls, entries: list[dict[str, Any]]) -> Tables:
        """Return the tables of a run with these journal entries."""
        import pandas as pd

        rows = {
            e["round"]: {"round": e["round"], **e["metrics"], **e.get("schedule", {})} for e in entries if "round" in e
        }
        rounds = pd.DataFrame([rows[index] for index in sorted(rows)])
        records = [entry["devices"] for entry in entries if "devices" in entry]
        if not records:
            return cls(rounds)
        last = records[-1]
        devices = pd.DataFrame({"device": range(len(last["samples"])), "samples": last["samples"]})
        if "clusters" in last:
            devices["cluster"] = last["clusters"]
        counts = np.asarray(last["class_counts"])
        classes = pd.DataFrame(counts, columns=[f"class/{c}" for c in range(counts.shape[1])])
        return cls(rounds, devices.join(classes))


class Journal:
    """A sweep's journal.

    Args:
        folder: the sweep's results folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "journal"

    def path(self, key: str) -> Path:
        """Return the path of a run's file."""
        return self.folder / f"{key}.jsonl"

    def run_keys(self) -> list[str]:
        """Return the keys of the runs that have a file, sorted."""
        return sorted(path.stem for path in self.folder.glob("*.jsonl"))

    def write(self, key: str, entry: Mapping[str, Any]) -> None:
        """Append a line to a run's file, all of it or nothing. Raises OSError: the file cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        append_line(self.path(key), json.dumps(entry, ensure_ascii=False))

    def begin(self, run: Run, time_ms: int) -> None:
        """Record the start of a run."""
        description = {name: getattr(run, name) for name in ("params", "tags", "artifacts", "dataset")}
        self.write(run.key, {"start": time_ms, "name": run.name, **description})

    def end(self, key: str, ending: Ending) -> None:
        """Record the end of a run."""
        self.write(key, {"end": ending.status, "error": ending.error, "tags": ending.tags})

    def run(self, key: str) -> Run | None:
        """Return the run of the last ``start`` line; None if there is none."""
        starts = [entry for entry in self.entries(key) if "start" in entry]
        if not starts:
            return None
        description = {name: starts[-1][name] for name in ("name", "params", "tags", "artifacts", "dataset")}
        return Run(key, **description)

    def ending(self, key: str) -> Ending | None:
        """Return how a run ended; None if it has not ended."""
        for entry in reversed(self.entries(key)):
            if "end" in entry:
                return Ending("FAILED" if entry["error"] else "FINISHED", entry["error"], dict(entry.get("tags", {})))
            if "start" in entry:
                break
        return None

    def entries(self, key: str, size: int = -1) -> list[dict[str, Any]]:
        """Return a run's entries, or those in the first `size` bytes of its file. Truncated lines are skipped."""
        entries: list[dict[str, Any]] = []
        if not self.path(key).exists():
            return entries
        with self.path(key).open("rb") as file:
            text = file.read(size).decode(errors="replace")
        for line in text.split("\n"):
            try:
                entries.append(json.loads(line))
            except ValueError:
                continue
        return entries

    def lost_lines(self, key: str) -> int:
        """Return how many lines of a run are not JSON.

        A last line without a newline does not count, because it may still be being written.
        """
        lost = 0
        for line in self.path(key).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
            try:
                json.loads(line or "{}")
            except ValueError:
                lost += 1
        return lost


def rounds_of(entries: list[dict[str, Any]]) -> list[Round]:
    """Return the rounds among journal entries, each once, in ascending order."""
    rounds = {e["round"]: Round(e["round"], e["time"], e["metrics"]) for e in entries if "round" in e}
    return [rounds[number] for number in sorted(rounds)]
