"""Each kind of file × each kind of damage: all goes on bit for bit or is made again, or a line says what to do.

docs/recovery.md has the expected outcomes, and each test compares its outcome with the page. ``python -m tests.damage``
writes the tables anew.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

from hflray.assignment import policy
from hflray.errors import ConfigError
from hflray.rl.evaluation import references
from hflray.rl.solved_fleets import prepare
from hflray.support.native import compiler
from hflray.tracking import Journal
from hflray.tracking.journal import rounds_of
from hflray.training.kernel_base import library
from tests.conftest import says
from tests.damage.cells import (
    AGAIN,
    CACHE_FILES,
    DAMAGES,
    GOES_ON,
    PAGE,
    SAYS_SO,
    STOPS,
    SWEEP_FILES,
    UNMEASURED,
    outcomes,
    with_outcomes,
)  # fmt: skip
from tests.damage.conftest import Answer, Interrupted
from tests.rl.small import TINY, tiny_network

pytestmark = pytest.mark.timeout(600)

# The cells of sweeps in the ordinary tests. All cells of caches are, too.
QUICK = {("`sweep.json`", "cut in half"), ("newest checkpoint", "one bit flipped")}
FREE = ("MLflow's database", "one bit flipped")  # the flipped byte may be one that SQLite does not use
# Root reads files of any mode, so the cells of unreadable files run in a process without that privilege.
WITHOUT_PRIVILEGE = "HFLRAY_TEST_UNREADABLE"
NO_OVERRIDE = ("setpriv", "--inh-caps=-dac_override,-dac_read_search", "--bounding-set=-dac_override,-dac_read_search")
WORDS = ("damaged", "checksum", "cannot be", "no round any more", "Permission", "no unfinished sweep")


def cells() -> list[Any]:
    """Return a parameter for each cell."""
    only_there = pytest.mark.skipif(WITHOUT_PRIVILEGE not in os.environ, reason="run by test_unreadable_files")
    return [
        pytest.param(
            kind, damage, id=f"{kind}-{damage}",
            marks=[only_there] if damage == "unreadable"
            else [] if kind in CACHE_FILES or (kind, damage) in QUICK else [pytest.mark.slow],
        )
        for kind in (*SWEEP_FILES, *CACHE_FILES)
        for damage in DAMAGES
    ]  # fmt: skip


@pytest.mark.parametrize("kind, damage", cells())
def test_a_damaged_file(kind: str, damage: str, request: pytest.FixtureRequest) -> None:
    if kind in SWEEP_FILES:
        result, said = resumed(request.getfixturevalue("interrupted"), request.getfixturevalue("call"), kind, damage)
    else:
        result, said = used_again(request.getfixturevalue("caches"), kind, damage), ""
    if notes := os.environ.get("HFLRAY_DAMAGE_NOTES"):
        with open(notes, "a", encoding="utf-8") as file:
            file.write("\t".join([kind, damage, result, repr(said)]) + "\n")
        return
    expected = outcomes(PAGE.read_text(encoding="utf-8"))[kind, damage]
    assert expected in (result, UNMEASURED) or (kind, damage) == FREE, said


def resumed(interrupted: Interrupted, call: Callable[..., Answer], kind: str, damage: str) -> tuple[str, str]:
    """Damage a file of an interrupted sweep, and return the outcome of its resume and what it said."""
    paths = sorted(interrupted.results.glob(SWEEP_FILES[kind]))
    if "newest checkpoint" in kind:  # the newest from which the resume may continue: one may be ahead of the journal
        last = max(round.number for round in rounds_of(Journal(interrupted.folder).entries(paths[-1].parent.name)))
        paths = [path for path in paths if int(path.name) <= last]
    DAMAGES[damage](paths[-1])
    try:
        code, out, err = call("--resume", interrupted.folder.name)
    finally:
        if paths[-1].exists():
            paths[-1].chmod(0o644)
    assert "Traceback" not in out + err, out + err
    if code == 2:
        assert len(err.splitlines()) == 1, err
        assert err.startswith("error: ")
        return STOPS, err
    assert code == 0, out + err
    interrupted.check(tracked="MLflow" not in kind)
    said = " ".join((out + err).split())  # long lines are wrapped at the width of the screen
    return (SAYS_SO if any(word in said for word in WORDS) else GOES_ON), said


def use_policy(folder: Path) -> Any:
    path = folder / "policy.safetensors"
    if not (folder / "made").exists():
        policy.save_policy(path, tiny_network(), {"trained_on": {}})
        (folder / "made").touch()
    policy._load.cache_clear()  # as in a new process
    return [tensor.numpy() for tensor in policy.load_policy(path)[0].state_dict().values()]


def use_library(folder: Path) -> Any:
    if compiler() is None:
        pytest.skip("no C compiler")
    library.cache_clear()
    try:
        return [library("mini").cross_entropy_backward is not None]
    finally:
        library.cache_clear()


def use_fleets(folder: Path) -> Any:
    return [fleet.problem.snr for fleet in prepare(TINY, 2, folder / "fleets").fleets]


# What makes or reads each kind of cache and returns what it holds.
USES: dict[str, Callable[[Path], Any]] = {
    "policy": use_policy,
    "fleets' `spec.json`": use_fleets,
    "fleets' `.npz`": use_fleets,
    "references on fleets": lambda folder: list(references(prepare(TINY, 2, folder / "fleets")).values()),
    "compiled kernel": use_library,
}


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def used_again(folder: Path, kind: str, damage: str) -> str:
    """Damage a cache, and return the outcome of its next use."""
    before = USES[kind](folder)
    (path,) = folder.glob(CACHE_FILES[kind])
    if kind == "compiled kernel":  # this process has mapped the file, so a copy takes its place
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    DAMAGES[damage](path)
    try:
        after = USES[kind](folder)
    except ConfigError as error:
        assert "\n" not in str(error)
        assert str(path) in str(error) or str(path.parent) in str(error)
        return STOPS
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    return AGAIN


@pytest.mark.slow
@pytest.mark.timeout(1800)  # all cells of unreadable files in one process
def test_unreadable_files() -> None:
    """Run the cells of unreadable files, in another pytest that obeys the modes of files even as root."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("setpriv is missing, without which root reads files of any mode")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "test_a_damaged_file and unreadable"]
    done = subprocess.run(
        [*(NO_OVERRIDE if os.geteuid() == 0 else ()), *command],
        env=os.environ | {WITHOUT_PRIVILEGE: "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


class Evil:
    """An object whose pickle makes a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def poison(folder: Path, trap: Path) -> None:
    """Put a stranger's pickle into every file of Tune, and where an older hflray let Tune load one."""
    evil = cloudpickle.dumps(Evil(trap))
    (start,) = folder.glob("start-*")
    for place in (start, folder, *(path for path in start.iterdir() if path.is_dir())):
        names = {"tuner.pkl", "experiment_state-9.json", "searcher-state-9.pkl", "params.pkl", "error.pkl"}
        for name in names | {path.name for path in [*place.glob("*.pkl"), *place.glob("*state*.json")]}:
            (place / name).write_bytes(evil)
    pickle.loads(evil).close()
    trap.unlink()  # the trap works


def test_a_sweep_is_begun_once_and_ended_once_and_nothing_that_ray_tune_has_written_is_read(
    interrupted, call, tmp_path: Path
) -> None:
    code, _, err = call("mended.yaml")
    assert (code, len(err.splitlines())) == (2, 1)
    assert says(err, "a sweep 'mended' is unfinished", "--fresh")
    poison(interrupted.folder, tmp_path / "code ran")
    code, out, err = call("--resume", "mended")
    assert code == 0, out + err
    assert not (tmp_path / "code ran").exists()
    interrupted.check()
    code, _, err = call("--resume", "mended")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "no unfinished sweep" in err


def test_the_page_has_a_cell_for_each_file_and_damage() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = outcomes(text)
    assert set(found) == {(kind, damage) for kind in (*SWEEP_FILES, *CACHE_FILES) for damage in DAMAGES}
    assert with_outcomes(text, found) == text
