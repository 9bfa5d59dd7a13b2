"""The journal: one JSON line per event in ``<sweep>/journal/<trial>.jsonl``, written before any tracker is called.

It holds all that a run needs, so that a run does not depend on a tracker. A run's lines are ``start`` (name,
parameters, tags, texts), ``round`` (metrics, schedule, timeline), ``devices`` and ``end`` (status, error, tags).

Each line ends with its checksum ``crc32``, and a damaged line is never used. A line without one, from an older hflray,
is accepted before the first line with one. A resume appends a line ``void_from`` (`Journal.mend`): the lines from that
offset in bytes up to this line are damaged, or follow a damaged line, and the trial makes their rounds again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hflray.support.checksum import from_line, to_line
from hflray.support.files import append_line
from hflray.tracking.sink import Ending, Round, Run

if TYPE_CHECKING:
    import pandas as pd

VOID = "void_from"


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
        append_line(self.path(key), to_line(entry))

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
        """Return a run's entries, or those in the first `size` bytes of its file. Damaged lines are skipped."""
        return self._read(key, size).entries

    def lost_lines(self, key: str) -> int:
        """Return how many lines of a run are damaged and not made again.

        A last line without a newline does not count, because it may still be being written.
        """
        reading = self._read(key)
        return len([offset for offset in reading.damaged if offset != reading.tail])

    def mend(self, key: str, cut: bool = True) -> int:
        """Prepare the journal of a run that continues, and return the number of damaged lines before its last line.

        A last line that a kill has cut off is void. If `cut`, the first damaged line and all lines after it are void:
        the run then ends with its last round before the damage.

        Raises:
            OSError: the file cannot be read or written.
        """
        reading = self._read(key)
        lost = [offset for offset in reading.damaged if offset != reading.tail]
        void = lost[:1] if cut and lost else [offset for offset in reading.damaged if offset == reading.tail]
        if void:
            append_line(self.path(key), to_line({VOID: void[0]}))
        return len(lost)

    def _read(self, key: str, size: int = -1) -> _Reading:
        reading = _Reading()
        if not self.path(key).exists():
            return reading
        with self.path(key).open("rb") as file:
            content = file.read(size)
        offset, offsets, any_confirmed = 0, list[int](), False
        for line in content.split(b"\n"):
            reading.tail = offset
            try:
                entry, confirmed = from_line(line) if line else ({}, False)
                if line and not confirmed and (any_confirmed or VOID in entry):
                    raise ValueError("it has no checksum, although an earlier line has one")
                any_confirmed |= confirmed
                if VOID in entry:
                    count = len([start for start in offsets if start < entry[VOID]])
                    del reading.entries[count:], offsets[count:]
                    reading.damaged = [start for start in reading.damaged if start < entry[VOID]]
                elif line:
                    reading.entries.append(entry)
                    offsets.append(offset)
            except ValueError:
                reading.damaged.append(offset)
            offset += len(line) + 1
        return reading


@dataclass
class _Reading:
    """What a run's file holds.

    Attributes:
        entries: the entries of the lines that are whole and not void.
        damaged: the offsets in bytes of the lines that are damaged and not void.
        tail: the offset of the text after the last newline, which may still be being written.
    """

    entries: list[dict[str, Any]] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    tail: int = 0


def rounds_of(entries: list[dict[str, Any]]) -> list[Round]:
    """Return the rounds among journal entries, each once, in ascending order."""
    rounds = {e["round"]: Round(e["round"], e["time"], e["metrics"]) for e in entries if "round" in e}
    return [rounds[number] for number in sorted(rounds)]
