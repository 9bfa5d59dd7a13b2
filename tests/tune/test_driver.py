"""`hflray.tune.driver`: the checkpoints of older versions.

A killed sweep continues bit for bit: tests/chaos kills drivers, trials, actors and servers, and tests/damage interrupts
a sweep, damages what it has left and resumes it.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hflray.support.checkpoint import Checkpoints
from hflray.tune.driver import adopt_older

pytestmark = pytest.mark.timeout(1200)  # the limit for a busy machine

ROUNDS = 8
SWEEP = f"""
name: long
tracking: {{sinks: [mlflow, csv]}}
experiment:
  max_rounds: {ROUNDS}
  data: {{name: digits}}
  fleet: {{num_devices: 12, num_edges: 2}}
  scheduling: {{num_scheduled: 4, num_clusters: 5}}
  training: {{local_iterations: 5, edge_iterations: 5, batch_size: 4, backend: serial}}
sweep:
  scheduling.name: {{grid: [ikc, fedavg]}}
"""


def journal_rounds(folder: Path) -> dict[str, list[int]]:
    """Return the rounds in the journals by trial."""
    whole = {
        path.stem: path.read_text().rpartition("\n")[0].splitlines()
        for path in folder.glob("hflray_results/long-*/journal/*.jsonl")
    }
    entries = {name: map(json.loads, lines) for name, lines in whole.items()}
    return {name: [entry["round"] for entry in each if "round" in entry] for name, each in entries.items()}


def wait_for_round(folder: Path, index: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 400
    while not any(index in rounds for rounds in journal_rounds(folder).values()):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"round {index} was not reached within 400 s"
        time.sleep(0.05)


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
