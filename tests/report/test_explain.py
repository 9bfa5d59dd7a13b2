"""hflray.report.explain: the explanation has the numbers of the round."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hflray.report.detail import Replay
from hflray.report.explain import explain, ordinal


def test_ordinals_name_the_rank() -> None:
    assert [ordinal(rank, "nearest") for rank in (1, 2, 3, 4)] == [
        "nearest",
        "2nd nearest",
        "3rd nearest",
        "4th nearest",
    ]


@pytest.mark.parametrize("scheduler, words", [("ikc", "of cluster"), ("fedavg", "which knows no clusters")])
def test_the_explanation_has_costs_clusters_and_devices_of_the_round(scheduler, words, sweep, records) -> None:
    run = next(run for run in sweep.runs if run.config.scheduling.name == scheduler)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(explain(run, 2))
    text, record = console.export_text(), records[run.name][1]
    assert f"T = {record.cost.delay_s:,.2f} s, E = {record.cost.energy_j:,.2f} J" in text
    assert f"accuracy {record.accuracy:.1%}" in text
    assert words in text
    slowest = int(record.cost.edge_delay_s.argmax())
    assert f"waited for edge {slowest}" in text
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    table = Replay(run).round(2).devices.sort_values(["edge", "device"])
    shown = [[row[0], row[1] if row[1] != "⚑" else row[2]] for row in rows[-len(table) :]]
    assert shown == [[str(row.device), str(row.edge)] for row in table.itertuples()]
    assert text.count("⚑") == table["straggler"].sum() + 1  # the legend has one more
