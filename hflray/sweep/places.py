"""Functions that make the paths in a sweep file independent of the folder in which the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hflray.sweep.sections import SweepFile


def with_data_root(file: SweepFile, root: Path) -> SweepFile:
    """Return the sweep with ``data.root`` set to `root`."""
    data = dict(file.experiment.get("data") or {}) | {"root": str(root)}
    return file.model_copy(update={"experiment": file.experiment | {"data": data}})


def with_absolute_paths(file: SweepFile) -> SweepFile:
    """Return the sweep with absolute paths. Paths in a file are relative to the command's folder, not to a trial's."""

    def absolute(name: Any) -> Any:
        relative = isinstance(name, str) and name.endswith(".npz") and Path(name).exists()
        return str(Path(name).resolve()) if relative else name

    experiment, sweep = dict(file.experiment), dict(file.sweep)
    data = experiment.get("data")
    if isinstance(data, dict):
        data = dict(data)
        if "name" in data:
            data["name"] = absolute(data["name"])
        if isinstance(data.get("root"), str):
            data["root"] = str(Path(data["root"]).expanduser().resolve())
        experiment["data"] = data
    axis = sweep.get("data.name")
    if axis is not None and axis.kind in ("grid", "zip", "choice"):
        sweep["data.name"] = axis.model_copy(update={axis.kind: [absolute(name) for name in getattr(axis, axis.kind)]})
    return file.model_copy(update={"experiment": experiment, "sweep": sweep})
