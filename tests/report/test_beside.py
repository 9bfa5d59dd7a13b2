"""hflray.report.beside: RESULTS.md says what the exports say, and the committed one is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from hflray.report import beside
from hflray.report.choices import Study
from hflray.report.cli import CONFIGS
from hflray.report.paper import EXHIBITS
from hflray.report.runs import export

ROOT = Path(__file__).parents[2]
EXPORTS = ROOT / "tests" / "data" / "results"


def test_a_page_of_what_there_is(sweep, tmp_path) -> None:
    mine = type(sweep)("fig3_fashion_scheduling", sweep.title, sweep.task, "", sweep.runs)
    export(mine, tmp_path / "fig3_fashion_scheduling")
    text = beside.render(beside.read_all(tmp_path), CONFIGS, "here")
    sections = text.split("\n## ")
    assert [part.partition(":")[0] for part in sections[1:3]] == ["Figure 3", "Figure 4"]
    assert "4 of 60 runs, 4 of them ended; seeds 0, 1; 2 rounds each" in sections[1]
    assert "`data.name=digits`" in sections[1]  # unlike the shipped configuration, and so it says
    assert "so far" in sections[1]
    assert "Not run yet." in sections[2]
    assert len(sections) == 1 + len(EXHIBITS)


@pytest.mark.skipif(not EXPORTS.is_dir(), reason="there are no exports")
def test_the_committed_page_is_that_of_the_committed_exports() -> None:
    text = beside.render(beside.read_all(EXPORTS), CONFIGS, "tests/data/results", Study.read(EXPORTS))
    committed = (ROOT / "tune_configs" / "RESULTS.md").read_text(encoding="utf-8")
    assert committed == text, "write it again: python -m hflray.report results"


def test_the_exports_are_small() -> None:
    sizes = {path: path.stat().st_size for path in EXPORTS.rglob("*") if path.is_file()}
    assert sum(sizes.values()) < 5_000_000
    assert max(sizes.values(), default=0) < 500_000
