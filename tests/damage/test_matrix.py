"""Each kind of file × each kind of damage: the resume goes on bit for bit, or says in one line what to do.

docs/recovery.md has the expected outcomes, and each test compares its outcome with the page. ``python -m tests.damage``
writes the table anew.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hflray.tracking import Journal
from hflray.tracking.journal import rounds_of
from tests.damage.cells import DAMAGES, GOES_ON, PAGE, SAYS_SO, STOPS, SWEEP_FILES, UNMEASURED, table
from tests.damage.conftest import Answer, Interrupted

pytestmark = pytest.mark.timeout(600)

QUICK = {("`sweep.json`", "emptied"), ("`sweep.json`", "cut in half"), ("newest checkpoint", "one bit flipped"),
         ("`sweep.json`", "deleted")}  # fmt: skip
# Root reads files of any mode, so the cells of unreadable files run in a process without that privilege.
FREE = ("MLflow's database", "one bit flipped")  # the flipped byte may be one that SQLite does not use
WITHOUT_PRIVILEGE = "HFLRAY_TEST_UNREADABLE"
NO_OVERRIDE = ("setpriv", "--inh-caps=-dac_override,-dac_read_search", "--bounding-set=-dac_override,-dac_read_search")
WORDS = ("damaged", "checksum", "cannot be", "no round any more", "Permission", "no unfinished sweep")


def cells() -> list[pytest.param]:
    """Return a parameter for each cell that root can make, those of `QUICK` without the mark ``slow``."""
    return [
        pytest.param(kind, damage, marks=[] if (kind, damage) in QUICK else [pytest.mark.slow], id=f"{kind}-{damage}")
        for kind in SWEEP_FILES
        for damage in DAMAGES
        if damage != "unreadable"
    ]


def spoil(interrupted: Interrupted, kind: str, damage: str) -> Path:
    paths = sorted(interrupted.results.glob(SWEEP_FILES[kind]))
    if "newest checkpoint" in kind:  # the newest from which the resume may continue: one may be ahead of the journal
        last = max(round.number for round in rounds_of(Journal(interrupted.folder).entries(paths[-1].parent.name)))
        paths = [path for path in paths if int(path.name) <= last]
    path = paths[-1]
    DAMAGES[damage](path)
    return path


def outcome(answer: Answer, interrupted: Interrupted, kind: str) -> str:
    """Return the outcome of a resume after checking what it promises."""
    code, out, err = answer
    assert "Traceback" not in out + err, out + err
    said = " ".join((out + err).split())  # long lines are wrapped at the width of the screen
    if code == 2:
        assert len(err.splitlines()) == 1, err
        assert err.startswith("error: ")
        return STOPS
    assert code == 0, out + err
    interrupted.check(tracked="MLflow" not in kind)
    return SAYS_SO if any(word in said for word in WORDS) else GOES_ON


def record(kind: str, damage: str, result: str, answer: Answer) -> None:
    """Compare a result with the page, or note it for ``python -m tests.damage``."""
    if notes := os.environ.get("HFLRAY_DAMAGE_NOTES"):
        with open(notes, "a", encoding="utf-8") as file:
            file.write("\t".join([kind, damage, result, repr(answer[1] + answer[2])]) + "\n")
        return
    expected = table(PAGE.read_text(encoding="utf-8"), "matrix of sweeps")[kind, damage]
    if expected == UNMEASURED:
        pytest.skip(f"the resume keeps its promise ({result}); python -m tests.damage writes that into {PAGE.name}")
    if (kind, damage) == FREE:
        expected = result
    assert expected == result, answer[1] + answer[2]


@pytest.mark.parametrize("kind, damage", cells())
def test_a_resume_goes_on_or_says_what_to_do(interrupted, call, kind: str, damage: str) -> None:
    spoil(interrupted, kind, damage)
    answer = call("--resume", interrupted.folder.name)
    record(kind, damage, outcome(answer, interrupted, kind), answer)


def test_an_unfinished_sweep_is_not_begun_again_and_a_finished_one_is_not_resumed(interrupted, call) -> None:
    code, _, err = call("mended.yaml")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "a sweep 'mended' is unfinished" in err
    assert "--fresh" in err
    code, out, err = call("--resume", "mended")
    assert code == 0, out + err
    interrupted.check()
    code, _, err = call("--resume", "mended")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "no unfinished sweep" in err


@pytest.mark.skipif(WITHOUT_PRIVILEGE not in os.environ, reason="run by test_unreadable_files in a process of its own")
@pytest.mark.parametrize("kind", SWEEP_FILES)
def test_an_unreadable_file(interrupted, call, kind: str) -> None:
    path = spoil(interrupted, kind, "unreadable")
    with pytest.raises(PermissionError):
        path.read_bytes()
    try:
        answer = call("--resume", interrupted.folder.name)
        record(kind, "unreadable", outcome(answer, interrupted, kind), answer)
    finally:
        if path.exists():
            path.chmod(0o644)


@pytest.mark.timeout(1800)  # all cells of unreadable files in one process
@pytest.mark.parametrize(
    "cells",
    [
        pytest.param("test_an_unreadable_cache and policy", id="quick"),
        pytest.param("test_an_unreadable_cache or test_an_unreadable_file", id="all", marks=pytest.mark.slow),
    ],
)
def test_unreadable_files(cells: str) -> None:
    """Run the cells of unreadable files, in another pytest that obeys the modes of files even as root."""
    if os.geteuid() == 0 and not shutil.which("setpriv"):
        pytest.skip("setpriv is missing, without which root reads files of any mode")
    command = [
        *(NO_OVERRIDE if os.geteuid() == 0 else ()),
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
    ]
    command += [str(Path(__file__).parent), "-k", cells]
    done = subprocess.run(
        command, env=os.environ | {WITHOUT_PRIVILEGE: "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_the_page_has_a_cell_for_each_file_and_damage() -> None:
    expected = table(PAGE.read_text(encoding="utf-8"), "matrix of sweeps")
    assert set(expected) == {(kind, damage) for kind in SWEEP_FILES for damage in DAMAGES}
    assert set(expected.values()) <= {GOES_ON, SAYS_SO, STOPS, UNMEASURED}
