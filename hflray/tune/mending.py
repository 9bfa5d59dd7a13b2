"""Before a resume: put back checkpoints that Tune's last saved state names and that have been deleted since.

Tune saves its own state every few rounds, and deletes checkpoints as newer ones come. Where rounds are quick, a driver
that is killed leaves a state whose last checkpoint is no more, and Tune would give the trial up although newer ones
are there. A checkpoint says which round it is of, so the newest takes the missing one's place, and the trial goes on
after that round.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, copy_files

from hflray import checkpoint
from hflray.errors import HflrayError


def put_back(place: str, name: str) -> list[str]:
    """Mend the sweep `name` in the folder or bucket `place`; return the trials whose checkpoint was put back."""
    from ray.tune.experiment.trial import _TrainingRunMetadata

    system, root = FileSystem.from_uri(place) if "://" in place else (LocalFileSystem(), place)
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
