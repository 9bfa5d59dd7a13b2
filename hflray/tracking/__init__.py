"""Logging: trackers for comparing runs, and a local journal so that a sweep does not depend on a tracker.

Each trial is one flat run (nested runs hide their curves). Each round is logged as one batch with the round as the
step, and parameters have the configuration's dotted names. The journal, one JSON line per round in
``<sweep>/journal/<trial>.jsonl``, is written first and holds all that a run needs. One thread per tracker sends it on.
A tracker that is unreachable, slow or full causes warnings and never fails a trial. The missed rounds are sent when it
answers again, or by ``python -m hflray.tracking sync``.

`tracker` is the public interface, `sink` is the protocol of a tracker, `mlflow` and `csv` are trackers, `artifacts`
makes what is stored with a run, and `history` reads finished runs.
"""

from hflray.tracking.artifacts import FinalModel
from hflray.tracking.cli import main
from hflray.tracking.history import History, read_journal, run_ids_of
from hflray.tracking.journal import Journal, RunTables
from hflray.tracking.sink import Artifact, Ending, Files, Place, Round, Run, Sink
from hflray.tracking.tracker import SINKS, Tracker, default_uri, sync, titles, try_sinks

__all__ = [
    "SINKS", "Artifact", "Ending", "Files", "FinalModel", "History", "Journal", "Place", "Round", "Run",
    "RunTables", "Sink", "Tracker", "default_uri", "main", "read_journal", "run_ids_of", "sync",
    "titles", "try_sinks",
]  # fmt: skip
