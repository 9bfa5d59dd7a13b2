"""Every file of examples/ runs as it is shown, and prints what it promises."""

from __future__ import annotations

import os
import re
import runpy
import site
import subprocess
import sys
from pathlib import Path

import pytest

from hflray import registry
from hflray.experiment import Experiment
from hflray.tune import cli
from tests.conftest import small_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str) -> None:
    """Run an example in this process, as a notebook would run its cells."""
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.fixture(scope="module")
def results(ray_session, tmp_path_factory) -> Path:
    """Return a folder in which the sweep of the examples has run."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["hflray.tune", str(EXAMPLES / "sweep.yaml"), "--quiet"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert not ended.value.code
    return folder


def test_the_examples_are_numbered_and_each_has_a_test():
    names = [path.name for path in sorted(EXAMPLES.glob("[0-9]_*.py"))]
    assert [name[:2] for name in names] == ["1_", "2_", "3_", "4_", "5_", "6_", "8_"]
    assert set(re.findall(r'"(\d_\w+\.py)"', Path(__file__).read_text(encoding="utf-8"))) == set(names)


def test_the_first_experiment(capsys):
    run("1_first_experiment.py")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [f"round {number}" for number in range(1, 5)]
    assert [line.split(":")[0] for line in lines[4:7]] == ["edge 0", "edge 1", "edge 2"]
    assert re.fullmatch(r"SHA-256 of the global model: [0-9a-f]{64}", lines[-1])


def test_the_own_scheduler_takes_turns(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    run("2_own_scheduler.py")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["carousel", "fedavg"] * 2
    assert lines[2].split(maxsplit=1)[1] == str([1] * 20)  # 4 rounds of 5 out of 20 devices
    assert lines[3].split(maxsplit=1)[1] != str([1] * 20)


OORT = (
    "max_rounds=8", "fleet.num_devices=24", "scheduling.num_scheduled=6", "training.edge_iterations=1",
    "clock.edge.deadline=0.9", "allocation.method=equal",
)  # fmt: skip


def test_oort_by_reference_gives_the_runs_of_the_one_inside(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    runs = {}
    for name in ("oort", "oort.py:Oort"):
        options = "scheduling.options={exploration: 0.6, window: 2}"
        experiment = Experiment(small_config(*OORT, f"scheduling.name={name}", options))
        runs[name] = [(record.model_hash, record.devices.tolist(), record.totals) for record in experiment]
        state = experiment.scheduler.state_dict()
        runs[name].append((state["sums"], state.get("duration_share", state.get("share"))))
    assert runs["oort.py:Oort"] == runs["oort"]
    assert len({tuple(devices) for _, devices, *_ in runs["oort"][:-1]}) == 8
    assert runs["oort"][-1][1] > 0.3  # the pacer has acted


@pytest.mark.slow
def test_the_assignment_study(capsys):
    run("3_assignment_study.py")
    heading, _, *rows = capsys.readouterr().out.splitlines()
    assert heading.split("  ")[-1].strip() == "latency, ms"
    table = {row[:12].strip(): [float(cell) for cell in row[12:].split()] for row in rows}
    assert list(table) == ["geographic", "best gain", "HFEL-300", "local search", "D3QN"]
    objective = {name: row[2] for name, row in table.items()}
    assert objective["local search"] < objective["HFEL-300"] < objective["geographic"]
    assert all(0 <= row[3] < 100 for row in table.values())


def test_the_results_are_read(results, monkeypatch, capsys):
    monkeypatch.chdir(results)
    run("4_read_results.py")
    text = capsys.readouterr().out
    assert "4 runs, which differ in scheduling.name and the seed" in text
    assert len(re.findall(r"^ *(?:ikc|fedavg) +[01] +[1-4] ", text, flags=re.M)) == 16
    assert len(re.findall(r"round \d: devices \[\d+, \d+, \d+, \d+\]", text)) == 4
    assert text.endswith("H = 4, L = 2\n")


def test_the_own_figure_is_drawn(results, monkeypatch, capsys):
    monkeypatch.chdir(results)
    run("5_own_figure.py")
    picture = results / capsys.readouterr().out.strip()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_own_rule_is_billed_like_sgd_and_trains_another_model(capsys, monkeypatch):
    monkeypatch.setattr(registry, "_ADDED", {})
    run("6_own_rule.py")
    rows = [re.fullmatch(r"(\w+) +accuracy ([\d.]+)%, ([\d.]+) MB sent, model (\w{8})", line).groups()
            for line in capsys.readouterr().out.splitlines()]  # fmt: skip
    names, _, megabytes, hashes = zip(*rows, strict=True)
    assert names == ("sgd", "prox", "scaffold")
    assert len(set(hashes)) == 3
    assert megabytes[0] == megabytes[1]
    # 6 devices upload a model twice a round and a variate once; 3 edges send one of each.
    assert float(megabytes[2]) == pytest.approx((12 + 3 + 6 + 3) / (12 + 3) * float(megabytes[0]), abs=0.11)


def test_the_own_system_is_what_hflray_new_writes_and_its_trials_are_made(monkeypatch):
    from hflray.command.new import SYSTEM
    from hflray.sweep import expand, load_sweep
    from hflray.sweep.preflight import check_trials

    folder = EXAMPLES / "7_own_system"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        p.name: p.read_bytes() for p in SYSTEM.iterdir()
    }
    file = load_sweep(folder / "sweep.yaml")
    trials = expand(file)
    assert [trial.config.assignment.name for trial in trials] == ["geographic", "best_gain", "local_search"]
    checked = check_trials(trials, file.task, measure=False)
    assert set(checked.samples.values()) == {561 / 12}
    with Experiment(trials[2].config.model_copy(update={"max_rounds": 1})) as experiment:
        assert experiment.scenario.fleet.device_names[:2] == ("school", "market")
        assert experiment.run_round().accuracy > 0.5


@pytest.mark.slow
def test_the_strategy_of_flower_bills_its_rounds(tmp_path):
    """Flower is installed in an environment of its own, which sees the packages of this one."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(python.parents[1])], check=True)
    (packages,) = (python.parents[1] / "lib").glob("python*/site-packages")
    (packages / "ours.pth").write_text("\n".join(site.getsitepackages()), encoding="utf-8")
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "flwr"], check=True, timeout=200)
    env = os.environ | {"PYTHONPATH": str(EXAMPLES.parent), "FLWR_TELEMETRY_ENABLED": "0"}
    command = [str(python), str(EXAMPLES / "8_flower_strategy.py")]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    bills = re.findall(r"^round (\d): ([\d.]+) s, ([\d.]+) J, devices per edge \[(\d), (\d)\]$", done.stdout, re.M)
    assert [bill[0] for bill in bills] == ["1", "2", "3"]
    assert all(int(first) + int(second) == 4 and float(seconds) > 0 for _, seconds, _, first, second in bills)
