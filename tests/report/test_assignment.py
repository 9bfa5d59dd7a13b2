"""hflray.report.assignment: the table has the numbers computed by hand, and the files can be opened."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from matplotlib import image
from rich.console import Console

from hflray import metrics
from hflray.report.assignment import as_table, summary, write
from tests.support.terminal.rendering import WIDTHS, check_whole, render


def study(objectives: list[float], latencies: list[float]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            metrics.ROUND_DELAY_S: [1.0] * len(objectives),
            metrics.ROUND_ENERGY_J: [o - 1.0 for o in objectives],
            metrics.ROUND_OBJECTIVE: objectives,
            metrics.ASSIGNMENT_GAP: [0.1, 0.2, 0.6][: len(objectives)],
            metrics.WALL_ASSIGN_S: latencies,
        }
    )


STUDIES = {
    "geographic": study([10.0, 20.0, 60.0], [0.001, 0.002, 0.003]),
    "local_search joint": study([8.0, 9.0, 13.0], [0.02, 0.02, 0.02]),
}


def test_the_summary_has_the_statistics_computed_by_hand() -> None:
    rows = summary(STUDIES)
    row = rows.loc["geographic"]
    assert row["objective"] == 30.0
    assert row["objective_median"] == 20.0
    assert row["energy_j"] == 29.0
    assert row["latency_ms_median"] == pytest.approx(2.0)
    assert row["latency_ms_p95"] == pytest.approx(2.9)
    assert row["fleets"] == 3
    gaps = [row[f"gap_{kind}"] for kind in ("median", "mean", "p95", "worst")]
    assert gaps == pytest.approx([0.2, 0.3, 0.56, 0.6])
    assert list(rows.index) == list(STUDIES)


def test_the_files_and_the_table_hold_the_study(tmp_path) -> None:
    table, paths = write("title", STUDIES, tmp_path / "out")
    assert [path.name for path in paths] == [
        "assignment.csv",
        "assignment.parquet",
        "assignment_delay.png",
        "assignment_energy.png",
        "assignment_objective.png",
    ]
    assert pd.read_csv(paths[0], index_col=0).loc["geographic", "objective"] == 30.0
    fleets = pd.read_parquet(paths[1])
    assert fleets.groupby("assigner")[metrics.ROUND_OBJECTIVE].sum().to_dict() == {
        "geographic": 90.0,
        "local_search joint": 30.0,
    }
    for path in paths[2:]:
        pixels = image.imread(path)
        assert pixels.shape[0] > 400
        assert pixels[..., :3].min() < 0.5 < pixels[..., :3].max()
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table)
    text = console.export_text()
    line = next(line for line in text.splitlines() if "geographic" in line)
    assert line.split() == ["geographic", "1.0", "29.0", "30.0", "20.0", "20.0", "30.0", "56.0", "60.0", "2.00", "2.90"]


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_is_whole_at_any_width(width) -> None:
    label = "D3QN, shipped (any deployment), polished to an optimum, joint deadline"
    table = as_table("fig6_assignment (12 s)", summary(STUDIES | {label: STUDIES["geographic"]}))
    cells = [cell for row in table.rows for cell in row]
    check_whole(render(table, width), width, [table.title, *table.headings, *cells])
