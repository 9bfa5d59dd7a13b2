"""docs/results/inside.md has the tables of the committed exports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hflray.report.exports import exports, read_exhibit
from tests.training.answers import QUESTIONS, RESULTS, p_over_seeds


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() & {place.name for place in exports(RESULTS)}))
def test_the_page_has_the_tables_of_the_exports(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "inside.md").read_text(encoding="utf-8")
    lines = QUESTIONS[name](read_exhibit(RESULTS / name)).splitlines()
    assert len(lines) > 3
    assert [line for line in lines if f"\n{line}\n" not in page] == []


@pytest.mark.parametrize(("seeds", "p"), [(2, np.nan), (5, np.nan), (6, 0.03125)])
def test_too_few_seeds_for_a_significant_answer_have_no_p_value(seeds: int, p: float) -> None:
    assert p_over_seeds([1.0 + seed for seed in range(seeds)]) == pytest.approx(p, nan_ok=True)
