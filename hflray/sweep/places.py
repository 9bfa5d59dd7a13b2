"""Functions that make the paths in a sweep file independent of the folder in which the command runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from hflray.errors import ConfigError
from hflray.support.text import one_line
from hflray.sweep.sections import SweepFile


def with_data_root(file: SweepFile, root: Path) -> SweepFile:
    """Return the sweep with ``data.root`` set to `root`."""
    data = file.experiment.get("data") or {}
    if not isinstance(data, dict):
        return file  # the validation of the trials says what is wrong with it
    return file.model_copy(update={"experiment": file.experiment | {"data": data | {"root": str(root)}}})


def with_absolute_paths(file: SweepFile) -> SweepFile:
    """Return the sweep with absolute paths. Paths in a file are relative to the command's folder, not to a trial's."""

    def absolute(name: Any) -> Any:
        try:
            relative = isinstance(name, str) and name.endswith(".npz") and Path(name).exists()
        except (OSError, ValueError):  # no file has such a name; the check of the data says so
            relative = False
        return str(Path(name).resolve()) if relative else name

    experiment, sweep = dict(file.experiment), dict(file.sweep)
    data = experiment.get("data")
    if isinstance(data, dict):
        data = dict(data)
        if "name" in data:
            data["name"] = absolute(data["name"])
        if isinstance(data.get("root"), str):
            try:
                data["root"] = str(Path(data["root"]).expanduser().resolve())
            except (OSError, RuntimeError, ValueError) as error:
                raise ConfigError(
                    f"data.root: got '{one_line(data['root'])}', which is no path ({error}); accepted: the path of a "
                    "folder; correct it, or remove it"
                ) from error
        experiment["data"] = data
    world = experiment.get("world")
    if isinstance(world, dict):
        world = copy.deepcopy(world)
        for part, key in (("availability", "path"), ("mobility", "path"), ("edge_failure", "trace")):
            section = world.get(part)
            section = section.get("options") if isinstance(section, dict) and key == "path" else section
            if isinstance(section, dict) and isinstance(section.get(key), str):
                section[key] = str(Path(section[key]).resolve())
        experiment["world"] = world
    axis = sweep.get("data.name")
    if axis is not None and axis.kind in ("grid", "zip", "choice"):
        sweep["data.name"] = axis.model_copy(update={axis.kind: [absolute(name) for name in getattr(axis, axis.kind)]})
    return file.model_copy(update={"experiment": experiment, "sweep": sweep})
