"""What is logged where: trackers for comparing, a local journal so that nothing depends on them.

One flat run per trial (nested runs hide their curves), one batch per round with the round as the step, parameters
under the configuration's own dotted names. The journal, one JSON line per round in ``<sweep>/journal/<trial>.jsonl``,
is written first and holds all that a run needs; a thread per tracker sends it on. A tracker that is away, slow or full
costs warnings, never a trial: what it missed follows when it is back, or with ``python -m hflray.tracking sync``.

`tracker` is the public face, `sink` what a tracker has to offer, `mlflow` and `csv` are trackers, `history`
reads finished runs.
"""

from hflray.provenance import environment, git_commit
from hflray.tracking.cli import main
from hflray.tracking.history import History, LoggedRun, read_histories, read_journal, read_runs
from hflray.tracking.journal import Journal, Tables
from hflray.tracking.model import FinalModel
from hflray.tracking.sink import Artifact, Ending, Files, Place, Round, Run, Sink
from hflray.tracking.tracker import SINKS, Tracker, default_uri, sync, titles

__all__ = [
    "SINKS",
    "Artifact",
    "Ending",
    "Files",
    "FinalModel",
    "History",
    "Journal",
    "LoggedRun",
    "Place",
    "Round",
    "Run",
    "Sink",
    "Tables",
    "Tracker",
    "default_uri",
    "environment",
    "git_commit",
    "main",
    "read_histories",
    "read_journal",
    "read_runs",
    "sync",
    "titles",
]
