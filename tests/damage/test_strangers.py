"""A results folder from a stranger runs no code: Tune's pickles are opened only if they carry this user's seal."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import pytest
from ray import cloudpickle

from hflray.tune.digests import FILE as DIGESTS
from hflray.tune.digests import STATE, TUNER

pytestmark = pytest.mark.timeout(600)


class Evil:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def trap(tmp_path) -> Path:
    """Return the path of the file that a stranger's pickle makes."""
    return tmp_path / "code ran"


def poison(folder: Path, trap: Path) -> None:
    """Put a stranger's pickle into every place of a sweep's folder from which Tune loads one."""
    evil = cloudpickle.dumps(Evil(trap))
    for path in folder.iterdir():
        if path.name.startswith("experiment_state"):
            state = json.loads(path.read_text())
            state["runner_data"]["evil"] = {"_type": "CLOUDPICKLE_FALLBACK", "value": evil.hex()}
            trials = []
            for trial, metadata in state["trial_data"]:
                fields = json.loads(trial)
                fields["placement_group_factory"] = evil.hex()
                results = json.loads(metadata)
                results["evil"] = {"_type": "CLOUDPICKLE_FALLBACK", "value": evil.hex()}
                trials.append([json.dumps(fields), json.dumps(results)])
            state["trial_data"] = trials
            path.write_text(json.dumps(state))
        elif STATE.fullmatch(path.name) or path.name == TUNER:
            path.write_bytes(evil)
    for name in ("callback-states-0.pkl", "searcher-state-.pkl", "search_gen_state-9.json", "error.pkl", "state.pkl"):
        (folder / name).write_bytes(evil)
    for trial in (path for path in folder.iterdir() if (path / "params.pkl").exists()):
        for name in ("params.pkl", "error.pkl", "checkpoint.pkl", "class_and_ctor_args.pkl"):
            (trial / name).write_bytes(evil)
        for saved in trial.glob("checkpoint_*"):
            for name in ("data.pkl", "state/state.pkl", ".metadata.json"):
                (saved / name).write_bytes(evil)


def test_the_trap_works(interrupted, trap) -> None:
    """Each poisoned file runs code when Tune's own functions load it, so the other tests can fail."""
    from ray.tune.execution.tune_controller import TuneController
    from ray.tune.utils.serialization import _loads_with_cloudpickle

    poison(interrupted.folder, trap)
    pickle.loads((interrupted.folder / TUNER).read_bytes()).close()
    assert trap.exists()
    trap.unlink()
    (state,) = interrupted.folder.glob(TuneController.CKPT_FILE_TMPL.format("*"))
    _loads_with_cloudpickle(state.read_bytes())
    assert trap.exists()


def test_pickles_that_a_stranger_has_put_into_my_folder_are_not_opened(interrupted, call, trap) -> None:
    poison(interrupted.folder, trap)
    code, out, err = call("--resume", interrupted.folder.name)
    assert code == 0, out + err
    assert not trap.exists()
    assert "is damaged and set aside" in " ".join(out.split())
    interrupted.check()


@pytest.mark.parametrize("with_record", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_folder_of_another_user_is_rebuilt_without_its_pickles(
    interrupted, call, trap, monkeypatch, tmp_path, with_record: bool
) -> None:
    poison(interrupted.folder, trap)
    if not with_record:
        (interrupted.folder / DIGESTS).unlink()
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "another key"))
    code, out, err = call("--resume", interrupted.folder.name)
    assert code == 0, out + err
    assert not trap.exists()
    assert "carries no seal of this user" in " ".join(out.split())
    interrupted.check()
    code, _, err = call("--resume", interrupted.folder.name)
    assert (code, "is finished" in err) == (2, True)


@pytest.mark.slow
def test_trust_opens_the_pickles_of_ones_own_folder(interrupted, call, monkeypatch, tmp_path) -> None:
    """A user who has another key on this machine says that the folder is theirs."""
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "another key"))
    code, out, err = call("--resume", interrupted.folder.name, "--trust")
    assert code == 0, out + err
    assert "set aside" not in " ".join(out.split())
    interrupted.check()


def test_a_link_out_of_the_folder_is_refused(interrupted, call, tmp_path) -> None:
    """hflray would write its lock or a journal's lines through it, for example into a shell's start file."""
    (tmp_path / "bashrc").write_text("mine")
    (interrupted.folder / ".lock").unlink()
    (interrupted.folder / ".lock").symlink_to(tmp_path / "bashrc")
    code, _, err = call("--resume", interrupted.folder.name)
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "a symbolic link to" in err
    assert (tmp_path / "bashrc").read_text() == "mine"
    shutil.rmtree(interrupted.place)
