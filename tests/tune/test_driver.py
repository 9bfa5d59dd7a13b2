"""`hflray.tune.driver`: the checkpoints of older versions.

A killed sweep continues bit for bit: tests/chaos kills drivers, trials, actors and servers, and tests/damage interrupts
a sweep, damages what it has left and resumes it.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hflray.support.checkpoint import Checkpoints
from hflray.tune.driver import adopt_older


def test_checkpoints_of_hflray_0_1_and_0_2_are_saved_by_their_step_and_damaged_ones_are_left_out(tmp_path) -> None:
    folder: Any = SimpleNamespace(path=tmp_path, place=str(tmp_path))
    contents = {
        "checkpoint_000000": ("state/state.json", {"round": 3}),
        "checkpoint_000001": ("state/state.json", {"round": 4}),
        "checkpoint_000002": ("state/state.json", {}),
        "checkpoint_000003": ("training/training.json", {"env_steps": 9000}),
    }
    for name, (file, content) in contents.items():
        path: Path = tmp_path / "t" / name / file
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content))
    adopt_older(folder, "t")
    saved = Checkpoints(str(tmp_path), "t")
    assert saved.rounds() == [9000, 4]
    with saved.open(4) as opened:
        assert json.loads((opened / "state" / "state.json").read_text()) == {"round": 4}
    saved.save(9001, lambda scratch: None)
    adopt_older(folder, "t")  # those of today are not replaced
    assert saved.rounds() == [9001, 9000]
    adopt_older(folder, "another")
