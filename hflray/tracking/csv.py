"""CSV files as a tracker: ``<sweep>/csv/<trial>.csv``, for a spreadsheet or ``pandas.read_csv``.

A file has a row per round. Its columns are ``round`` and the metrics under their names in the glossary, in the order of
their first appearance. A cell is empty if the round has no finite value. Numbers are written so that they read back as
the same numbers.

A row is added in one write. The file always has its heading: when it is created, and when a new metric adds a column
(such as the metrics of a run's end), it is written under another name and moved into place atomically. A run that is
opened is written anew from the journal, so that a file that is lost, damaged or cut off is whole again when the sweep
is resumed, or by ``python -m hflray.tracking sync``.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hflray.support.files import append, write
from hflray.support.reader import read_bytes
from hflray.tracking.sink import Ending, FolderSink, Place, Round, Run

ROUND = "round"


class CSVSink(FolderSink):
    """A CSV file per run."""

    title = "CSV"
    folder = "csv"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._columns: dict[str, list[str]] = {}  # the columns of each open run, by key

    def open(self, run: Run) -> int:
        """Let the next rounds take the place of the run's file, and return -1."""
        self._columns[run.key] = []
        return -1

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Add a row for each round. The rows of a call are written at once."""
        path, columns = self._path(run), self._columns[run.key]
        rows = [{ROUND: round.number, **round.values} for round in rounds]
        new = dict.fromkeys(name for row in rows for name in row if name not in columns)
        if new:
            wider, earlier = [*columns, *new], read_bytes(path).decode() if columns else ""
            heading = dict(zip(wider, wider, strict=True))
            write(path, _text(wider, [heading, *csv.DictReader(io.StringIO(earlier, newline="")), *rows]))
            self._columns[run.key] = wider
        else:
            append(path, _text(columns, rows).encode(), create=False)  # a file that was removed has no heading

    def end(self, run: Run, ending: Ending) -> None:
        """Forget the run's columns. The last row has the final values already."""
        self._columns.pop(run.key, None)

    def seen_at(self) -> str:
        """Return a line that names the folder of the files."""
        return f"Rounds as CSV files: {self._folder}"

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.key}.csv"


Row = Mapping[str, str | float]


def _text(columns: Sequence[str], rows: Iterable[Row]) -> str:
    text = io.StringIO()
    csv.DictWriter(text, columns, lineterminator="\n").writerows(rows)
    return text.getvalue()
