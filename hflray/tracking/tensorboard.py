"""TensorBoard as a tracker: event files in ``<sweep>/tensorboard/<trial>``, by tensorboardX, which Ray Tune installs.

Event files cannot be read back without TensorFlow. A run that is opened is therefore written anew from the journal.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

from tensorboardX import SummaryWriter

from hflray.tracking.sink import Ending, FolderSink, Place, Round, Run


class TensorBoardSink(FolderSink):
    """A folder of event files per run."""

    title = "TensorBoard"
    folder = "tensorboard"

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._writers: dict[str, Any] = {}

    def open(self, run: Run) -> int:
        """Begin the run's folder anew, with its configuration as a text, and return -1."""
        if (before := self._writers.pop(run.key, None)) is not None:
            before.close()
        shutil.rmtree(self._folder / run.key, ignore_errors=True)
        writer = self._writers[run.key] = SummaryWriter(str(self._folder / run.key))
        for name, text in run.artifacts.items():
            writer.add_text(
                name, "\n".join(f"    {line}" for line in text.splitlines())
            )  # as Markdown, a block of code
        return -1

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Add each metric of each round as a scalar, with the round as the step."""
        writer = self._writers[run.key]
        for round in rounds:
            for name, value in round.values.items():
                writer.add_scalar(name, value, round.number, walltime=round.time_ms / 1000)
        writer.flush()

    def end(self, run: Run, ending: Ending) -> None:
        """Close the run's file."""
        self._writers.pop(run.key).close()

    def seen_at(self) -> str:
        """Return the command that shows the runs."""
        return f"TensorBoard: tensorboard --logdir {self._folder}"
