"""docs/results/inside.md has the tables of the committed exports."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hflray import metrics
from hflray.report.exports import exports, read_exhibit
from tests.report.fabricated import run, sweep
from tests.training.answers import QUESTIONS, RESULTS, adjusted_over_seeds, grouped, p_over_seeds


@pytest.mark.parametrize("name", sorted(QUESTIONS.keys() & {place.name for place in exports(RESULTS)}))
def test_the_page_has_the_tables_of_the_exports(name: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "results" / "inside.md").read_text(encoding="utf-8")
    lines = QUESTIONS[name](read_exhibit(RESULTS / name)).splitlines()
    assert len(lines) > 3
    assert [line for line in lines if f"\n{line}\n" not in page] == []


@pytest.mark.parametrize(("seeds", "p"), [(2, np.nan), (5, np.nan), (6, 0.03125)])
def test_too_few_seeds_for_a_significant_answer_have_no_p_value(seeds: int, p: float) -> None:
    assert p_over_seeds([1.0 + seed for seed in range(seeds)]) == pytest.approx(p, nan_ok=True)


def test_a_run_that_still_goes_on_is_not_one_that_diverged() -> None:
    one = run({metrics.ACCURACY: [0.1, 0.2]})
    runs = [replace(one, history=replace(one.history, status=status)) for status in ("FINISHED", "FAILED", "RUNNING")]
    kept = [len(grouped(sweep("rules", [each]), lambda each: (each.name,))) for each in runs]
    assert kept == [1, 1, 0]


def test_six_seeds_cannot_decide_among_two_tests() -> None:
    six = [1.0 + seed for seed in range(6)]
    assert adjusted_over_seeds({"one": six, "two seeds": six[:2]}) == pytest.approx(
        {"one": 0.03125, "two seeds": np.nan}, nan_ok=True
    )
    assert np.isnan([*adjusted_over_seeds({"one": six, "another": six}).values()]).all()
