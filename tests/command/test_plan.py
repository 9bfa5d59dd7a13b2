"""hflray.command.plan: a plan from end to end, broken off and resumed, and one line for each mistake."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hflray.sweep import expand, load_sweep
from tests.command.calls import caller
from tests.conftest import refusals, says

FLEET = Path(__file__).with_name("fleet.yaml").read_text(encoding="utf-8")
FIXED = ["--set", "cost.delay_weight=1", "--set", "scheduling.name=fedavg", "--set", "clock.cloud=synchronous"]


call = caller("plan", squeezed=True)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start ``hflray plan`` in a folder as a user would."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "COLUMNS": "160"}
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "hflray", "plan", *words],
        cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.slow  # twelve runs with Ray; tests/tune has each part of it
@pytest.mark.timeout(900)
def test_a_plan_that_is_broken_off_goes_on_and_recommends_a_run(tmp_path) -> None:
    """Two values of H and two assigners; the first start ends after a run, and the second tries all four settings."""
    (tmp_path / "fleet.yaml").write_text(FLEET)
    axes = ["--set", "sweep.scheduling.num_scheduled={grid: [4, 8]}"]
    axes += ["--set", "sweep.assignment.name={grid: [geographic, best_gain]}"]
    plan = start(tmp_path, "fleet.yaml", "--accuracy", "0.6", "--budget", "1h", *axes, *FIXED)
    assert plan.stdout is not None
    for line in plan.stdout:
        if ": done" in line:
            plan.send_signal(signal.SIGTERM)
            break
    rest = plan.stdout.read()
    assert plan.wait() == 130, rest
    assert says(rest, "Nothing meets this", "1 of 3 seeds", "go on with: ", "plan --resume fleet_plan-")
    again = start(tmp_path, "--resume", "fleet_plan", "--budget", "1h", "-q", "-o", ".")
    said, _ = again.communicate()
    assert again.returncode == 0, said
    assert says(said, "4 settings", "3 of 3", "Recommended: H = ", "recommended.yaml")
    assert "go on with" not in said
    assert {path.name for path in tmp_path.iterdir()} >= {"recommended.yaml", "pareto.png", "pareto.svg"}
    journals = [path.stem for path in (tmp_path / "hflray_results").glob("*/journal/*.jsonl")]
    assert len(journals) == len({name[:-5] for name in journals}) == 12  # no run was made twice
    trials = expand(load_sweep(tmp_path / "recommended.yaml"))
    assert [trial.config.seed for trial in trials] == [0, 1, 2]
    assert trials[0].config.scheduling.num_scheduled == int(re.search(r"Recommended: H = (\d+)", said)[1])  # type: ignore[index]


def test_a_dry_run_checks_each_value_and_leaves_out_ours_that_the_fleet_refuses(tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {"experiment": yaml.safe_load(FLEET) | {"tree": {"gossip": {"graph": "ring"}}}}
    Path("fleet.yaml").write_text(yaml.safe_dump(tree))
    code, out, err = call(capsys, "fleet.yaml", "--accuracy", "0.6", "--joules", "3", "--dry-run", *FIXED[:4])
    assert (code, err) == (0, "")
    assert says(
        out, "fleet_plan: at most 60 settings", "scheduling.num_scheduled 4, 1, 2, 6, 8", "clock.cloud synchronous"
    )
    assert says(out, "note: clock.cloud=asynchronous is not searched", "accuracy 0.6 within 3 J")
    assert [path.name for path in Path().iterdir()] == ["fleet.yaml"]


@pytest.mark.parametrize("words, facts", refusals("command/plan"))
def test_each_mistake_is_one_line_before_anything_starts(words, facts, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.yaml").write_text(FLEET)
    arguments = re.findall(r"\S*\{.*\}|\S+", words)
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert says(err, *facts), err
    assert len(err.splitlines()) == 1, err
    assert [path.name for path in Path().iterdir()] == ["fleet.yaml"]
