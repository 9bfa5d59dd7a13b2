"""``make mutants``: a small package whose mutants are killed or survive."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutants import modules

SMALL = '''
from __future__ import annotations


def double(x: int | None) -> int | None:
    """Return 2 x."""
    y: int | str = x * 2
    return y


def untested(x):
    return x + 1
'''
FILES = {
    "hflray/__init__.py": "", "hflray/room/__init__.py": "", "hflray/room/small.py": SMALL, "tests/__init__.py": "",
    "tests/room/__init__.py": "",
    "tests/room/test_it.py": "from hflray.room.small import double\n\ndef test_it():\n    assert double(3) == 6\n",
    # Options for the whole suite must not reach the runs.
    "pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-n auto --dist loadfile --strict-markers"\n',
}  # fmt: skip


@pytest.mark.mutants  # it needs cosmic-ray, the extra `mutants`
def test_the_mutants_of_a_small_module_are_killed_or_survive(tmp_path: Path) -> None:
    from tests.mutants.session import Session, run_mutants
    from tests.mutants.worker import Worker

    root = tmp_path / "repository"
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    worker, sources = Worker(tmp_path / "work", root), {"room/small": SMALL}
    session = Session(tmp_path / "sessions", sources, seed=0, count=4)
    assert session.places == {"room/small": 6}  # two operators and two numbers, and two bars between types
    run_mutants(session, session.pending()[:3], worker, print)
    # The run was broken off after three mutants, and goes on with the last one.
    again = Session(tmp_path / "sessions", sources, seed=0, count=4)
    assert len(again.pending()) == 1
    run_mutants(again, again.pending(), worker, print)
    outcomes = {result.was: result.outcome for result in again.results()}
    assert outcomes == {"y: int | str = x * 2": "killed", "return x + 1": "survived"}
    assert [result.outcome for result in again.results()].count("survived") == 2
    endless = SMALL.replace("return y", "while True: y = x")
    assert worker.run(modules.tests_of("room/small"), "hflray/room/small.py", endless, 20.0).result == "timeout"
