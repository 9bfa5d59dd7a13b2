"""Repairs of the state that Tune saves of a sweep, made before a resume after a kill or a full disk.

Tune saves its own state every few rounds, and deletes old checkpoints as newer ones are written. If rounds are quick,
the state of a killed driver may name a checkpoint that no longer exists, and Tune would give the trial up although
newer checkpoints exist. A checkpoint contains the number of its round, so the newest checkpoint is copied to the place
of the missing one, and the trial continues after that round (`put_back`).

Tune overwrites its state in place, so a kill may leave half of it. Such a state is renamed (`set_aside`), and the state
of an earlier start is used if there is one. Otherwise, if the sweep's file determines its trials, no state is needed:
each trial continues from its own last checkpoint (`salvage`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from hflray import checkpoint
from hflray.errors import HflrayError

# The files that Tune writes of a sweep: `tuner.pkl` once at its start, and the others repeatedly. The names of the
# others contain the time of that start.
TUNER = "tuner.pkl"
STATE = re.compile(
    r"(?:experiment_state|basic-variant-state|search_gen_state|searcher-state|callback-states)-(.+)\.(?:json|pkl)"
)
DAMAGED = "damaged-"  # prefix of the files that are set aside; Tune ignores such files
SALVAGED = "salvaged"  # the folder, in a trial's folder, of the checkpoint from which it continues without Tune's state


def set_aside(place: str, name: str) -> tuple[list[str], bool]:
    """Rename the damaged files of Tune's state of the sweep `name` in the folder or bucket `place`.

    A JSON file that does not parse is damaged, and so is a pickle without its last operation; no pickle is loaded. If
    one file of a start is damaged, all files of that start are set aside.

    Returns:
        The names of the damaged files, and whether a complete state remains.
    """
    system, root = _open_place(place)
    folder = f"{root}/{name}"
    starts: dict[str, list[str]] = {}
    for info in system.get_file_info(FileSelector(folder, allow_not_found=True)):
        if match := STATE.fullmatch(info.base_name):
            starts.setdefault(match[1], []).append(info.base_name)
    damaged: list[str] = []
    whole = False
    for start in sorted(starts, reverse=True):
        broken = [file for file in sorted(starts[start]) if not _is_whole(system, f"{folder}/{file}")]
        if not broken:
            whole = any(file.startswith("experiment_state") for file in starts[start])
            break
        damaged += broken
        for file in starts[start]:
            system.move(f"{folder}/{file}", f"{folder}/{DAMAGED}{file}")
    if system.get_file_info(f"{folder}/{TUNER}").type == FileType.NotFound:
        whole = False
    elif not _is_whole(system, f"{folder}/{TUNER}"):
        damaged.append(TUNER)
        system.move(f"{folder}/{TUNER}", f"{folder}/{DAMAGED}{TUNER}")
        whole = False
    if not whole and not damaged:  # an earlier resume set the state aside and ended before Tune saved a new one
        names = [info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))]
        damaged = sorted(name for name in names if name.startswith(DAMAGED))
    return damaged, whole


def salvage(place: str, sweep: str, trials: Iterable[str], logged: Mapping[str, int] | None = None) -> None:
    """Copy the newest usable checkpoint of each trial to a folder that the trial reads when it begins again.

    All numbered checkpoints are removed, because Tune numbers the new ones from 0 and the numbers must not clash.

    Args:
        place, sweep: the folder or bucket, and the sweep in it.
        trials: the trials that begin again.
        logged: the last round in each trial's journal, 0 for none; see `_newest`.
    """
    system, root = _open_place(place)
    for trial in trials:
        folder = f"{root}/{sweep}/{trial}"
        names = [info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))]
        checkpoints = sorted((name for name in names if name.startswith("checkpoint_")), reverse=True)
        if not checkpoints:
            continue
        whole, any_loads = _newest(system, folder, checkpoints, (logged or {}).get(trial))
        if whole is None and not any_loads and SALVAGED not in names:
            whole = checkpoints[0]  # the trial reports that its checkpoint is damaged
        if whole is not None:
            if SALVAGED in names:
                system.delete_dir(f"{folder}/{SALVAGED}")
            source = f"{folder}/{whole}"
            copy_files(source, f"{folder}/{SALVAGED}", source_filesystem=system, destination_filesystem=system)
        for checkpoint_name in checkpoints:
            system.delete_dir(f"{folder}/{checkpoint_name}")


def put_back(place: str, name: str, logged: Mapping[str, int] | None = None) -> list[str]:
    """Replace the missing last checkpoints of the sweep `name` in the folder or bucket `place`.

    Args:
        place, name: the folder or bucket, and the sweep in it.
        logged: the last round in each trial's journal, by the name of the trial's folder; see `_newest`.

    Returns:
        The folders' names of the trials whose checkpoint was replaced.
    """
    from ray.tune.experiment.trial import _TrainingRunMetadata

    system, root = _open_place(place)
    paths = [info.path for info in system.get_file_info(FileSelector(f"{root}/{name}"))]
    states = sorted(path for path in paths if path.rpartition("/")[2].startswith("experiment_state-"))
    if not states:
        return []
    with system.open_input_stream(states[-1]) as file:
        state = json.loads(file.read())
    repaired = []
    for _, metadata in state["trial_data"]:
        saved = _TrainingRunMetadata.from_json_state(metadata).checkpoint_manager.latest_checkpoint_result
        if saved is None:
            continue
        folder, last = str(saved.checkpoint.path).split("/")[-2:]
        trial = f"{root}/{name}/{folder}"
        names = [info.base_name for info in system.get_file_info(FileSelector(trial, allow_not_found=True))]
        checkpoints = sorted((name for name in names if name.startswith("checkpoint_")), reverse=True)
        if last in checkpoints or not checkpoints:
            continue
        # The newest checkpoint may be truncated by the kill, so the newest that loads is used.
        whole = _newest(system, trial, checkpoints, (logged or {}).get(folder))[0] or checkpoints[0]
        copy_files(f"{trial}/{whole}", f"{trial}/{last}", source_filesystem=system, destination_filesystem=system)
        repaired.append(folder)
    return repaired


def _open_place(place: str) -> tuple[FileSystem, str]:
    return FileSystem.from_uri(place) if "://" in place else (LocalFileSystem(), place)


def _is_whole(system: FileSystem, path: str) -> bool:
    with system.open_input_stream(path) as file:
        content = file.read()
    if content.startswith(b"\x80"):  # some files called .json contain a pickle
        return bool(content.endswith(b"."))  # the last operation of a pickle
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _newest(system: FileSystem, folder: str, checkpoints: Sequence[str], last: int | None) -> tuple[str | None, bool]:
    """Return the first of `checkpoints` (the newest is first) that is usable, and whether any of them loads.

    A trial saves its checkpoint before the driver has the round's result. If the driver is killed between the two, the
    newest checkpoint is one round ahead of the journal. A trial that continued from it would leave that round out, so
    a checkpoint after the `last` journalled round is not usable. None: there is no such limit.
    """
    any_loads = False
    for name in checkpoints:
        state = _load(system, f"{folder}/{name}")
        if state is not None:
            any_loads = True
            if last is None or int(state.get("round", 0)) <= last:
                return name, True
    return None, any_loads


def _load(system: FileSystem, path: str) -> dict[str, Any] | None:
    from ray import tune

    if system.get_file_info(f"{path}/state").type == FileType.NotFound:
        return None
    try:
        with tune.Checkpoint(path, system).as_directory() as folder:
            return checkpoint.load(Path(folder) / "state")
    except (HflrayError, OSError):
        return None
