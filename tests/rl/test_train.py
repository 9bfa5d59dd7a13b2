"""The command ``python -m hflray.rl.train``."""

from __future__ import annotations

import json

import pytest

from hflray.rl import POLICY
from hflray.rl.session import HISTORY
from hflray.rl.train import main
from tests.rl.small import SMALL

pytestmark = pytest.mark.usefixtures("ray_session")


def test_the_command_trains_saves_and_resumes(tmp_path, capsys) -> None:
    settings = [f"--set={text}" for text in (*SMALL, f"learning.cache={tmp_path / 'fleets'}")]
    out = ["--out", str(tmp_path / "run")]
    assert main([*settings, "--set=learning.env_steps=600", *out]) == 0
    printed = capsys.readouterr().out
    assert "training fleets: 12/12" in printed
    assert "policy:" in printed
    assert len((tmp_path / "run" / HISTORY).read_text().splitlines()) == 2
    assert main([*settings, *out]) == 2
    assert "go on with --resume" in capsys.readouterr().err
    assert main([*settings, *out, "--resume"]) == 0  # to the 1,200 steps of the configuration
    curve = [json.loads(line)["env_steps"] for line in (tmp_path / "run" / HISTORY).read_text().splitlines()]
    assert len(curve) == 4
    assert curve == sorted(curve)
    assert curve[-1] >= 1200
    assert (tmp_path / "run" / POLICY).stat().st_size > 1000


def test_mistakes_are_one_line(tmp_path, capsys) -> None:
    assert main(["--out", str(tmp_path / "x"), "--set=learning.teacher.name=hefl"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: learning.teacher.name: got 'hefl'; unknown assigner 'hefl'")
    assert len(error.splitlines()) == 1
