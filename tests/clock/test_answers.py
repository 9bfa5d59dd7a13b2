"""docs/results/clock.md has the tables of the committed exports."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hflray.report.exports import exports, read_exhibit
from tests.clock.answers import QUESTIONS
from tests.training.answers import RESULTS


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() & {place.name for place in exports(RESULTS)}))
def test_the_page_has_the_tables_of_the_exports(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "clock.md").read_text(encoding="utf-8")
    lines = QUESTIONS[name](read_exhibit(RESULTS / name)).splitlines()
    assert len(lines) > 3
    if name == "clouds_minimise":  # the page says the least and the largest ratio
        ratios = [sorted(re.findall(r"(\d\.\d\d) \(", line)) for line in lines if line.startswith("| mean_edge")]
        assert [f"{each[0]} to {each[-1]}" for each in ratios if f" {each[0]} to {each[-1]} times" not in page] == []
        return
    assert [line for line in lines if f"\n{line}\n" not in page] == []
