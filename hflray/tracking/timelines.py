"""The timeline of a run as a table, ``<sweep>/timelines/<trial>.csv.gz``.

Only runs whose world or clock is on have one, because other rounds go as planned. A row is a device in an edge
iteration of a round, whether it counted or not. The columns are ``round`` and those of
`hflray.timeline.Timeline.table`; seconds count from the start of the round. A round in which nobody was available has
no rows.

The rows are what training has executed: those of a round are computed before it is trained, travel with its result, and
are in its line of the journal in a compressed form. The file is written as a whole when the run has ended. A kill
therefore leaves no half of it, and a round that a resumed run repeats is in it once.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hflray.support.arrays import inflated
from hflray.support.files import write
from hflray.tracking.journal import Journal

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "timelines"
MOST_NUMBERS = 50_000_000  # of all rounds; a few bytes of a journal may inflate to many


def timeline_of(entries: Sequence[dict[str, Any]]) -> pd.DataFrame | None:
    """Return the timeline of a run with these journal entries; None if it has none.

    Raises:
        ValueError: an entry is damaged.
    """
    import pandas as pd

    rounds, numbers = dict[int, dict[str, list[Any]]](), 0
    for entry in entries:
        if "timeline" in entry:
            rounds[entry["round"]] = table = inflated(entry["timeline"])
            numbers += sum(map(len, table.values()))
            if numbers > MOST_NUMBERS:
                raise ValueError(f"the timeline of a run holds more than {MOST_NUMBERS:,} numbers")
    if not rounds:
        return None
    return pd.concat([pd.DataFrame({"round": n, **rounds[n]}) for n in sorted(rounds)], ignore_index=True)


def timeline_path(journal: Journal, key: str) -> Path:
    """Return the path of a run's timeline, which need not be there."""
    return journal.folder.parent / FOLDER / f"{key}.csv.gz"


def write_timeline(journal: Journal, key: str) -> Path | None:
    """Write a run's timeline into the sweep's folder; return the path, or None if the run has no timeline.

    Raises:
        OSError: the file cannot be written.
        ValueError: the journal is damaged.
    """
    table = timeline_of(journal.entries(key))
    if table is None:
        return None
    text = table.to_csv(index=False, lineterminator="\n")
    return write(timeline_path(journal, key), gzip.compress(text.encode(), 6, mtime=0))
