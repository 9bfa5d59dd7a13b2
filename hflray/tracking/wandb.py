"""Weights & Biases as a tracker, offline: a folder for each run in ``<sweep>/wandb``, which ``wandb sync`` sends.

hflray contacts no server of theirs. A run that is opened is written anew from the journal under the same id, so that a
run that was sent twice is one run there.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from typing import Any

from hflray.errors import ConfigError
from hflray.tracking.sink import SETTING, Ending, FolderSink, Place, Round, Run


class WandbSink(FolderSink):
    """An offline run of Weights & Biases per run.

    Raises:
        ConfigError: the package wandb is not installed.
    """

    title = "Weights & Biases"
    folder = "wandb"

    def __init__(self, place: Place) -> None:
        try:
            import wandb
        except ImportError as error:
            raise ConfigError(
                f"{SETTING}: wandb needs the package of that name ({error}); install it with pip install "
                "'hflray[wandb]', or leave it out"
            ) from error
        self._wandb, self._place = wandb, place
        super().__init__(place)
        self._runs: dict[str, Any] = {}

    def open(self, run: Run) -> int:
        """Begin the run's folder anew, with its parameters as the configuration, and return -1."""
        if (before := self._runs.pop(run.key, None)) is not None:
            before.finish()
        identity = hashlib.sha256(f"{self._place.sweep}/{run.key}".encode()).hexdigest()[:16]
        for folder in self._folder.glob(f"offline-run-*-{identity}"):
            shutil.rmtree(folder)
        self._runs[run.key] = self._wandb.init(
            project=self._place.experiment,
            group=self._place.sweep,
            name=run.name,
            id=identity,
            dir=str(self._place.folder),
            config=dict(run.params),
            tags=[],
            mode="offline",
            reinit="create_new",
            settings=self._wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        self._runs[run.key].summary.update({f"tag/{name}": text for name, text in run.tags.items()})
        return -1

    def rounds(self, run: Run, rounds: Sequence[Round]) -> None:
        """Log the metrics of each round, with the round as the step."""
        for round in rounds:
            self._runs[run.key].log(dict(round.values), step=round.number)

    def end(self, run: Run, ending: Ending) -> None:
        """Close the run, with an exit code of 1 if it has failed."""
        self._runs[run.key].summary.update(dict(ending.tags))
        self._runs.pop(run.key).finish(exit_code=1 if ending.error else 0)

    def seen_at(self) -> str:
        """Return the command that sends the runs."""
        return f"Weights & Biases, offline: wandb sync {self._folder}/offline-run-*"
