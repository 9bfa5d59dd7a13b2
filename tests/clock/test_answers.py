"""docs/results/clock.md has the tables of the committed exports."""

from __future__ import annotations

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
    assert [line for line in lines if f"\n{line}\n" not in page] == []
