"""The pages of docs/results have the tables that the committed exports give."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from hflray import metrics
from hflray.report.exports import exports, read_exhibit
from hflray.report.runs import SweepRecord
from tests.clock import answers as clock
from tests.report.fabricated import run, sweep
from tests.training import answers as inside
from tests.training.answers import RESULTS
from tests.world import answers as world

# By page: what makes the table of an export.
PAGES: dict[str, dict[str, Callable[[SweepRecord], str]]] = {
    "clock": clock.QUESTIONS, "inside": inside.QUESTIONS, "world": dict.fromkeys(world.QUESTIONS, world.table),
}  # fmt: skip
SHOWN = [(page, place.name) for page, made in PAGES.items() for place in exports(RESULTS) if place.name in made]


@pytest.mark.parametrize("page, name", SHOWN)
def test_the_page_has_the_tables_of_the_exports(page: str, name: str) -> None:
    text = (Path(__file__).parents[1] / "docs" / "results" / f"{page}.md").read_text(encoding="utf-8")
    lines = PAGES[page][name](read_exhibit(RESULTS / name)).splitlines()
    assert len(lines) > 3
    if name == "clouds_minimise":  # the page says the least and the largest ratio
        ratios = [sorted(re.findall(r"(\d\.\d\d) \(", line)) for line in lines if line.startswith("| mean_edge")]
        lines = [f" {each[0]} to {each[-1]} times" for each in ratios]
        assert [line for line in lines if line not in text] == []
        return
    assert [line for line in lines[2 * (page == "world") :] if f"\n{line}\n" not in text] == []


def test_a_run_that_still_goes_on_is_not_one_that_diverged() -> None:
    one = run({metrics.ACCURACY: [0.1, 0.2]})
    runs = [replace(one, history=replace(one.history, status=status)) for status in ("FINISHED", "FAILED", "RUNNING")]
    kept = [len(inside.grouped(sweep("rules", [each]), lambda each: (each.name,))) for each in runs]
    assert kept == [1, 1, 0]
