"""Files of strangers: every reader reads them or refuses them in a line, and nothing exhausts it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from hflray.command.cli import app
from hflray.support.terminal.app import exit_code
from tests.foreign import attacks
from tests.foreign.cases import KINDS, _assigner, _data, _scheduler, _swept, run
from tests.foreign.mutations import with_policy
from tests.foreign.samples import FOLDER, NAME
from tests.inputs.harness import limits

MOST_BYTES, WITHIN_S = 10**9, 60


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_file_is_read(whole: Path, tmp_path: Path, kind: str) -> None:
    _, ended = run(whole, tmp_path / "work", kind, 0, mutates=False)
    assert (ended.outcome, ended.code) == ("valid", 0), ended


def test_mutated_files(whole: Path, tmp_path: Path) -> None:
    endings = {(kind, seed): run(whole, tmp_path / "work", kind, seed) for kind in KINDS for seed in (0, 1)}
    assert {case: ending for case, ending in endings.items() if ending[1].outcome == "defect"} == {}


def called(*words: str) -> tuple[int, str]:
    """Return the exit code of the command in this process, and what it printed on stderr; without Ray and MLflow."""
    with (
        mock.patch("hflray.tune.driver.run_sweep", _swept),
        mock.patch("hflray.tracking.tracker.SINKS", ("csv",)),
        mock.patch("hflray.report.figures.save_all", return_value=[]),
        limits(),
    ):
        return exit_code(app, list(words), "hflray")  # type: ignore[return-value]


def lines(captured: Any) -> list[str]:
    return [line for line in captured.err.splitlines() if line.startswith("error: ")]


@pytest.mark.parametrize("attack", attacks.EXPORT)
def test_an_export_that_attacks(root: Path, attack: str, capsys: pytest.CaptureFixture[str]) -> None:
    attacks.EXPORT[attack](root)
    code = called("report", "show", NAME, "--from", str(root / "exports"), "--out", str(root / "out"))
    assert code == 2
    assert len(lines(capsys.readouterr())) == 1


@pytest.mark.parametrize("attack", attacks.RESULTS)
@pytest.mark.parametrize(
    "command", ["report", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sync", "resume", "explain"))]
)
def test_a_results_folder_that_attacks(
    root: Path, attack: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    attacks.RESULTS[attack](root)
    results, folder = root / "results", root / "results" / FOLDER
    words = {
        "report": ("report", "show", FOLDER, "--results", str(results), "--out", str(root / "out")),
        "explain": ("explain", "digits-H6-λ1-ikc-geographic-s0", "--round", "1", "--results", str(results)),
        "sync": ("sync", str(folder)),
        "resume": ("tune", "--resume", FOLDER, "--results", str(results)),
    }[command]
    code = called(*words)
    errors = lines(capsys.readouterr())
    assert code in (0, 1) or (code == 2 and errors)
    if "sweep.json" in attack:
        assert code == 2
    if command in ("sync", "resume") and ("link" in attack or "pipe" in attack):
        assert code == 2  # nothing is written through it


@pytest.mark.parametrize("attack", attacks.POLICY)
def test_a_policy_or_a_data_set_that_attacks(root: Path, attack: str) -> None:
    attacks.POLICY[attack](root)
    with limits():
        assert (_data if "data" in attack else _assigner)(root / "files", None) == 2  # type: ignore[arg-type]


def test_a_policy_of_a_huge_network(root: Path) -> None:
    files = root / "files"
    with_policy(files / "assigner.safetensors", lambda head, _: head["spec"].update(hidden=60_000, width=60_000))
    with_policy(files / "scheduler.safetensors", lambda head, _: head["spec"].update(width=90_000))
    with limits():
        assert _assigner(root / "files", None) == 2  # type: ignore[arg-type]
        assert _scheduler(root / "files", None) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("link", ["report", "journal", "csv"])
def test_nothing_is_written_through_a_link(root: Path, link: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder, elsewhere = root / "results" / FOLDER, root / "elsewhere"
    if (folder / link).exists():
        shutil.move(folder / link, elsewhere)
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "index.html").write_text("mine")
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    (folder / link).symlink_to(elsewhere)
    codes = [
        called("report", "show", FOLDER, "--results", str(root / "results")),
        called("sync", str(folder)),
        called("tune", "--resume", FOLDER, "--results", str(root / "results")),
    ]
    assert codes[1:] == [2, 2]
    assert codes[0] == (0 if link == "csv" else 2)
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before


def test_a_link_to_the_results_is_the_users_own(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "mine").symlink_to(root / "results")
    assert called("report", "show", FOLDER, "--results", str(root / "mine")) == 0
    assert (root / "results" / FOLDER / "report" / "index.html").is_file()
    (root / "link").symlink_to(root / "results" / FOLDER)
    assert called("sync", str(root / "link"), "--tracking-uri", "sqlite:///x.db") == 0
    (root / "to_exports").symlink_to(root / "exports")
    assert called("report", "show", NAME, "--from", str(root / "to_exports"), "--out", str(root / "out")) == 0
