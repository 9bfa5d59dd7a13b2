"""Before a resume: what a kill or a full disk has done to the state that Tune saves of a sweep is mended.

Tune saves its own state every few rounds, and deletes checkpoints as newer ones come. Where rounds are quick, a driver
that is killed leaves a state whose last checkpoint is no more, and Tune would give the trial up although newer ones
are there. A checkpoint says which round it is of, so the newest takes the missing one's place, and the trial goes on
after that round (`put_back`).

Tune writes its state over the old one, so a kill may leave half of it. Such a state is set aside (`set_aside`), and
one of an earlier resume is used, if there is any. If there is none, a sweep whose trials follow from its file needs
none: each trial goes on from its own last checkpoint (`salvage`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from hflray import checkpoint
from hflray.errors import HflrayError

# What Tune writes of a sweep: `tuner.pkl` at its start, the others, again and again, with the time of that start.
TUNER = "tuner.pkl"
STATE = re.compile(
    r"(?:experiment_state|basic-variant-state|search_gen_state|searcher-state|callback-states)-(.+)\.(?:json|pkl)"
)
DAMAGED = "damaged-"  # before the name of what is set aside; Tune does not look at it
SALVAGED = "salvaged"  # in a trial's folder: the checkpoint that it goes on from without Tune's state


def set_aside(place: str, name: str) -> tuple[list[str], bool]:
    """Rename what is damaged of Tune's state of the sweep `name` in the folder or bucket `place`.

    JSON that is not whole is damaged, and so is a pickle that lacks its end; no pickle is opened. With one file of a
    start all others of it are set aside.

    Returns:
        The names of the damaged files, and whether a whole state is left to go on from.
    """
    system, root = _opened(place)
    folder = f"{root}/{name}"
    starts: dict[str, list[str]] = {}
    for info in system.get_file_info(FileSelector(folder, allow_not_found=True)):
        if found := STATE.fullmatch(info.base_name):
            starts.setdefault(found[1], []).append(info.base_name)
    damaged: list[str] = []
    whole = False
    for start in sorted(starts, reverse=True):
        hurt = [file for file in sorted(starts[start]) if not _is_whole(system, f"{folder}/{file}")]
        if not hurt:
            whole = any(file.startswith("experiment_state") for file in starts[start])
            break
        damaged += hurt
        for file in starts[start]:
            system.move(f"{folder}/{file}", f"{folder}/{DAMAGED}{file}")
    if system.get_file_info(f"{folder}/{TUNER}").type == FileType.NotFound:
        whole = False
    elif not _is_whole(system, f"{folder}/{TUNER}"):
        damaged.append(TUNER)
        system.move(f"{folder}/{TUNER}", f"{folder}/{DAMAGED}{TUNER}")
        whole = False
    if not whole and not damaged:  # an earlier resume set it aside, and ended before Tune saved anew
        names = [info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))]
        damaged = sorted(name for name in names if name.startswith(DAMAGED))
    return damaged, whole


def salvage(place: str, name: str, trials: Iterable[str]) -> None:
    """Keep the newest whole checkpoint of each trial under another name, where a trial that begins anew finds it.

    The others are removed: Tune numbers the new ones from 0, and a number must not stand for two of them.
    """
    system, root = _opened(place)
    for trial in trials:
        folder = f"{root}/{name}/{trial}"
        there = [info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))]
        saved = sorted((one for one in there if one.startswith("checkpoint_")), reverse=True)
        if not saved:
            continue
        whole = next((one for one in saved if _loads(system, f"{folder}/{one}")), None)
        if whole is not None or SALVAGED not in there:
            if SALVAGED in there:
                system.delete_dir(f"{folder}/{SALVAGED}")
            kept = f"{folder}/{whole or saved[0]}"
            copy_files(kept, f"{folder}/{SALVAGED}", source_filesystem=system, destination_filesystem=system)
        for one in saved:
            system.delete_dir(f"{folder}/{one}")


def put_back(place: str, name: str) -> list[str]:
    """Mend the sweep `name` in the folder or bucket `place`; return the trials whose checkpoint was put back."""
    from ray.tune.experiment.trial import _TrainingRunMetadata

    system, root = _opened(place)
    here = [info.path for info in system.get_file_info(FileSelector(f"{root}/{name}"))]
    states = sorted(path for path in here if path.rpartition("/")[2].startswith("experiment_state-"))
    if not states:
        return []
    with system.open_input_stream(states[-1]) as file:
        state = json.loads(file.read())
    mended = []
    for _, metadata in state["trial_data"]:
        saved = _TrainingRunMetadata.from_json_state(metadata).checkpoint_manager.latest_checkpoint_result
        if saved is None:
            continue
        folder, last = str(saved.checkpoint.path).split("/")[-2:]
        trial = f"{root}/{name}/{folder}"
        there = [info.base_name for info in system.get_file_info(FileSelector(trial, allow_not_found=True))]
        others = sorted((other for other in there if other.startswith("checkpoint_")), reverse=True)
        if last in others or not others:
            continue
        # One that the kill cut off must not take the place of all.
        whole = next((other for other in others if _loads(system, f"{trial}/{other}")), others[0])
        copy_files(f"{trial}/{whole}", f"{trial}/{last}", source_filesystem=system, destination_filesystem=system)
        mended.append(folder)
    return mended


def _opened(place: str) -> tuple[FileSystem, str]:
    return FileSystem.from_uri(place) if "://" in place else (LocalFileSystem(), place)


def _is_whole(system: FileSystem, path: str) -> bool:
    with system.open_input_stream(path) as file:
        content = file.read()
    if content.startswith(b"\x80"):  # a pickle, also in some files called .json
        return bool(content.endswith(b"."))  # the operation that ends it
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _loads(system: FileSystem, path: str) -> bool:
    from ray import tune

    if system.get_file_info(f"{path}/state").type == FileType.NotFound:
        return False
    try:
        with tune.Checkpoint(path, system).as_directory() as folder:
            checkpoint.load(Path(folder) / "state")
    except (HflrayError, OSError):
        return False
    return True
