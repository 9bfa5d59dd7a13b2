"""A results folder from a stranger runs no code: neither Tune's pickles, without this user's seal, nor references."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ray import cloudpickle

from hflray.command import report as report
from hflray.experiment import Experiment
from hflray.support import references
from hflray.sweep import compare, expand, load_sweep
from hflray.sweep.results import new_folder
from hflray.tracking import Tracker, default_uri
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


OWN = """import numpy as np
from torch import nn

from hflray import Dataset, Scheduler
from hflray.world.mobility import Mobility

open(TRAP, "w").close()


def load(root):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4))
    return Dataset.of(x[:500], x[:500].argmax(1), x[500:], x[500:].argmax(1), kind="classification")


def net(input_shape, num_outputs):
    return nn.Linear(*input_shape, num_outputs)


def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets)


def recall(outputs, targets):
    return (outputs.argmax(1) == targets)[targets == 0].mean()


class Drift(Mobility):
    def move(self, first, last):
        self.position_m = np.minimum(self.position_m + 1.0, self.area_m)


class Highest(Scheduler):
    def schedule(self, rng):
        return np.arange(self.num_devices - self.num_scheduled, self.num_devices)
"""


@pytest.fixture
def with_references(tmp_path, trap, monkeypatch) -> Path:
    """Return the results of a finished sweep whose parts were all its author's own; their file is gone."""
    for name in ("_sources", "_modules", "_ran"):
        monkeypatch.setattr(references, name, {})
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("TRAP", repr(str(trap))))
    (tmp_path / "mine.yaml").write_text(
        "name: mine\n"
        "experiment:\n"
        "  max_rounds: 2\n"
        "  data: {name: 'own.py:load', samples_per_device: [20, 30], partition: iid}\n"
        "  model: {name: 'own.py:net'}\n"
        "  target: {metric: 'own.py:recall'}\n"
        "  fleet: {num_devices: 12, num_edges: 2}\n"
        "  scheduling: {num_scheduled: 4}\n"
        "  assignment: {name: geographic}\n"
        "  training: {loss: 'own.py:loss', batch_size: 16, backend: serial, autotune: false}\n"
        "sweep:\n"
        "  scheduling.name: {zip: ['own.py:Highest', fedavg]}\n"
        "  world.mobility.name: {zip: [static, 'own.py:Drift']}\n"
    )
    file = load_sweep(tmp_path / "mine.yaml")
    results = tmp_path / "results"
    folder = new_folder(results, file, default_uri(results), "hflray")
    folder.finished = True
    folder.path.mkdir(parents=True)
    folder.save()
    tracker = Tracker(folder.uri, folder.experiment, folder.path.name, folder.path)
    for trial in expand(file):
        tracker.start(trial.name, trial.name, trial.config, {})
        with Experiment(trial.config) as experiment:
            for record in experiment:
                values = record.metrics() | (experiment.summary() if experiment.finished else {})
                tracker.round(trial.name, record.round, values, record.schedule(), experiment.devices())
        tracker.artifact(trial.name, "tables")
        tracker.finish(trial.name)
    assert tracker.close()
    assert trap.exists(), "the text of the file makes the trap whenever it runs"
    trap.unlink()
    path.unlink()
    for name in ("_sources", "_modules", "_ran"):  # from here on, this process is as one that has just begun
        monkeypatch.setattr(references, name, {})
    return results


def answer(main: Callable[[list[str]], object], capsys, *arguments: str) -> tuple[int, str]:
    """Return the exit code of a command and what it prints, on one line."""
    try:
        code = main(list(arguments))
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return int(code or 0), " ".join(f"{out} {err}".split())


def test_a_strangers_sweep_of_their_own_parts_is_shown_and_none_of_its_code_runs(
    with_references, trap, monkeypatch, tmp_path, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HFLRAY_KEY_FILE", str(tmp_path / "another key"))
    folders = ("--results", str(with_references))
    page = tmp_path / "page"
    code, text = answer(report.main, capsys, "mine", *folders, "--out", str(page), "--export", str(tmp_path / "export"))
    assert code == 0
    assert {path.name for path in page.iterdir()} >= {"index.html", "summary.md", "recall.png", "cost.png"}
    # The rounds of the second run can only be shown with its author's mobility. All else needs no code of theirs.
    assert text.count("missing:") == 1
    assert "missing: own.py:Drift: the text with sha256" in text
    summary = (page / "summary.md").read_text()
    assert [word in summary for word in ("Highest", "FedAvg, Drift", "recall")] == [True] * 3
    code, text = answer(report.main, capsys, "mine", "--from", str(tmp_path / "export"), "--out", str(page))
    assert code == 0
    names = [path.stem for path in with_references.glob("*/journal/*.jsonl")]
    (still,), (drifts,) = ([name for name in names if (word in name)] for word in ("Highest", "Drift"))
    code, text = answer(report.main, capsys, "explain", still, "--round", "1", *folders)
    assert (code, "scheduled by Highest" in text, "recall 0." in text) == (0, True, True)
    code, text = answer(report.main, capsys, "explain", drifts, "--round", "1", *folders)
    assert (code, text.startswith("error: own.py:Drift: the text with sha256 ")) == (2, True)
    code, text = answer(compare.main, capsys, "mine", *folders)
    assert code == 0
    assert "recall" in text
    assert not trap.exists()


def test_the_report_of_ones_own_sweep_shows_a_world_of_ones_own(with_references, trap, tmp_path, capsys) -> None:
    code, text = answer(report.main, capsys, "mine", "--results", str(with_references), "--out", str(tmp_path / "page"))
    assert (code, "missing" in text) == (0, False)
    assert trap.exists()
