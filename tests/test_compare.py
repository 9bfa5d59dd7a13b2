"""hflray.compare: the closing table and the comparison URL."""

from __future__ import annotations

import io
import json
from urllib.parse import parse_qs

from rich.console import Console

from hflray import metrics
from hflray.compare import Outcome, closing_table, comparison_url, main, metric_url
from hflray.results import SweepFolder
from hflray.sweep import load_sweep
from hflray.tracking import Tracker, default_uri
from tests.conftest import small_config


def render(outcomes: list[Outcome]) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(closing_table("title", outcomes))
    return console.export_text()


def test_the_table_shows_totals_and_fits_eighty_columns() -> None:
    values = {
        metrics.ACCURACY: 0.9123,
        metrics.TOTAL_OBJECTIVE: 1326.24,
        metrics.TOTAL_DELAY_S: 1321.9,
        metrics.TOTAL_ENERGY_J: 4.34,
        metrics.TOTAL_MESSAGE_BITS: 64.2 * 8e6,
    }
    text = render([Outcome("digits-H10-λ1-fedavg-hfel-s0", 5, values, ended=True), Outcome("bad", 2, {}, error="x")])
    row = next(line for line in text.splitlines() if line.strip().startswith("digits"))
    assert row.split() == ["digits-H10-λ1-fedavg-hfel-s0", "5", "91.2%", "1,326.2", "1,321.9", "4.3", "64"]
    assert next(line for line in text.splitlines() if line.strip().startswith("bad")).split() == [
        "bad",
        "2",
        "✗",
        *["–"] * 5,
    ]
    assert "to target" not in text


def test_a_trial_that_has_not_ended_is_marked() -> None:
    assert "3 …" in render([Outcome("a", 3, {metrics.ACCURACY: 0.5})])
    assert "0 …" in render([Outcome("not yet begun")])


def test_the_target_has_a_column_once_somebody_reached_it() -> None:
    text = render([Outcome("a", 3, {metrics.ACCURACY: 0.5, metrics.ROUNDS_TO_TARGET: 3.0}), Outcome("b", 9, {})])
    assert "to target" in text


def test_clustering_alone_has_columns_of_its_own() -> None:
    text = render([Outcome("a", 0, {metrics.CLUSTERING_ARI: 1.0, metrics.CLUSTERING_DELAY_S: 3.1})])
    assert "1.000" in text
    assert "3.10" in text
    assert "accuracy" not in text


def test_the_url_names_runs_and_experiment() -> None:
    url = comparison_url("7", ["aa", "bb"])
    page, _, query = url.partition("?")
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    assert {key: json.loads(value[0]) for key, value in parse_qs(query).items()} == {
        "runs": ["aa", "bb"],
        "experiments": ["7"],
    }


def test_the_curve_of_a_metric_has_a_url() -> None:
    url = metric_url("7", ["aa"], "total/objective")
    query = parse_qs(url.partition("?")[2])
    assert json.loads(query["metric"][0]) == "total/objective"
    assert json.loads(query["plot_metric_keys"][0]) == ["total/objective"]
    assert query["x_axis"] == ["step"]


def test_a_sweep_is_compared_from_what_mlflow_has(tmp_path, capsys) -> None:
    uri = default_uri(tmp_path)
    folder = SweepFolder(tmp_path / "mine-20260101-000000", load_sweep(None, ["name=mine"]), uri, "tests", True)
    folder.save()
    tracker = Tracker(uri, "tests", folder.path.name, folder.path)
    for name in ("first", "second"):
        tracker.start(name, name, small_config(), {})
        tracker.round(name, 1, {metrics.ACCURACY: 0.5, metrics.ROUND_OBJECTIVE: 3.0, metrics.TOTAL_OBJECTIVE: 3.0})
        tracker.finish(name, error="it broke" if name == "second" else None)
    assert tracker.close()
    assert main(["mine", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "first" in out
    assert "1 ✗" in out
    assert all(run_id in out for run_id in tracker.run_ids())
    assert main(["yours", "--results", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
