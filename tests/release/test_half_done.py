"""The version, and the results of each released version: they open, and a half-done sweep goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

import hflray
from hflray import metrics
from hflray.report.runs import read_sweep
from hflray.support.checkpoint import Checkpoints
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder
from hflray.sweep.tasks import find_task
from hflray.sweep.tasks.base import Job, Saved
from hflray.sweep.trials import expand
from hflray.tune.driver import adopt_older
from tests.release.distributions import ROOT
from tests.release.half_done import ROUNDS, SWEEP, archives, unpack

VERSIONS = [pytest.param(path, id=path.stem) for path in archives()]


def journals_of(folder: Path) -> dict[str, list[dict[str, float]]]:
    lines = {
        path.stem: path.read_text(encoding="utf-8").splitlines() for path in sorted((folder / "journal").iterdir())
    }
    parsed = {name: [json.loads(line) for line in each] for name, each in lines.items()}
    return {name: [line["metrics"] for line in each if "round" in line] for name, each in parsed.items()}


def simulated(values: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if not name.startswith("wall/")}


@pytest.mark.parametrize("archive", VERSIONS)
def test_its_runs_are_read(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path)
    (tmp_path / "released.yaml").write_text(SWEEP, encoding="utf-8")
    trials, now = expand(SweepFolder.load(folder).file), expand(load_sweep(tmp_path / "released.yaml"))
    assert [(trial.name, trial.config) for trial in trials] == [(trial.name, trial.config) for trial in now]
    sweep = read_sweep(tmp_path, folder.name)
    logged = journals_of(folder)
    assert [len(run.rounds) for run in sweep.runs] == [ROUNDS, len(list(logged.values())[1])]
    for run, rounds in zip(sweep.runs, logged.values(), strict=True):
        assert run.last(metrics.ACCURACY) == rounds[-1][metrics.ACCURACY]
        assert run.config.training.local_iterations == 300


@pytest.mark.parametrize("archive", VERSIONS)
def test_its_checkpoint_goes_on(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path)
    file = SweepFolder.load(folder).file
    trial = expand(file)[1]
    adopt_older(SweepFolder.load(folder), trial.name)
    checkpoints = Checkpoints(str(folder), trial.name)
    saved = [Saved(trial.name, partial(checkpoints.open, number)) for number in checkpoints.rounds()]
    result = next(iter(find_task(file.task).run(Job(trial.config, saved=saved))))
    assert result.step == 2
    assert result.note is None  # a damaged or foreign checkpoint would be named
    before = journals_of(folder)[trial.name][-1]
    for total in (metrics.TOTAL_DELAY_S, metrics.TOTAL_ENERGY_J, metrics.TOTAL_MESSAGE_BITS):
        assert result.metrics[total] > before[total]


@pytest.mark.slow
@pytest.mark.parametrize("archive", VERSIONS)
def test_its_sweep_goes_on_by_the_command(archive: Path, tmp_path: Path) -> None:
    results = tmp_path / "hflray_results"
    results.mkdir()
    folder = unpack(archive, results)
    earlier = journals_of(folder)
    # The address of MLflow is a file of the machine that ran the sweep; here it is that of the results.
    replace(SweepFolder.load(folder), uri=f"sqlite:///{results}/mlflow.db").save()
    command = [sys.executable, "-m", "hflray.tune", "--resume", folder.name, "--results", str(results)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    later = journals_of(folder)
    for name, rounds in earlier.items():
        assert len(later[name]) == ROUNDS
        assert list(map(simulated, later[name][: len(rounds)])) == list(map(simulated, rounds))


def test_every_file_names_the_same_version_and_its_date() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    meta = json.loads((ROOT / "codemeta.json").read_text(encoding="utf-8"))
    assert {project["version"], hflray.__version__, citation["version"], meta["version"]} == {hflray.__version__}
    date = citation["date-released"]
    assert meta["dateModified"] == str(date)
    heading = f"## {hflray.__version__} ({date.day} {date:%B %Y})"
    assert heading in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert citation["license"] == project["license"]
    assert meta["description"] == project["description"]
    assert meta["keywords"][:4] == project["keywords"][:4]
    assert set(citation["keywords"]) <= set(project["keywords"])


def test_this_version_has_left_a_sweep_for_the_next_ones() -> None:
    assert (ROOT / "tests" / "data" / "released" / f"hflray-{hflray.__version__}.zip").exists()
