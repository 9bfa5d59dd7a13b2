"""tests/benchmarks/sweep.py runs, and slow tests hold its figures within bounds that noise does not reach."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.benchmarks import sweep


@pytest.mark.slow
def test_what_tracking_adds_to_a_round_can_be_measured(tmp_path: Path) -> None:
    table = sweep.overhead(tmp_path, 3, sweep.LITTLE, turns=1)
    assert table.key == "sweep/overhead"
    assert math.isfinite(table.facts["more_s"])
    assert math.isfinite(table.facts["share"])
    alone, tuned = (float(str(row["ms"])) for row in table.rows)
    assert table.ratios == {"a bare round, of one under Tune": pytest.approx(alone / tuned)}
    assert "a round of synthetic, medians of 2 rounds" in table.text()
    assert sweep.ended(tmp_path, "one0") == 1


def test_the_slope_is_fitted_to_the_middle_of_the_trials() -> None:
    growth = sweep.Growth([(0, 50.0), (10, 300.0), *((n, 300.0 + n) for n in range(20, 96)), (100, 999.0)])
    assert growth.slope(100) == pytest.approx(1.0)
    assert growth.at(50) == 350.0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_drivers_memory_hardly_grows_with_the_trials(tmp_path: Path) -> None:
    trials = 200
    growth = sweep.many(tmp_path, trials, reuse=True)
    assert growth.slope(trials) < 0.1  # MB per trial; an early version had 0.3


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_rounds_do_not_wait_for_a_server(tmp_path: Path) -> None:
    """Each request to the slow server takes 2 s, which no round takes longer than with the others."""
    medians = sweep.servers(tmp_path, 20, turns=1).facts
    assert max(medians.values()) - min(medians.values()) < 1.0
