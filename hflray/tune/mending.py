"""Repairs of the state that Tune saves of a sweep, made before a resume after a kill or a full disk.

Tune saves its own state every few rounds, and deletes old checkpoints as newer ones are written. If rounds are quick,
the state of a killed driver may name a checkpoint that no longer exists, and Tune would give the trial up although
newer checkpoints exist. A checkpoint contains the number of its round, so the newest checkpoint is copied to the place
of the missing one, and the trial continues after that round (`put_back`).

Tune overwrites its state in place, so a kill may leave half of it. Such a state is renamed (`set_aside`), and the state
of an earlier start is used if there is one. Otherwise, if the sweep's file determines its trials, no state is needed:
each trial continues from its own last checkpoint (`salvage`). The same holds for a state whose digest this user has not
recorded (`hflray.tune.digests`), because it may come from a stranger and Tune would unpickle it. A search or a
population keeps its ended trials and starts the others anew (`hflray.tune.lost_state`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from hflray.errors import ConfigError, HflrayError
from hflray.support.checksum import digest
from hflray.support.ray_private import last_result
from hflray.sweep.results import SweepFolder
from hflray.tracking.journal import Journal, rounds_of
from hflray.tune.digests import STATE, TUNER, TuneDigests
from hflray.tune.lost_state import give_up

DAMAGED = "damaged-"  # prefix of the files that are set aside; Tune ignores such files
SALVAGED = "salvaged"  # the folder, in a trial's folder, of the checkpoint from which it continues without Tune's state

StepOf = Callable[[Path], int]  # `Task.saved_step`


def mend(folder: SweepFolder, say: Callable[[str], None], trust: bool = False) -> tuple[TuneDigests, bool]:
    """Set the damaged and foreign files of Tune's state of a sweep aside before a resume.

    Args:
        folder: the sweep.
        say: prints a line.
        trust: whether Tune may read its files although they do not carry this user's seal.

    Returns:
        The record of Tune's files, and whether a complete state of Tune remains from which the sweep can continue.

    Raises:
        ConfigError: a search or a population does not carry this user's seal.
    """
    tune = folder.file.tune
    method = "search" if tune.search else "population" if tune.population else None
    place, name = place_of(folder), folder.path.name
    own = trust or folder.is_mine()
    if not own and method:
        raise ConfigError(
            f"{folder.path}: sweep.json carries no seal of this user, so Ray Tune's pickles, without which a {method} "
            "cannot go on, are not opened, because a stranger's pickle runs code; if the folder is yours, go on with "
            f"--resume {name} --trust (docs/recovery.md); else see its rounds with python -m hflray.report {name}"
        )
    digests = TuneDigests.load(folder.path) if own else TuneDigests(folder.path)
    damaged, whole = set_aside(place, name, None if trust else digests.known)
    if damaged and own:
        problem = f"Ray Tune's state ({', '.join(damaged)} in {place}/{name}) is damaged and set aside"
        source = f"the {method}'s ended trials" if method else "the trials' own checkpoints"
        say(f"{problem}; going on from {'the one before' if whole else source}")
    elif damaged:
        say(
            f"sweep.json of {name} carries no seal of this user, so Ray Tune's pickles ({', '.join(damaged)}) are set "
            "aside unread; going on from the trials' own checkpoints"
        )
    journal = Journal(folder.path)
    logged, ended = {}, set()
    for key in journal.run_keys():
        lost = journal.mend(key, cut=method is None)
        logged[key] = max((round.number for round in rounds_of(journal.entries(key))), default=0)
        if journal.ending(key) is not None:
            ended.add(key)
        if lost and method:
            say(f"{key}: {lost} lines of its journal are damaged; their rounds are missing from its tables")
        elif lost:
            whole = False
            say(f"{key}: {lost} lines of its journal are damaged; its rounds after {logged[key]} are made again")
    if method and not whole:
        stay, lost = give_up(journal)
        if lost:
            say(
                f"a {method} needs Ray Tune's state for trials that have not ended: {stay} ended trials are kept, and "
                f"{lost} of the others had begun and are given up; new trials take their place"
            )
    if whole and not method and (ahead := unlogged(place, name, logged, ended)):
        whole = False
        say(f"{', '.join(ahead)}: the journal lacks rounds that Ray Tune has; they are made again")
    return digests, whole


def place_of(folder: SweepFolder) -> str:
    """Return the folder or bucket in which Tune keeps a sweep."""
    return folder.storage or str(folder.path.parent)


def set_aside(place: str, name: str, accepted: Mapping[str, Sequence[str]] | None = None) -> tuple[list[str], bool]:
    """Rename the damaged files of Tune's state of the sweep `name` in the folder or bucket `place`.

    No pickle is loaded. If one file of a start is damaged or missing, all files of that start are set aside.

    Args:
        place, name: the folder or bucket, and the sweep in it.
        accepted: the digests that each file may have, by the file's name. Any other content counts as damaged. None:
            all contents are trusted; a JSON file that does not parse is damaged, and so is a pickle without its last
            operation.

    Returns:
        The names of the damaged files, and whether a complete state remains.
    """
    system, root = _open_place(place)
    folder = f"{root}/{name}"
    names = {info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))}
    starts: dict[str, set[str]] = {}
    for file in names:
        if match := STATE.fullmatch(file):
            starts.setdefault(match[1], set()).add(file)
    damaged: list[str] = []
    whole = False
    for start, present in sorted(starts.items(), reverse=True):
        expected = {file for file in accepted or () if (match := STATE.fullmatch(file)) and match[1] == start}
        broken = [
            file
            for file in sorted(present | expected)
            if not _is_whole(system, f"{folder}/{file}", _of(accepted, file))
        ]
        if not broken:
            # Tune would make all trials once more if it had their states without the state of their generator.
            whole |= any(file.startswith("experiment_state") for file in present) and len(present) > 1
            continue
        damaged += broken
        for file in sorted(present):
            system.move(f"{folder}/{file}", f"{folder}/{DAMAGED}{file}")
    if TUNER not in names:
        damaged += [TUNER] if accepted and TUNER in accepted else []
        whole = False
    elif not _is_whole(system, f"{folder}/{TUNER}", _of(accepted, TUNER)):
        damaged.append(TUNER)
        system.move(f"{folder}/{TUNER}", f"{folder}/{DAMAGED}{TUNER}")
        whole = False
    if not whole and not damaged:  # an earlier resume set the state aside and ended before Tune saved a new one
        damaged = sorted(file for file in names if file.startswith(DAMAGED))
        damaged = damaged or sorted(file for file in accepted or () if STATE.fullmatch(file))  # all were removed
    return damaged, whole


def salvage(
    place: str, sweep: str, trials: Iterable[str], step_of: StepOf, logged: Mapping[str, int] | None = None
) -> None:
    """Copy the newest usable checkpoint of each trial to a folder that the trial reads when it begins again.

    All numbered checkpoints are removed, because Tune numbers the new ones from 0 and the numbers must not clash.

    Args:
        place, sweep: the folder or bucket, and the sweep in it.
        trials: the trials that begin again.
        step_of: returns the step of a checkpoint's folder, see `Task.saved_step`.
        logged: the last round in each trial's journal, 0 for none; see `_newest`.
    """
    system, root = _open_place(place)
    for trial in trials:
        folder = f"{root}/{sweep}/{trial}"
        names = [info.base_name for info in system.get_file_info(FileSelector(folder, allow_not_found=True))]
        checkpoints = sorted((name for name in names if name.startswith("checkpoint_")), reverse=True)
        last = (logged or {}).get(trial)
        whole, any_loads = _newest(system, folder, checkpoints, step_of, last)
        if SALVAGED in names and (
            whole is not None or _newest(system, folder, [SALVAGED], step_of, last) == (None, True)
        ):
            system.delete_dir(f"{folder}/{SALVAGED}")  # an earlier resume made it; its rounds may be damaged since
        elif whole is None and checkpoints and not any_loads and SALVAGED not in names:
            whole = checkpoints[0]  # the trial reports that its checkpoint is damaged
        if whole is not None:
            source = f"{folder}/{whole}"
            copy_files(source, f"{folder}/{SALVAGED}", source_filesystem=system, destination_filesystem=system)
        for checkpoint_name in checkpoints:
            system.delete_dir(f"{folder}/{checkpoint_name}")


def unlogged(place: str, name: str, logged: Mapping[str, int], ended: Collection[str]) -> list[str]:
    """Return the trials of which Tune's newest state has more than the journal, which is written first.

    The journal was therefore damaged or removed. Tune must not continue from this state, because the rounds between the
    two would be missing.

    Args:
        place, name: the folder or bucket, and the sweep in it. Its state is complete.
        logged: the last round in each trial's journal.
        ended: the trials that have ended according to the journal.
    """
    names = []
    for trial, last, step in _saved_trials(place, name):
        config = trial["config"]["values"]
        key = str(config.get("name", ""))
        if key and ((trial["status"] == "TERMINATED" and key not in ended) or (last and step > logged.get(key, 0))):
            names.append(key)
    return sorted(names)  # Tune's state lists the trials in the order in which they ended


def _saved_trials(place: str, name: str) -> Iterator[tuple[dict[str, Any], str | None, int]]:
    """Yield each trial of Tune's newest state: its state, the path of its last checkpoint, and that one's step."""
    system, root = _open_place(place)
    paths = [info.path for info in system.get_file_info(FileSelector(f"{root}/{name}"))]
    states = sorted(path for path in paths if path.rpartition("/")[2].startswith("experiment_state-"))
    if not states:
        return
    with system.open_input_stream(states[-1]) as file:
        state = json.loads(file.read())
    for trial, metadata in state["trial_data"]:
        saved = last_result(metadata)
        path, values = (None, {}) if saved is None else (str(saved.checkpoint.path), saved.metrics)
        yield json.loads(trial), path, int(values.get("round", 0))


def put_back(place: str, name: str, step_of: StepOf, logged: Mapping[str, int] | None = None) -> list[str]:
    """Replace the missing last checkpoints of the sweep `name` in the folder or bucket `place`.

    Args:
        place, name: the folder or bucket, and the sweep in it.
        step_of: returns the step of a checkpoint's folder, see `Task.saved_step`.
        logged: the last round in each trial's journal, by the name of the trial's folder; see `_newest`.

    Returns:
        The folders' names of the trials whose checkpoint was replaced.
    """
    system, root = _open_place(place)
    repaired = []
    for _, path, _ in _saved_trials(place, name):
        if path is None:
            continue
        folder, last = path.split("/")[-2:]
        trial = f"{root}/{name}/{folder}"
        names = [info.base_name for info in system.get_file_info(FileSelector(trial, allow_not_found=True))]
        checkpoints = sorted((name for name in names if name.startswith("checkpoint_")), reverse=True)
        if last in checkpoints or not checkpoints:
            continue
        # The newest checkpoint may be truncated by the kill, so the newest that loads is used.
        whole = _newest(system, trial, checkpoints, step_of, (logged or {}).get(folder))[0] or checkpoints[0]
        copy_files(f"{trial}/{whole}", f"{trial}/{last}", source_filesystem=system, destination_filesystem=system)
        repaired.append(folder)
    return repaired


def read_tuner(place: str, name: str) -> bytes:
    """Return the content of ``tuner.pkl`` of the sweep `name` in `place`. Raises OSError: it cannot be read."""
    system, root = _open_place(place)
    with system.open_input_stream(f"{root}/{name}/{TUNER}") as file:
        return bytes(file.read())


def _open_place(place: str) -> tuple[FileSystem, str]:
    return FileSystem.from_uri(place) if "://" in place else (LocalFileSystem(), place)


def _of(accepted: Mapping[str, Sequence[str]] | None, file: str) -> Sequence[str] | None:
    return None if accepted is None else accepted.get(file, ())


def _is_whole(system: FileSystem, path: str, digests: Sequence[str] | None) -> bool:
    """Return whether a file can be read and has one of these digests, or, if there are none, is whole by its form."""
    try:
        with system.open_input_stream(path) as file:
            content = file.read()
    except OSError:
        return False
    if digests is not None:
        return digest(content) in digests
    if content.startswith(b"\x80"):  # some files called .json contain a pickle
        return bool(content.endswith(b"."))  # the last operation of a pickle
    try:
        json.loads(content)
    except ValueError:
        return False
    return True


def _newest(
    system: FileSystem, folder: str, checkpoints: Sequence[str], step_of: StepOf, last: int | None
) -> tuple[str | None, bool]:
    """Return the first of `checkpoints` (the newest is first) that is usable, and whether any of them loads.

    A trial saves its checkpoint before the driver has the round's result. If the driver is killed between the two, the
    newest checkpoint is one round ahead of the journal. A trial that continued from it would leave that round out, so
    a checkpoint after the `last` journalled round is not usable. None: there is no such limit.
    """
    any_loads = False
    for name in checkpoints:
        step = _step(system, f"{folder}/{name}", step_of)
        if step is not None:
            any_loads = True
            if last is None or step <= last:
                return name, True
    return None, any_loads


def _step(system: FileSystem, path: str, step_of: StepOf) -> int | None:
    from ray import tune

    if system.get_file_info(path).type == FileType.NotFound:
        return None
    try:
        with tune.Checkpoint(path, system).as_directory() as folder:
            return step_of(Path(folder))
    except (HflrayError, OSError):
        return None
