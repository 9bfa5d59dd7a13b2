"""Checkpoints of hflray 0.1 and 0.2, which Ray Tune kept as folders: they become files of today before a resume.

The folders were ``<sweep>/<trial>/checkpoint_<number>``, and what a task saves in them has not changed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from functools import partial
from pathlib import Path

from hflray.support.checkpoint import Checkpoints
from hflray.support.reader import read_json
from hflray.sweep.results import SweepFolder

PATTERN = "checkpoint_*"
# Where a task's folder says after which step it was saved.
STEPS = {"state/state.json": "round", "training/training.json": "env_steps"}


def adopt_older(folder: SweepFolder, trial: str) -> None:
    """Save the checkpoints of a trial that an older hflray has begun as those of today, unless it has some already.

    A folder that names no step, because it is damaged, is left out. The old folders stay.

    Raises:
        OSError: a checkpoint cannot be written.
    """
    checkpoints = Checkpoints(folder.place, trial)
    older = sorted((folder.path / trial).glob(PATTERN))
    if older and not checkpoints.rounds():
        for path in older:
            for name, key in STEPS.items():
                with suppress(OSError, ValueError, KeyError, TypeError):
                    step = int(read_json(path / name, inside=folder.path)[key])
                    checkpoints.save(step, partial(_copy, path))


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)
