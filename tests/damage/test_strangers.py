"""A results folder from a stranger runs no code: not even the texts of references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hflray.command import compare
from hflray.command import report as report
from hflray.errors import ConfigError
from hflray.support import references
from hflray.sweep import load_sweep
from hflray.sweep.results import SweepFolder
from tests.conftest import own_module
from tests.foreign import samples
from tests.inputs.harness import captured

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def trap(tmp_path) -> Path:
    """Return the path of the file that a stranger's code makes."""
    return tmp_path / "code ran"


OWN = own_module("strangers")
SWEEP = Path(__file__).with_name("strangers.yaml").read_text(encoding="utf-8")


@pytest.fixture
def with_references(tmp_path, trap, monkeypatch) -> Path:
    """Return the results of a finished sweep whose parts were all its author's own; their file is gone."""
    for name in ("_sources", "_modules", "_ran"):
        monkeypatch.setattr(references, name, {})
    path = tmp_path / "own.py"
    path.write_text(OWN.replace("TRAP", repr(str(trap))))
    (tmp_path / "mine.yaml").write_text(SWEEP)
    results = tmp_path / "results"
    samples.results(results, load_sweep(tmp_path / "mine.yaml"), finished=True)
    assert trap.exists(), "the text of the file makes the trap whenever it runs"
    trap.unlink()
    path.unlink()
    for name in ("_sources", "_modules", "_ran"):  # from here on, this process is as one that has just begun
        monkeypatch.setattr(references, name, {})
    return results


def answer(main: Callable[[list[str]], object], *arguments: str) -> tuple[int | None, str]:
    """Return the exit code of a command and what it prints, on one line."""
    code, out, err, _ = captured(lambda: main(list(arguments)))  # type: ignore[arg-type,return-value]
    return code, " ".join(f"{out} {err}".split())


def test_a_strangers_sweep_of_their_own_parts_is_shown_and_none_of_its_code_runs(
    with_references, trap, monkeypatch, tmp_path
) -> None:
    monkeypatch.chdir(tmp_path)
    folders = ("--results", str(with_references))
    page = tmp_path / "page"
    code, text = answer(report.main, "mine", *folders, "--out", str(page), "--export", str(tmp_path / "export"))
    assert code == 0
    assert {path.name for path in page.iterdir()} >= {"index.html", "summary.md", "recall.png", "cost.png"}
    # The rounds of the second run can only be shown with its author's mobility. All else needs no code of theirs.
    assert text.count("missing:") == 1
    assert "missing: own.py:Drift: the text with sha256" in text
    summary = (page / "summary.md").read_text()
    assert [word in summary for word in ("Highest", "FedAvg, Drift", "recall")] == [True] * 3
    code, text = answer(report.main, "mine", "--from", str(tmp_path / "export"), "--out", str(page))
    assert code == 0
    names = [path.stem for path in with_references.glob("*/journal/*.jsonl")]
    (still,), (drifts,) = ([name for name in names if (word in name)] for word in ("Highest", "Drift"))
    code, text = answer(report.main, "explain", still, "--round", "1", *folders)
    assert (code, "scheduled by Highest" in text, "recall 0." in text) == (0, True, True)
    code, text = answer(report.main, "explain", drifts, "--round", "1", *folders)
    assert (code, text.startswith("error: own.py:Drift: the text with sha256 ")) == (2, True)
    code, text = answer(compare.main, "mine", *folders)
    assert (code, "recall" in text, "has no runs of mine" in text) == (2, True, True)  # the folder has a journal alone
    assert not trap.exists()
    # The user's own file with the same text lets it run, but not one that lies inside the folder that was sent.
    folder = SweepFolder.load(next(with_references.glob("mine-*")))
    stolen = with_references / "mine" / "own.py"
    stolen.parent.mkdir()
    for path in (stolen, tmp_path / "own.py"):
        path.write_text(OWN.replace("TRAP", repr(str(trap))))
    unfinished = replace(folder, finished=False, sources=tuple(replace(s, path=str(stolen)) for s in folder.sources))
    with pytest.raises(ConfigError, match="--trust"):
        unfinished.admit()
    assert not trap.exists()
    code, text = answer(report.main, "mine", *folders, "--out", str(page))
    assert (code, "missing" in text) == (0, False)
    assert trap.exists()
