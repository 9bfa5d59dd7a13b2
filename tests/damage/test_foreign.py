"""Foreign data are data: a folder, an export, a checkpoint or a policy of a stranger runs, writes and contacts nothing.

Nothing that they name is even looked for. The commands run in a process whose audit hook sees each import, each file
that is opened for writing, each connection and each process (`tests.damage.audited`).
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import hflray
from hflray import metrics
from hflray.assignment.d3qn import SHIPPED, load_policy
from hflray.assignment.policy import save_policy
from hflray.config import ExperimentConfig, named_settings, set_dotted
from hflray.config.pinning import validate_stored
from hflray.errors import ConfigError
from hflray.experiment import Experiment
from hflray.report.exports import export
from hflray.report.runs import read_sweep
from hflray.support import checkpoint, references
from hflray.support.checkpoint import Checkpoints
from hflray.support.checksum import digest, stamped
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal, Run, default_uri
from hflray.tracking.sink import Ending
from tests.conftest import SMALL, says, small_config
from tests.damage import audited
from tests.foreign.mutations import with_members

ROOT = Path(hflray.__file__).parents[1]
EVIL = f"{audited.CANARY!r}\nopen('trap', 'w').close()\n\n\ndef thing(*_):\n    open('trap', 'w').close()\n"
MODULE = "hflray_results.evil.mod"
FORMS = {
    "module": f"{MODULE}:thing",
    "file": "hflray_results/evil/mod.py:thing",
    "pinned module": f"{MODULE}:thing@sha256:{digest(EVIL.encode())}",
    "pinned file": f"mod.py:thing@sha256:{digest(EVIL.encode())}",
}
UNPINNED = ("module", "file")
EACH = [pytest.param(form, marks=[pytest.mark.slow] * form.endswith("file")) for form in FORMS]  # each takes a minute
NAME = "mine-20260101-000000"
Values = dict[str, Any]


def poisoned_by(form: str, keys: tuple[str, ...] | None = None) -> Values:
    """Return the values of the settings that name something, each the stranger's."""
    listed = "tracking.sinks"
    return {key: [FORMS[form]] if key == listed else FORMS[form] for key in keys or named_settings()}


def tree_with(values: Values) -> dict[str, Any]:
    """Return the tree of a small run's configuration with these values."""
    tree = small_config("max_rounds=2").model_dump(mode="json")
    for key, value in values.items():
        set_dotted(tree, key, value)
    return tree


def folder_at(work: Path, stored: Values, logged: Values) -> Path:
    """Write a stranger's results with an unfinished sweep, and return its folder.

    Args:
        work: the folder in which the victim stands.
        stored: values in ``sweep.json``.
        logged: values in the configuration in the journal.
    """
    results = work / "hflray_results"
    folder = SweepFolder(
        results / NAME, load_sweep(None, ["name=mine", *SMALL, "max_rounds=2"]), default_uri(results), "tests"
    )
    folder.save()
    evil = results / "evil"
    evil.mkdir(exist_ok=True)
    (evil / "__init__.py").write_text(EVIL)
    (evil / "mod.py").write_text(EVIL)
    content = json.loads(folder.content())
    del content["sha256"]
    for key, value in stored.items():
        set_dotted(content["file"]["experiment"], key, value)
    content["sinks"] = ["mlflow", *stored.get("tracking.sinks", [])]
    if stored or logged:
        texts = [references.Source(name, EVIL, str(evil / "mod.py")) for name in (MODULE, "mod.py")]
        content["references"] = references.to_json(texts)
    (folder.path / "sweep.json").write_text(json.dumps(stamped(content)))
    journal = Journal(folder.path)
    artifacts = {"config.yaml": yaml.safe_dump(tree_with(logged)), "environment.json": "{}"}
    journal.begin(Run("t1", "t1", tags={"hflray.sweep": NAME, "hflray.trial": "t1"}, artifacts=artifacts), 1)
    for number in (1, 2):
        values = {metrics.ACCURACY: 0.5, metrics.ROUND_OBJECTIVE: 3.0, metrics.TOTAL_OBJECTIVE: 3.0 * number}
        journal.write("t1", {"round": number, "time": number, "metrics": values})
    for kind in ("tables", "model"):
        journal.write("t1", {"artifact": kind})
    journal.end("t1", Ending("FINISHED"))
    return folder.path


def checkpoint_at(path: Path, values: Values) -> Path:
    """Write a checkpoint whose configuration has these values."""
    with Experiment(small_config("max_rounds=2")) as experiment:
        next(iter(experiment))
        return checkpoint.save(path, experiment.state_dict() | {"config": tree_with(values)})


def export_at(work: Path, values: Values) -> Path:
    """Write an export whose configuration has these values, from a harmless folder."""
    clean = work / "clean"
    folder_at(clean, {}, {})
    path = export(read_sweep(clean / "hflray_results", "mine"), work / "exports" / "mine")

    def poison(files: dict[str, bytes]) -> None:
        content = json.loads(files["runs.json"]) | {"config": {}}
        for record in content["runs"]:
            record["config"] = tree_with(values)
        files["runs.json"] = json.dumps(content).encode()

    with_members(path, poison)
    return path


def policy_at(path: Path, teacher: str) -> Path:
    """Write a policy whose card says that this teacher solved its fleets."""
    network, card = load_policy(SHIPPED)
    card = copy.deepcopy(card)  # the header of a shipped policy is read once in a process
    card["trained_on"]["specification"]["teacher"] = teacher
    save_policy(path, network, card)
    return path


@functools.cache
def kernels() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for compiled kernels, which lasts as long as this process."""
    return tempfile.TemporaryDirectory(prefix="hflray-audit-")


def observed(work: Path, *commands: list[str]) -> dict[str, Any]:
    """Run commands under the audit hook, and return what it has seen."""
    for name in audited.MAY_WRITE:
        (work / name).mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (work / "cache" / "numba").symlink_to(kernels().name)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}  # a Ray of other tests
    env = ours | {
        "TMPDIR": str(work / "tmp"), "XDG_CACHE_HOME": str(work / "cache"), "MPLCONFIGDIR": str(work / "cache" / "mpl"),
        "NUMBA_CACHE_DIR": str(work / "cache" / "numba"), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, audited.__file__, str(work), json.dumps(commands)],
        cwd=work, env=env, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return content


def audited_run(work: Path, *commands: list[str]) -> list[dict[str, Any]]:
    """Run commands under the audit hook; check that none did more than read, and return their answers."""
    content = observed(work, *commands)
    deeds = [deed for answer in content["answers"] for deed in answer["deeds"]]
    assert deeds == [], "\n".join(deeds)
    for answer in content["answers"]:
        assert answer["code"] in (0, 1, 2), answer
        assert "Traceback" not in answer["text"], answer
    assert content["loaded"] == []
    assert not list(work.rglob("trap"))
    answers: list[dict[str, Any]] = content["answers"]
    return answers


def test_the_audit_sees_what_it_is_for(tmp_path) -> None:
    """The hook notes an import, a file and a process of a module that is really run."""
    folder_at(tmp_path, {}, {})
    content = observed(tmp_path, [MODULE])
    seen = " ".join(content["answers"][0]["deeds"])
    for deed in ("import ('hflray_results.evil'", f"open {tmp_path}/trap", "compile of the", "exec of the"):
        assert deed in seen
    assert content["loaded"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", EACH)
def test_commands_on_a_stranger_s_folder_do_nothing_but_read(tmp_path, form) -> None:
    """With ``sweep.json`` poisoned, and with the journal poisoned alone."""
    stored = tmp_path / "stored"
    folder = folder_at(stored, poisoned_by(form), poisoned_by(form))
    where = ["--results", "hflray_results"]
    commands = [
        ["hflray", "report", "mine", *where, "--out", "pages"],
        ["hflray", "explain", "t1", "--round", "1", *where],
        ["hflray", "compare", "mine", *where],
        ["hflray", "sync", f"hflray_results/{NAME}"],
        ["hflray", "tune", "--resume", "mine", *where],
        ["hflray", "tune", "--resume", NAME, *where],
    ]
    answers = audited_run(stored, *commands)
    for answer in answers if form in UNPINNED else answers[-2:]:
        assert answer["code"] == 2, answer
    if form in UNPINNED:
        assert all("without the hash" in answer["text"] for answer in (*answers[:1], *answers[2:4])), answers
    else:
        assert "--trust" in answers[-1]["text"]
    assert folder.is_dir()
    logged = tmp_path / "logged"
    saved = checkpoint_at(tmp_path / "saved", poisoned_by(form, ("data.name",)))
    folder = folder_at(logged, {}, poisoned_by(form))
    Checkpoints(str(folder), "t1").save(
        2, lambda place: checkpoint.save(place / "state", checkpoint.load(saved)) and None
    )
    answers = audited_run(logged, *commands[:4])
    if form in UNPINNED:
        assert says(answers[0]["text"], "t1", "without the hash"), answers[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", ["module", *(pytest.param(form, marks=pytest.mark.slow) for form in list(FORMS)[1:])])
def test_a_stranger_s_export_checkpoint_and_policy_do_nothing_but_be_read(tmp_path, form) -> None:
    work = tmp_path / "work"
    folder_at(work, {}, {})
    path = export_at(tmp_path, poisoned_by(form))
    (work / "exports").mkdir()
    for name in ("mine", "hierfavg_quick", "benchmark_scheduling"):
        (work / "exports" / f"{name}.zip").write_bytes(path.read_bytes())
    saved = checkpoint_at(work / "saved", poisoned_by(form))
    (work / "policies").mkdir()
    policy_at(work / "policies" / "p.safetensors", FORMS[form])
    answers = audited_run(
        work,
        ["hflray", "report", "mine", "--from", "exports", "--out", "pages"],
        ["hflray", "explain", "t1", "--round", "1", "--from", "exports"],
        ["hflray", "report", "results", "--from", "exports", "--out", "pages/RESULTS.md"],
        ["hflray", "reproduce", "hierfavg", "--quick", "--from", "exports"],
        ["checkpoint", str(saved)],
        ["hflray", "card", "policies/p.safetensors", "--measure", "--fleets", "2"],
        ["hflray", "card", "policies/p.safetensors"],
    )
    if form in UNPINNED:
        assert [answers[number]["code"] for number in (0, 1, 4, 5)] == [2] * 4, answers
        assert all("without the hash" in answers[number]["text"] for number in (0, 4, 5)), answers
    assert answers[4]["code"] == answers[5]["code"] == 2


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_a_stored_setting_names_is_looked_for(tmp_path, monkeypatch, form) -> None:
    """Each setting that names something, through the one door, and through the axes of a sweep file."""
    looked: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(references, "find_module", lambda *names: looked.append(str(names)) or [])
    monkeypatch.setattr(references, "_read_file", lambda *names: looked.append(str(names)))
    path = folder_at(tmp_path, {}, {}) / "sweep.json"
    stored = json.loads(path.read_text())
    del stored["sha256"]

    def setting(key: str, value: Any) -> None:
        validate_stored(ExperimentConfig, tree_with({key: value}), path)

    def axis(key: str, value: Any) -> None:
        content = copy.deepcopy(stored)
        content["file"]["sweep"] = {key: {"grid": [value, value]}}
        path.write_text(json.dumps(content))
        SweepFolder.load(path.parent)

    for key in named_settings():
        value = poisoned_by(form, (key,))[key]
        for read in (setting, axis):
            if form in UNPINNED:
                with pytest.raises(ConfigError, match="without the hash"):
                    read(key, value)
            else:
                with contextlib.suppress(ConfigError):  # the values may not go together
                    read(key, value)
            assert looked == [], key


# The only places that validate a tree by other means than `validate_stored`, with the reason.
OTHER_DOORS = {
    ("config/explanations.py", "validate"): "it is what the others call",
    ("config/pinning.py", "validate_stored"): "the door itself",
    ("config/files.py", "load_config"): "the user's own file",
    ("sweep/trials.py", "load_sweep"): "the user's own file",
    ("sweep/trials.py", "make_trial"): "of a sweep file that is validated already",
    ("sweep/trials.py", "prolong"): "of a sweep file that is validated already",
    ("tune/plan.py", "plan_file"): "of a sweep file that is validated already",
    ("sweep/loop.py", "keep"): "of a configuration that is validated already",
    ("sweep/trials.py", "with_absolute_paths"): "of a sweep file that is validated already",
    ("command/new.py", "write_template"): "a name alone",
    ("tune/trial.py", "run_trial"): "from the driver's process",
    ("experiment/scenario.py", "fitting"): "of a configuration that is validated already",
    ("support/reader.py", "fit"): "a schema, which names nothing",
    ("reproduction/protocol.py", "read"): "the user's own claims, which name no code",
    ("config/fleet_table.py", "pinned_options"): "options of a section, whose names are pinned before a file is read",
}


def test_every_configuration_of_hflrays_own_is_read_through_one_door() -> None:
    doors = set()
    for path in sorted((ROOT / "hflray").rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                names = {getattr(call, "attr", getattr(call, "id", "")) for call in calls}
                if names & {"validate", "model_validate", "model_validate_json", "model_construct"}:
                    doors.add((path.relative_to(ROOT / "hflray").as_posix(), function.name))
    assert doors == set(OTHER_DOORS)
