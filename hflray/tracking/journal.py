"""The journal: one JSON line per event in ``<sweep>/journal/<trial>.jsonl``, written before anything else hears of it.

It holds all that a run needs, so that a run depends on no tracker and on no state of Ray Tune. A run's lines are

* ``start`` (time, name, parameters, tags, texts), ``devices``, ``end`` (status, error, tags);
* ``round`` (time, metrics, the model's SHA-256, schedule, timeline);
* ``draw`` (the number and the values of a trial of a search);
* ``exchange`` (a round, the trial ``from`` which a member of a population takes its state after it, its new values, and
  the members ``among`` which states were exchanged);
* ``artifact`` (a kind of `hflray.tracking.artifacts`), before the ``end``.

Each line ends with its checksum ``crc32``. The first line that is damaged ends the journal: a resume cuts it off there
(`Journal.cut`), and the rounds after it are made again. A line without a checksum, from an older hflray, is accepted
before the first line with one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hflray.support.checksum import from_line, to_line
from hflray.support.files import append_line
from hflray.support.reader import fit, read_bytes
from hflray.tracking.schema import JournalLine
from hflray.tracking.sink import Ending, Round, Run

if TYPE_CHECKING:
    import pandas as pd

MOST_BYTES = 2**30  # of a journal


@dataclass(frozen=True)
class RunTables:
    """The tables of a run's rounds and devices.

    Attributes:
        rounds: a row per round with ``round`` and the glossary's metrics by name. Small fleets also have (H,) lists:
            ``devices`` (indices), ``edges``, ``bandwidth_hz``, ``cpu_hz``.
        devices: a row per device with ``device``, ``samples``, ``cluster`` (if the run clustered) and ``class/<c>``,
            the number of samples of class c, a number or the data's own name. None if the run recorded no devices.
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
    def of(cls, entries: list[dict[str, Any]]) -> RunTables:
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
        names = last.get("class_names") or range(counts.shape[1])
        classes = pd.DataFrame(counts, columns=[f"class/{name}" for name in names])
        return cls(rounds, devices.join(classes))


class Journal:
    """A sweep's journal.

    Args:
        folder: the sweep's results folder.
        mirror: is called with a run's key after each line, to copy it to a storage; its errors are those of `write`.
        held: says whether this process is still the only writer; no tracker hears of a run if it is not.
    """

    def __init__(
        self, folder: Path, mirror: Callable[[str], None] | None = None, held: Callable[[], bool] = lambda: True
    ) -> None:
        self.folder, self._mirror, self.held = folder / "journal", mirror, held

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
        if self._mirror is not None:
            self._mirror(key)

    def begin(self, run: Run, time_ms: int) -> None:
        """Record the start of a run."""
        description = {name: getattr(run, name) for name in ("params", "tags", "artifacts", "dataset")}
        self.write(run.key, {"start": time_ms, "name": run.name, **description})

    def end(self, key: str, ending: Ending) -> None:
        """Record the end of a run."""
        self.write(key, {"end": ending.status, "error": ending.error, "tags": ending.tags})

    def run(self, key: str) -> Run | None:
        """Return the run of the last ``start`` line; None if there is none."""
        return run_of(key, self.entries(key))

    def last_round(self, key: str) -> int:
        """Return the number of a run's last round; 0 if it has none."""
        return max((entry["round"] for entry in self.entries(key) if "round" in entry), default=0)

    def ending(self, key: str) -> Ending | None:
        """Return how a run ended; None if it has not ended."""
        return ending_of(self.entries(key))

    def rounds(self, key: str) -> list[Round]:
        """Return a run's rounds, each once, in ascending order."""
        return rounds_of(self.entries(key))

    def entries(self, key: str) -> list[dict[str, Any]]:
        """Return a run's entries up to the first damaged line."""
        return self.tail(key, 0)[0]

    def tail(self, key: str, offset: int, until: int | None = None) -> tuple[list[dict[str, Any]], int]:
        """Return a run's entries from `offset` (bytes) up to the first damaged line, and the offset after them.

        The file is read up to the offset `until`; None: up to its end.
        """
        lines, end = self._lines(key, offset, until)
        lost = _lost(lines)
        whole = [entry for _, entry in lines[: len(lines) - lost] if entry is not None]
        return whole, lines[-lost][0] if lost else end

    def lost_lines(self, key: str) -> int:
        """Return how many lines of a run are lost, from the first damaged one on."""
        return _lost(self._lines(key)[0])

    def cut(self, key: str, after: int | None = None) -> int:
        """Remove a damaged line and all after it, and a last line that a kill has cut off.

        Args:
            key: the run's key.
            after: removes everything after this round as well; 0: all rounds.

        Returns:
            How many lines were lost to damage.

        Raises:
            OSError: the file cannot be read or written.
        """
        if not self.path(key).exists():
            return 0
        lines, end = self._lines(key)
        size = self.path(key).stat().st_size
        unwanted = [start for start, entry in lines if entry is None or _is_after(entry, after)]
        keep = unwanted[0] if unwanted else end
        if keep < size:
            os.truncate(self.path(key), keep)
        return _lost(lines) + (end < size)

    def size(self, key: str) -> int:
        """Return the size of a run's file in bytes; 0 if there is none."""
        return self.path(key).stat().st_size if self.path(key).exists() else 0

    def _lines(
        self, key: str, offset: int = 0, until: int | None = None
    ) -> tuple[list[tuple[int, dict[str, Any] | None]], int]:
        """Return offset and entry of each line that ends with a newline, None if it is damaged, and where they end."""
        lines: list[tuple[int, dict[str, Any] | None]] = []
        if not self.path(key).exists():
            return lines, offset
        text = read_bytes(self.path(key), MOST_BYTES, self.folder.parent, offset, until)
        *content, _ = text.split(b"\n")  # what follows the last newline may still be being written
        any_confirmed = False
        for line in content:
            try:
                entry, confirmed = from_line(line) if line else ({}, False)
                if line and not confirmed and any_confirmed:
                    raise ValueError("it has no checksum, although an earlier line has one")
                fit(JournalLine, entry)
                any_confirmed |= confirmed
                if line:
                    lines.append((offset, entry))
            except ValueError:
                lines.append((offset, None))
            offset += len(line) + 1
        return lines, offset


def _lost(lines: Sequence[tuple[int, dict[str, Any] | None]]) -> int:
    """Return how many of these lines do not count, from the first damaged one on."""
    return len(lines) - next((number for number, (_, entry) in enumerate(lines) if entry is None), len(lines))


def _is_after(entry: Mapping[str, Any], after: int | None) -> bool:
    rounds = (entry.get("round"), entry.get("exchange"))
    return after is not None and ("end" in entry or any(number is not None and number > after for number in rounds))


def run_of(key: str, entries: Sequence[Mapping[str, Any]]) -> Run | None:
    """Return the run of the last ``start`` among journal entries; None if there is none."""
    names = ("name", "params", "tags", "artifacts", "dataset")
    start = next((entry for entry in reversed(entries) if "start" in entry), None)
    if start is None or any(name not in start for name in names):
        return None
    return Run(key, **{name: start[name] for name in names})


def ending_of(entries: Sequence[Mapping[str, Any]]) -> Ending | None:
    """Return how the run of these journal entries ended; None if it has not, or has begun again."""
    for entry in reversed(entries):
        if "end" in entry:
            error = entry.get("error")
            return Ending("FAILED" if error else "FINISHED", error, dict(entry.get("tags", {})))
        if "start" in entry or "round" in entry:
            break
    return None


def artifacts_of(entries: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str | None], None]:
    """Return the artifacts that journal entries name, by kind and path, without those of an end that was not the last.

    They are the keys of a dictionary, in their order.
    """
    named: dict[tuple[str, str | None], None] = {}
    ended = False
    for entry in entries:
        if "artifact" in entry:
            named[entry["artifact"], entry.get("path")] = None
        elif ended and ("start" in entry or "round" in entry):
            named, ended = {}, False
        ended |= "end" in entry
    return named


def rounds_of(entries: Sequence[Mapping[str, Any]]) -> list[Round]:
    """Return the rounds among journal entries, each once, in ascending order."""
    rounds = {
        e["round"]: Round(e["round"], e["time"], e["metrics"])
        for e in entries
        if e.keys() >= {"round", "time", "metrics"}
    }
    return [rounds[number] for number in sorted(rounds)]
