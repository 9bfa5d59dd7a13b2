"""The artifacts of a run, made when they are sent: the journal names only their kinds.

=============  =========================================================================================
``tables``     the tables of the journal's rounds and devices
``timeline``   the file of `hflray.tracking.timelines`
``model``      the final model, from the newest checkpoint that is not after the journal's last round
``file``       a file in the sweep's folder, whose path is relative to it
=============  =========================================================================================

A journal of an older hflray names none. A run of it that ended without an error has the first three.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from hflray.config import ExperimentConfig, validate_stored
from hflray.errors import DamagedError, DataError
from hflray.support.checkpoint import Checkpoints
from hflray.support.reader import parse_yaml
from hflray.tracking.journal import Journal, Tables
from hflray.tracking.model import FinalModel
from hflray.tracking.sink import Artifact, Files, Run
from hflray.tracking.timelines import timeline_path, write_timeline

if TYPE_CHECKING:
    from hflray.data import Dataset

KINDS = ("tables", "timeline", "model", "file")
OLD = (("tables", None), ("timeline", None), ("model", None))  # those of a run whose journal names none


def load(config: ExperimentConfig) -> Dataset | None:
    """Return the data set of a configuration, which has come with a folder, so that nothing is downloaded for it.

    Raises:
        DataError, ConfigError: see `hflray.data.load_dataset`.
    """
    from hflray.data import load_dataset
    from hflray.data.datasets import data_root, stored_at
    from hflray.data.download import FOLDERS

    name, root, split = config.data.name, data_root(config.data.root), config.data.split
    if name in FOLDERS and stored_at(name, root, split) is None:
        raise DataError(f"data.name: {name} is not in {root}; get it with hflray data get {name}, or set data.root")
    return load_dataset(config.data.name, root=config.data.root, options=config.data.options, split=split)


class Artifacts:
    """Makes the artifacts of a sweep's runs.

    Args:
        journal: the sweep's journal.
        place: where the checkpoints are, see `Checkpoints`.
        dataset: returns a run's data set; None leaves its model out.
    """

    def __init__(
        self, journal: Journal, place: str, dataset: Callable[[ExperimentConfig], Dataset | None] = load
    ) -> None:
        self._journal, self._place, self._dataset = journal, place, dataset

    def make(self, run: Run, kind: str, path: str | None) -> Artifact | None:
        """Return an artifact of a run, or None if the run has none of this kind.

        Raises:
            HflrayError, ValueError: what it is made from is missing or damaged.
            OSError: a file or the checkpoints' place cannot be read or written.
        """
        match kind:
            case "tables":
                return Files(lambda folder: Tables.of(self._journal.entries(run.key)).write(folder))
            case "timeline":
                table = timeline_path(self._journal, run.key)
                written = table if table.exists() else write_timeline(self._journal, run.key)
                return Files(lambda folder: [written]) if written is not None else None
            case "model":
                return self._model(run)
            case "file":
                sweep = self._journal.folder.parent.resolve()
                file = (sweep / str(path)).resolve()
                if file.is_relative_to(sweep) and file.is_file():
                    return Files(lambda folder: [file])
                raise DamagedError(f"{path} is no file in {sweep}")
        raise DamagedError(f"the journal names an artifact '{kind}'; known: {', '.join(KINDS)}")

    def _model(self, run: Run) -> FinalModel | None:
        saved = self._checkpoint(run.key)
        if saved is None:
            return None
        from hflray.models.problem import Problem  # torch takes a second to import

        tree = parse_yaml(run.artifacts.get("config.yaml", ""))
        config = validate_stored(ExperimentConfig, tree, "config.yaml")
        dataset = self._dataset(config)
        return None if dataset is None else FinalModel(saved, dataset, Problem.of(dataset, config))

    def _checkpoint(self, key: str) -> Callable[[], AbstractContextManager[Path]] | None:
        """Return what opens the newest checkpoint that is not after the journal's last round; None if there is none."""
        last, checkpoints = self._journal.last_round(key), Checkpoints(self._place, key)
        newest = next((round for round in checkpoints.rounds() if round <= last), None)
        if newest is not None:
            return lambda: checkpoints.open(newest)
        states = sorted((self._journal.folder.parent / key).glob("checkpoint_*/state"))  # of an older hflray
        return (lambda: nullcontext(states[-1].parent)) if states else None
