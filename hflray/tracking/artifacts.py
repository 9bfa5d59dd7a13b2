"""The artifacts of a run, made when they are sent: the journal names only their kinds.

=============  =========================================================================================
``tables``     the tables of the journal's rounds and devices
``timeline``   what happened to each device, ``<sweep>/timelines/<trial>.csv.gz``
``model``      the final model, from the newest checkpoint that is not after the journal's last round
``file``       a file in the sweep's folder, whose path is relative to it
=============  =========================================================================================

A journal of an older hflray names none. A run of it that ended without an error has the first three.

Only runs whose world or clock is on have a timeline, because other rounds go as planned. A row is a device in an edge
iteration of a round, whether it counted or not. The columns are ``round`` and those of
`hflray.timeline.Timeline.table`; seconds count from the start of the round. A round in which nobody was available has
no rows. The rows are what training has executed: those of a round are computed before it is trained, travel with its
result, and are in its line of the journal in a compressed form. The file is written as a whole when the run has ended.
A kill therefore leaves no half of it, and a round that a resumed run repeats is in it once.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import ExperimentConfig, validate_stored
from hflray.errors import DamagedError, DataError
from hflray.support.arrays import inflated
from hflray.support.checkpoint import Checkpoints
from hflray.support.files import write
from hflray.support.reader import parse_yaml
from hflray.tracking.journal import Journal, RunTables
from hflray.tracking.sink import Artifact, Files, Run

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from hflray.data import Dataset
    from hflray.models.problem import Problem

KINDS = ("tables", "timeline", "model", "file")
OLD = (("tables", None), ("timeline", None), ("model", None))  # those of a run whose journal names none
FOLDER = "timelines"
MOST_NUMBERS = 50_000_000  # of all rounds; a few bytes of a journal may inflate to many


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
                return Files(lambda folder: RunTables.of(self._journal.entries(run.key)).write(folder))
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


@dataclass(frozen=True)
class FinalModel:
    """The global model of a checkpoint.

    Its input is the trained network's input: float32 images, scaled to [0, 1] and normalised by channel; standardised
    features; or tokens. A regression's output is in units of `Dataset.target_std` from `Dataset.target_mean`.

    Attributes:
        saved: opens the checkpoint's folder, which holds `state`. It is called when the model is sent, because the
            checkpoint may have to be fetched from a storage first.
        dataset: the training data.
        problem: what was learned, by which network.
    """

    saved: Callable[[], AbstractContextManager[str | Path]]
    dataset: Dataset
    problem: Problem

    def module(self) -> torch.nn.Module:
        """Return the network with the checkpoint's weights, in evaluation mode."""
        from hflray.models import build
        from hflray.models.vector import load_vector
        from hflray.support import checkpoint  # imported here because torch takes a second to import

        with self.saved() as folder:
            state = checkpoint.load(Path(folder) / "state")
        module = build(self.problem, state["config"]["seed"])
        load_vector(module, state["global_model"])
        return module.eval()

    def example(self) -> NDArray[np.float32] | NDArray[np.int64]:
        """Return two test inputs of the network, (2, …): float32, or int64 for tokens."""
        data = self.dataset
        if data.num_tokens is not None:
            return np.asarray(data.x_test[:2], dtype=np.int64)
        if not data.has_images:  # features are standardised already
            return np.asarray(data.x_test[:2], dtype=np.float32)
        mean, std = (v.reshape(1, -1, 1, 1) for v in (data.channel_mean, data.channel_std))
        return np.asarray(((data.x_test[:2] / np.float32(255)) - mean) / std, dtype=np.float32)

    def write(self, folder: Path) -> list[Path]:
        """Write the network's weights by name to ``model.safetensors``; return its path in a list."""
        from safetensors.torch import save_file

        path = folder / "model.safetensors"
        save_file(self.module().state_dict(), path)
        return [path]


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
