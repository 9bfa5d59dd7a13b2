"""``hflray reproduce``: the list, verdicts from exports and from results, and what goes on."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from hflray import metrics
from hflray.errors import ConfigError
from hflray.report.exports import export
from hflray.reproduction import command
from hflray.reproduction.command import app
from hflray.reproduction.protocol import PAPERS, paper
from hflray.sweep import load_sweep, with_absolute_paths
from hflray.sweep.results import new_folder
from tests.report.fabricated import run, sweep
from tests.reproduction.test_judge import HEAD, LEADS

RUN = CliRunner()
OWN = "hflray.reproduction.tsdp.assigners"


def invoked(*arguments: str) -> str:
    result = RUN.invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_without_a_name_all_papers_are_listed() -> None:
    text = invoked()
    for name in PAPERS:
        assert f"\n{name} " in f"\n{text}"
        assert paper(name).source in text


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    names = [f"assignment.name={OWN}:{name}" for name in ("TwinSorting", "Exhaustive")]
    made = sweep(
        "tsdp", [run({metrics.ROUND_DELAY_S: [5.0] * 1000}, name, "fleet.num_edges=2") for name in names], "assignment"
    )
    export(replace(made, runs=[replace(one, history=replace(one.history, name=f"r{number}"))
                               for number, one in enumerate(made.runs)]), tmp_path / "tsdp")  # fmt: skip
    return tmp_path


def test_exports_are_judged_without_a_run(exported: Path) -> None:
    text = invoked("tsdp", "--from", str(exported))
    assert "n: 1000 of 1000 fleets" in text
    assert "not run; 6 claims have too few runs" in text
    assert "tsdp, the full form: 1 yes, 7 with too few runs" in text


def test_markdown_is_for_a_page(exported: Path) -> None:
    text = invoked("tsdp", "--from", str(exported), "--markdown")
    assert text.startswith("### Two and three edges: ")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert "| yes |" in rows[2]


def test_a_folder_without_the_papers_exports_is_an_error(tmp_path: Path, exported: Path) -> None:
    with pytest.raises(ConfigError, match="holds no export of hierfavg_quick"):
        RUN.invoke(app, ["hierfavg", "--quick", "--from", str(exported)], catch_exceptions=False)
    with pytest.raises(ConfigError, match="--dry-run runs nothing"):
        RUN.invoke(app, ["tsdp", "--dry-run", "--from", str(exported)], catch_exceptions=False)


class Tune:
    """Takes the place of ``hflray tune``; the sweep named `fails` ends with 3."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, list[list[str]]()

    def __call__(self, words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        assert words[:4] == [
            sys.executable,
            "-P",
            "-m",
            "hflray.tune",
        ]  # -P: it imports nothing of the folder it runs in
        self.calls.append(words[4:])
        return subprocess.CompletedProcess(words, 3 if self.fails and self.fails in " ".join(words) else 0)


def saved(results: Path, name: str, finished: bool) -> Path:
    """Save a folder of a sweep of TSDP; return its path."""
    one = paper("tsdp")
    file = with_absolute_paths(load_sweep(one.sweep_file(one.exhibits[name])))
    folder = new_folder(results, file, "sqlite:///x.db", "hflray")
    folder.finished = finished
    folder.path.mkdir(parents=True)
    folder.save()
    return folder.path


def test_what_has_ended_is_left_and_what_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = Tune()
    monkeypatch.setattr(command.subprocess, "run", tune)
    monkeypatch.setattr(command, "_read", lambda *_: {})
    saved(tmp_path, "tsdp", finished=True)
    path = saved(tmp_path, "tsdp_large", finished=False)
    text = invoked("tsdp", "--results", str(tmp_path), "--cpus", "1")
    assert "tsdp (1 of 2): has ended" in text
    assert "tsdp_large (2 of 2): goes on" in text
    assert tune.calls == [["--resume", path.name, "--cpus", "1", "--results", str(tmp_path)]]


def test_a_failed_sweep_ends_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = Tune(fails="tsdp.yaml")
    monkeypatch.setattr(command.subprocess, "run", tune)
    result: Any = RUN.invoke(app, ["tsdp", "--results", str(tmp_path)])
    assert result.exit_code == 3
    assert len(tune.calls) == 1
    assert tune.calls[0][0] == "--fresh"
    assert "give the same command again" in result.output


def test_a_dry_run_lists_every_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tune = Tune()
    monkeypatch.setattr(command.subprocess, "run", tune)
    invoked("tsdp", "--dry-run", "--results", str(tmp_path), "--data-root", "/d")
    assert [call[0] for call in tune.calls] == ["--dry-run", "--dry-run"]
    assert all(call[2:4] == ["--data-root", "/d"] for call in tune.calls)


def test_what_was_run_here_is_judged_with_the_runs_that_an_exhibit_borrows(monkeypatch: pytest.MonkeyPatch) -> None:
    curve = {metrics.ACCURACY: [0.5] * 20 + [0.9] * 20}
    lent = run(curve, "data.name=fashion_mnist", "scheduling.name=ikc", "scheduling.num_scheduled=30")
    monkeypatch.setattr(
        "hflray.report.runs.read_sweep",
        lambda results, name: sweep(name, [lent] if name == "fig3_fashion_scheduling" else []),
    )
    read = command._read(list(paper("zhang").of_form(False).values()), Path("unused"), None)
    assert [(each.part, len(each.rounds)) for each in read["fig7_framework"].runs] == [("fig3_fashion_scheduling", 25)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder of one's own, with claims for three seeds and a sweep of two."""
    (tmp_path / "claims.yaml").write_text(
        HEAD.replace("PLAN", "{seeds: 3}").replace("CLAIMS", LEADS).replace("plan:", "forms: [full], plan:")
    )
    (tmp_path / "x.yaml").write_text(
        "name: x\nexperiment: {data: {name: digits}, max_rounds: 1}\n"
        "sweep: {scheduling.name: {grid: [ikc]}, seed: {grid: [0, 1, 5]}}\n"
    )
    return tmp_path


def test_runs_that_are_not_used_and_exports_of_other_names_are_said(folder: Path) -> None:
    """A newer run of a trial replaces an older one, though it may be shorter."""
    for name, rounds in (("a", 5), ("b", 1)):
        made = sweep("x", [run({metrics.ACCURACY: [0.5] * rounds}, "scheduling.name=ikc")])
        export(made, folder / "kept" / "x" / name)
    text = invoked(str(folder), "--from", str(folder / "kept"))
    assert "\nnote: " in text
    with pytest.raises(ConfigError, match="holds no export of x; accepted: a, b; "):
        RUN.invoke(app, [str(folder), "--from", str(folder / "kept" / "x")], catch_exceptions=False)


def test_settings_without_planned_trials_are_named_before_the_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **settings: SimpleNamespace(returncode=0))
    text = invoked(str(folder), "--dry-run")
    assert "note: X: x.yaml has 2 of the 3 planned seeds with scheduling.name=ikc" in text
    assert "note: X: x.yaml has 0 of the 3 planned seeds with scheduling.name=vkc" in text
    assert "note" not in invoked("tsdp", "--dry-run")


def test_a_sweep_file_of_another_name_is_refused_before_the_runs(folder: Path) -> None:
    (folder / "x.yaml").write_text((folder / "x.yaml").read_text().replace("name: x", "name: y"))
    with pytest.raises(ConfigError, match=r"x\.yaml: name: got 'y'; accepted: 'x'"):
        RUN.invoke(app, [str(folder), "--dry-run"], catch_exceptions=False)


def test_a_form_without_exhibits_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no exhibit has quick among its forms; add forms: \[quick\] to one"):
        RUN.invoke(app, [str(folder), "--quick"], catch_exceptions=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a thousand fleets
def test_a_paper_is_repeated_in_full(tmp_path: Path) -> None:
    """TSDP by the real command, twice: the second time nothing runs."""
    words = [sys.executable, "-m", "hflray", "reproduce", "tsdp", "--results", str(tmp_path)]
    first = subprocess.run(words, capture_output=True, text=True, check=True, timeout=900).stdout
    assert "n: 1000 of 1000 fleets" in first
    assert "tsdp, the full form: 7 yes, 1 no" in first
    again = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120).stdout
    assert "tsdp (1 of 2): has ended" in again
    assert again.splitlines()[-1] == first.splitlines()[-1]
