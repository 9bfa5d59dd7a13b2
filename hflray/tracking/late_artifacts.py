"""The artifacts of a run that ended in an earlier process, made again from the sweep's folder.

Artifacts wait in the driver's memory until a tracker has them. If the driver is killed before that, or the tracker
answers only days later, the tables and the timeline are made again from the journal, and the final model from the
last checkpoint.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from pathlib import Path

import yaml

from hflray.errors import HflrayError
from hflray.tracking.journal import Journal, Tables
from hflray.tracking.model import FinalModel
from hflray.tracking.sink import Artifact, Files, Run, reason
from hflray.tracking.timelines import write_timeline

log = logging.getLogger(__name__)


def remains(journal: Journal, run: Run) -> list[Artifact]:
    """Return the tables, the timeline and the final model of a run that has ended without an error.

    The model is left out with a warning if its data set or checkpoint cannot be read, and silently if the run trained
    none or its checkpoints are in a storage.
    """
    made: list[Artifact] = [Files(lambda folder: Tables.of(journal.entries(run.key)).write(folder))]
    if any("timeline" in entry for entry in journal.entries(run.key)):
        made.append(Files(lambda folder: [path for path in (write_timeline(journal, run.key),) if path is not None]))
    states = sorted((journal.folder.parent / run.key).glob("checkpoint_*/state"))
    if states:
        try:
            made.append(_model(states[-1].parent, run))
        except (HflrayError, OSError, ValueError) as error:
            log.warning("%s: its final model cannot be sent: %s", run.name, reason(error))
    return made


def _model(checkpoint: Path, run: Run) -> FinalModel:
    from hflray.config import ExperimentConfig, refuse_unpinned
    from hflray.data import load_dataset
    from hflray.models.problem import Problem

    tree = yaml.safe_load(run.artifacts["config.yaml"])
    refuse_unpinned(tree, "config.yaml")
    config = ExperimentConfig.model_validate(tree)
    dataset = load_dataset(config.data.name, root=config.data.root)
    return FinalModel(lambda: nullcontext(checkpoint), dataset, Problem.of(dataset, config))
