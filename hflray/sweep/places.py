"""Functions that make the paths in a sweep file independent of the folder in which the command runs."""

from __future__ import annotations

from pathlib import Path

from hflray.config import absolute_paths, validate
from hflray.sweep.sections import SweepFile


def with_data_root(file: SweepFile, root: Path) -> SweepFile:
    """Return the sweep with ``data.root`` set to `root`, which replaces an axis of it."""
    data = file.experiment.get("data") or {}
    if not isinstance(data, dict):
        return file  # the validation of the trials says what is wrong with it
    axes = {key: axis for key, axis in file.sweep.items() if key != "data.root"}
    experiment = file.experiment | {"data": data | {"root": str(root)}}
    return file.model_copy(update={"experiment": experiment, "sweep": axes})


def with_absolute_paths(file: SweepFile) -> SweepFile:
    """Return the sweep with absolute paths. Those of the command line are relative to the command's folder."""
    return validate(SweepFile, absolute_paths(file.model_dump(mode="json", exclude_unset=True)))
