"""Foreign data are data: a folder, an export, a checkpoint or a policy of a stranger runs, writes and contacts nothing.

Nothing that they name is even looked for. The commands run in a process whose audit hook sees each import, each file
that is opened for writing, each connection and each process (`tests.damage.audited`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

import hflray
from hflray.config import ExperimentConfig, named_settings, set_dotted
from hflray.config.pinning import validate_stored
from hflray.errors import ConfigError
from hflray.support import checkpoint, references
from hflray.support.checkpoint import Checkpoints
from hflray.support.checksum import digest, stamped
from hflray.sweep.results import SweepFolder
from hflray.tracking import default_uri
from tests.conftest import says, small_config
from tests.damage import audited
from tests.foreign import samples
from tests.foreign.mutations import with_entries, with_members, with_policy
from tests.foreign.samples import FOLDER, NAME

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
RUN = "digits-H6-λ1-ikc-geographic-s0"  # one of the sweep's
EACH = [pytest.param(form, marks=[pytest.mark.slow] * form.endswith("file")) for form in FORMS]  # each takes a minute
OTHER = "other-20260101-000000"  # a copy of the sweep, of which the journals alone are poisoned
Values = dict[str, Any]


def poisoned_by(form: str, *keys: str) -> Values:
    """Return the values of the settings that name something, each the stranger's."""
    listed = "tracking.sinks"
    return {key: [FORMS[form]] if key == listed else FORMS[form] for key in keys or named_settings()}


def tree_with(values: Values) -> dict[str, Any]:
    """Return the tree of a small run's configuration with these values."""
    tree = small_config("max_rounds=2").model_dump(mode="json")
    for key, value in values.items():
        set_dotted(tree, key, value)
    return tree


@pytest.fixture
def work(root: Path) -> Path:
    """Return the folder in which the victim stands: a stranger's results, exports and policies, and their module."""
    results = (root / "results").rename(root / "hflray_results")
    (results / "evil").mkdir()
    for name in ("__init__.py", "mod.py"):
        (results / "evil" / name).write_text(EVIL)
    (root / "policies").mkdir()
    shutil.copy(root / "files" / "assigner.safetensors", root / "policies" / "p.safetensors")
    return root


def poison(work: Path, values: Values, every: Values) -> None:
    """Put values into all that holds a configuration, and `every` one into what can hold each."""
    results, folder = work / "hflray_results", work / "hflray_results" / FOLDER
    content = json.loads((folder / "sweep.json").read_text())
    del content["sha256"]
    content["uri"] = default_uri(results)
    (folder / "sweep.json").write_text(json.dumps(stamped(content)))
    tree = tree_with(every)
    for path in folder.glob("journal/*.jsonl"):
        with_entries(path, lambda entry: entry.get("artifacts", {}).update({"config.yaml": yaml.safe_dump(tree)}))
    state = samples.state_of(folder) | {"config": tree_with(values)}
    for trial in (folder / "checkpoints").iterdir():
        Checkpoints(str(folder), trial.name).save(2, lambda place: checkpoint.save(place / "state", state) and None)
    checkpoint.save(work / "saved", state | {"config": tree})
    shutil.copytree(folder, results / OTHER)
    for key, value in every.items():
        set_dotted(content["file"]["experiment"], key, value)
    content["sinks"] = ["mlflow", *every["tracking.sinks"]]
    evil = results / "evil" / "mod.py"
    content["references"] = references.to_json(
        [references.Source(name, EVIL, str(evil)) for name in (MODULE, "mod.py")]
    )
    (folder / "sweep.json").write_text(json.dumps(stamped(content)))

    def poison_runs(files: dict[str, bytes]) -> None:
        content = json.loads(files["runs.json"])
        runs = [record | {"config": tree} for record in content["runs"]]
        files["runs.json"] = json.dumps(content | {"config": {}, "runs": runs}).encode()

    export = work / "exports" / f"{NAME}.zip"
    with_members(export, poison_runs)
    for name in ("hierfavg_quick", "benchmark_scheduling"):
        shutil.copy(export, export.with_name(f"{name}.zip"))
    teacher = every["scheduling.name"]
    policy = work / "policies" / "p.safetensors"
    with_policy(policy, lambda head, _: head["card"]["trained_on"]["specification"].update(teacher=teacher))


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


def test_the_audit_sees_what_it_is_for(work: Path) -> None:
    """The hook notes an import, a file and a process of a module that is really run."""
    content = observed(work, [MODULE])
    seen = " ".join(content["answers"][0]["deeds"])
    for deed in ("import ('hflray_results.evil'", f"open {work}/trap", "compile of the", "exec of the"):
        assert deed in seen
    assert content["loaded"]


def on_folder(folder: str, *more: list[str]) -> list[list[str]]:
    """Return commands on a sweep's folder."""
    where = ["--results", "hflray_results"]
    return [
        ["hflray", "report", folder, *where, "--out", "pages"],
        ["hflray", "explain", RUN, "--round", "1", "--sweep", folder, *where],
        ["hflray", "compare", folder, *where],
        ["hflray", "sync", f"hflray_results/{folder}"],
        *more,
    ]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("form", EACH)
def test_commands_on_what_a_stranger_has_made_do_nothing_but_read(work: Path, form: str) -> None:
    """A folder with a poisoned ``sweep.json``, one with poisoned journals alone, an export, a checkpoint, a policy."""
    poison(work, poisoned_by(form, "data.name"), poisoned_by(form))
    commands = {
        "stored": on_folder(FOLDER, ["hflray", "tune", "--resume", FOLDER, "--results", "hflray_results"]),
        "logged": on_folder(OTHER),
        "made": [
            ["hflray", "report", NAME, "--from", "exports", "--out", "pages"],
            ["hflray", "explain", "12-3-6-5-0", "--round", "1", "--from", "exports"],
            ["checkpoint", str(work / "saved")],
            ["hflray", "card", "policies/p.safetensors", "--measure", "--fleets", "2"],
            ["hflray", "report", "results", "--from", "exports", "--out", "pages/RESULTS.md"],
            ["hflray", "reproduce", "hierfavg", "--quick", "--from", "exports"],
            ["hflray", "card", "policies/p.safetensors"],
        ],
    }
    content = observed(work, *itertools.chain(*commands.values()))
    deeds = [deed for answer in content["answers"] for deed in answer["deeds"]]
    assert deeds == [], "\n".join(deeds)
    for answer in content["answers"]:
        assert answer["code"] in (0, 1, 2), answer
        assert "Traceback" not in answer["text"], answer
    assert content["loaded"] == []
    assert not list(work.rglob("trap"))
    answers = iter(content["answers"])
    stored, logged, made = ([next(answers) for _ in each] for each in commands.values())
    refused = [*stored, *made[:4]] if form in UNPINNED else [stored[-1], *made[2:4]]
    assert [answer for answer in refused if answer["code"] != 2] == []
    if form in UNPINNED:
        unnamed = (stored[0], *stored[2:4], logged[0], made[0], *made[2:4])
        assert [answer for answer in unnamed if "without the hash" not in answer["text"]] == []
        assert says(logged[0]["text"], RUN, "without the hash")
    else:
        assert "--trust" in stored[-1]["text"]


@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_a_stored_setting_names_is_looked_for(tmp_path, monkeypatch, form) -> None:
    """Each setting that names something, through the one door, and through the axes of a sweep file."""
    looked: list[str] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(references, "find_module", lambda *names: looked.append(str(names)) or [])
    monkeypatch.setattr(references, "_read_file", lambda *names: looked.append(str(names)))
    path = samples.results(tmp_path) / "sweep.json"
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
        value = poisoned_by(form, key)[key]
        for read in (setting, axis):
            if form in UNPINNED:
                with pytest.raises(ConfigError, match="without the hash"):
                    read(key, value)
            else:
                with contextlib.suppress(ConfigError):  # the values may not go together
                    read(key, value)
            assert looked == [], key
