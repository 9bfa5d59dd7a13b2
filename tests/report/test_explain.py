"""hflray.report.explain: the explanation has the numbers of the round."""

from __future__ import annotations

import io

import pandas as pd
import pytest
from rich.console import Console

from hflray import metrics
from hflray.config import load_config
from hflray.report.detail import Replay, allocation_texts
from hflray.report.explain import explain, inside, ordinal, sentences
from tests.conftest import says
from tests.report import fabricated
from tests.support.terminal.rendering import WIDTHS, check_whole, render


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


@pytest.mark.parametrize("method", ["newton", "equal", "fixed_cpu"])
def test_the_explanation_says_what_the_allocation_did(method) -> None:
    run = fabricated.explorable(1, f"allocation.method={method}")
    text = " ".join(render(explain(run, 1), 120).split())
    assert " ".join(allocation_texts(run.config.allocation)) in text
    assert ("minimise E + λT" in text) == (method == "newton")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_and_no_heading_is_cut(width, sweep) -> None:
    run = sweep.runs[0]
    round_ = Replay(run).round(2)
    text = render(explain(run, 2), width)
    texts = [run.name, "cluster", "nearest", "MHz", "GHz", "compute", "upload", "straggler"]
    for row in round_.devices.itertuples():
        texts += [f"{row.bandwidth_hz / 1e6:.3f}", f"{row.cpu_hz / 1e9:.3f}", f"{row.compute_s:.3f}"]
        texts += [f"{row.upload_s:.3f}", f"{row.joules * round_.edge_iterations:.3f}"]
    texts += [f"{row.energy_j:,.3f}" for row in round_.edges.itertuples()]
    check_whole(text, width, texts)
    if width >= 80:  # each device has one line
        heads = next(line for line in text.splitlines() if "cluster" in line and "MHz" in line)
        assert heads.split()[:4] == ["device", "edge", "nearest", "cluster"]


def test_the_parts_inside_the_round_are_named_with_their_bits_and_the_cost_of_privacy() -> None:
    assert inside(load_config(None, []), pd.Series({"round": 1})) == []
    parts = ["training.rule.name=fedprox", "aggregation.cloud.name=fedadam", "compression.device.name=sign"]
    private = ["privacy={clip: 0.5, delta: 1e-4}", "aggregation.weights=uniform"]
    row = pd.Series({"device_bits": 114_000.0, "edge_bits": 3_600_000.0, metrics.PRIVACY_EPSILON: 7.1234})
    trained, sent, spent = inside(load_config(None, [*parts, *private]), row)
    assert says(trained, "fedprox", "mean", "edges", "fedadam", "cloud")
    assert says(sent, "114.0 kbit", "sign", "3,600.0 kbit", "none")
    assert says(spent, "ε = 7.12", "δ = 0.0001")


def test_what_decides_is_named_beside_the_accuracy() -> None:
    run = fabricated.explorable(2, "scheduling.num_scheduled=10")
    replay = Replay(run)
    assert says(sentences(run, replay.round(1), replay.names)[1], "accuracy", "class balance")
    assert "validation" not in sentences(run, replay.round(1), replay.names)[1]
    run.rounds[metrics.VALIDATION_ACCURACY] = [0.25, 0.5]
    assert says(sentences(run, replay.round(2), replay.names)[1], "accuracy", "validation part", "decides, 50.0%")
