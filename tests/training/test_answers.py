"""docs/results/inside.md has the tables of the committed exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hflray import metrics
from hflray.report.exports import exports, read_exhibit
from tests.report.fabricated import run, sweep
from tests.training.answers import QUESTIONS, RESULTS, grouped


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() & {place.name for place in exports(RESULTS)}))
def test_the_page_has_the_tables_of_the_exports(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "inside.md").read_text(encoding="utf-8")
    lines = QUESTIONS[name](read_exhibit(RESULTS / name)).splitlines()
    assert len(lines) > 3
    assert [line for line in lines if f"\n{line}\n" not in page] == []


def test_a_run_that_still_goes_on_is_not_one_that_diverged() -> None:
    one = run({metrics.ACCURACY: [0.1, 0.2]})
    runs = [replace(one, history=replace(one.history, status=status)) for status in ("FINISHED", "FAILED", "RUNNING")]
    kept = [len(grouped(sweep("rules", [each]), lambda each: (each.name,))) for each in runs]
    assert kept == [1, 1, 0]
