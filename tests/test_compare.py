"""hflray.compare: the closing table and the addresses of MLflow's comparison pages."""

from __future__ import annotations

import http.server
import io
import json
import threading
import webbrowser
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from rich.console import Console

from hflray import compare, metrics
from hflray.compare import (
    CURVES,
    Outcome,
    closing_table,
    comparison_lines,
    comparison_url,
    main,
    metric_url,
    open_pages,
    short_names,
)
from hflray.results import SweepFolder
from hflray.sweep import load_sweep
from hflray.tracking import Tracker, default_uri
from tests.browser import CHROMIUM, Page
from tests.conftest import small_config
from tests.servers import mlflow_server
from tests.tune.test_cli import call

COLUMNS = [row.name for row in metrics.rows("training") if row.short]


def render(outcomes: list[Outcome], table: metrics.Table = "training") -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(closing_table("title", outcomes, table_of=table))
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


def test_names_too_long_for_the_table_lose_their_common_parts() -> None:
    names = [f"synthetic-H{h}-λ{w}-fedavg-geographic-s0" for h in (4, 8) for w in (0.1, 10)]
    assert short_names(names, 36) == ["…-H4-λ0.1-…", "…-H4-λ10-…", "…-H8-λ0.1-…", "…-H8-λ10-…"]
    assert short_names(names[:1], 9) == names[:1]
    assert short_names(["a-b", "a-c"], 3) == ["a-b", "a-c"]
    rates = [f"synthetic-H4-λ1-fedavg-geographic-s0-learning_rate={rate}" for rate in ("1e-05", "0.1")]
    assert short_names(rates, 36) == ["…-learning_rate=1e-05", "…-learning_rate=0.1"]
    uneven = ["digits-H10-λ1-fedavg-local_search-s0", "digits-H10-λ1-fedavg-local_search-s0-a=1-b=2"]
    assert short_names(uneven, 36) == ["…", "…-a=1-b=2"]
    values = dict.fromkeys(COLUMNS, 1326.24) | {metrics.ACCURACY: 0.5}
    text = render([Outcome(name, 3, values, ended=True) for name in names])
    assert "accuracy to target objective delay s energy J MB" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_different_trials_have_different_names_in_eighty_columns() -> None:
    values = dict.fromkeys(COLUMNS, 12345.6) | {metrics.ACCURACY: 0.5}
    names = [f"synthetic-H4-λ1-fedavg-geographic-s{seed}" for seed in (0, 1)]
    for shown in (values, {metrics.ACCURACY: 0.5, metrics.TOTAL_OBJECTIVE: 4.5, metrics.TOTAL_DELAY_S: 4.1}):
        text = render([Outcome(name, 2, shown, ended=True) for name in names])
        rows = [line.split()[0] for line in text.splitlines() if "50.0%" in line]
        assert len(set(rows)) == 2
        assert [row[-1] for row in rows] == ["0", "1"]
        assert max(map(len, text.splitlines())) <= 80


def test_a_trial_stopped_early_is_marked_and_the_caption_explains_the_mark() -> None:
    text = render([Outcome("a", 3, {metrics.ACCURACY: 0.5}, ended=True, stopped="asha after round 3")])
    assert "3 ⊣" in text
    assert "⊣ stopped early" in text


def test_a_trial_that_has_not_ended_is_marked() -> None:
    assert "3 …" in render([Outcome("a", 3, {metrics.ACCURACY: 0.5})])
    assert "0 …" in render([Outcome("not yet begun")])


def test_the_target_has_a_column_once_a_trial_reached_it() -> None:
    text = render([Outcome("a", 3, {metrics.ACCURACY: 0.5, metrics.ROUNDS_TO_TARGET: 3.0}), Outcome("b", 9, {})])
    assert "to target" in text


def test_the_clustering_task_has_its_own_columns() -> None:
    text = render([Outcome("a", 0, {metrics.CLUSTERING_ARI: 1.0, metrics.CLUSTERING_DELAY_S: 3.1})], "clustering")
    assert "1.000" in text
    assert "3.10" in text
    assert "accuracy" not in text


def test_the_task_that_trains_an_assigner_has_its_own_columns() -> None:
    values = {metrics.ASSIGNER_RETURN: 18.64, metrics.ASSIGNER_AGREEMENT: 0.7231}
    text = render([Outcome("a", 60000, values | {metrics.assigner_ratio("hfel-300"): 0.98765}, ended=True)], "learning")
    heads, row = (next(line.split() for line in text.splitlines() if word in line) for word in ("steps", "60000"))
    assert heads == ["trial", "steps", "return", "agree", "/HFEL-300"]
    assert row == ["a", "60000", "18.6", "72.3%", "0.988"]


def test_a_metric_whose_row_has_a_short_heading_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    row = metrics.Metric("round/heat", "Heat", "J", "round", scale=0.001, format="{:.2f}", short="heat kJ")
    monkeypatch.setitem(metrics.METRICS, row.name, row)
    text = render([Outcome("a", 1, {metrics.ACCURACY: 0.5, row.name: 1234.0}, ended=True)])
    assert "heat kJ" in text
    assert "1.23" in text


def test_the_url_names_runs_and_experiment() -> None:
    url = comparison_url("7", ["aa", "bb"])
    page, _, query = url.partition("?")
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    assert {key: json.loads(value[0]) for key, value in parse_qs(query).items()} == {
        "runs": ["aa", "bb"],
        "experiments": ["7"],
    }


def test_the_url_of_a_curve_names_its_metric() -> None:
    url = metric_url("7", ["aa"], "total/objective")
    query = parse_qs(url.partition("?")[2])
    assert json.loads(query["metric"][0]) == "total/objective"
    assert json.loads(query["plot_metric_keys"][0]) == ["total/objective"]
    assert query["x_axis"] == ["step"]


def test_accuracy_objective_energy_and_delay_are_preselected() -> None:
    command, compare, curves = comparison_lines("sqlite:///x.db", "7", ["aa"], {*CURVES, metrics.CLASS_BALANCE})
    assert command == "mlflow ui --backend-store-uri sqlite:///x.db"
    assert compare == f"compare: {comparison_url('7', ['aa'])}"
    keys = json.loads(parse_qs(curves.partition("?")[2])["plot_metric_keys"][0])
    assert keys == [metrics.ACCURACY, metrics.TOTAL_OBJECTIVE, metrics.TOTAL_ENERGY_J, metrics.TOTAL_DELAY_S]
    server = comparison_lines("http://there:1/", "7", ["aa"], {metrics.TOTAL_DELAY_S})
    assert [line.split("#")[0] for line in server] == ["compare: http://there:1/", "curves: http://there:1/"]
    assert comparison_lines("http://there:1/", None, [], set()) == []


def test_the_command_prints_the_runs_that_mlflow_has(tmp_path, capsys, monkeypatch) -> None:
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
    monkeypatch.setattr(compare, "open_pages", lambda lines: f"{len(lines)} lines")
    assert main(["mine", "--results", str(tmp_path), "--open"]) == 2
    assert capsys.readouterr().err == "error: --open: 3 lines\n"
    monkeypatch.setattr(compare, "open_pages", lambda lines: None)
    assert main(["mine", "--results", str(tmp_path), "--open"]) == 0
    assert main(["yours", "--results", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


LINES = ["mlflow ui --backend-store-uri x", "compare: {}/#/compare-runs?runs=a", "curves: {}/#/metric?runs=a"]


class PasswordServer(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with status 401."""

    def do_GET(self) -> None:
        self.send_error(401)

    def log_message(self, *_: object) -> None:
        """Write no log."""


def test_open_shows_both_pages_if_the_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda page: not opened.append(page))
    with http.server.HTTPServer(("127.0.0.1", 0), PasswordServer) as server:
        base = f"http://127.0.0.1:{server.server_port}"
        lines = [line.format(base) for line in LINES]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert open_pages(lines) is None
        monkeypatch.setattr(webbrowser, "open", lambda page: False)
        assert "no browser" in str(open_pages(lines))
        server.shutdown()
    assert opened == [f"{base}/#/compare-runs?runs=a", f"{base}/#/metric?runs=a"]
    assert open_pages(lines) == f"no MLflow server answers at {base}; start it first: {LINES[0]}"
    assert open_pages(lines[1:]) == f"no MLflow server answers at {base}; start it"
    assert "no runs" in str(open_pages(LINES[:1]))


SIX = """
name: six
experiment:
  max_rounds: 3
  data: {name: synthetic, samples_per_device: [20, 40]}
  fleet: {num_devices: 12, num_edges: 2}
  scheduling: {name: fedavg}
  assignment: {name: geographic}
  training: {local_iterations: 1, edge_iterations: 1, batch_size: 16, backend: serial}
sweep:
  scheduling.num_scheduled: {grid: [4, 8]}
  cost.delay_weight: {grid: [0.1, 1, 10]}
"""
DRAWN = "[...document.querySelectorAll('.js-plotly-plot')].filter(plot => plot.data && plot.data.length)"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(not CHROMIUM, reason="no chromium (apt-get install chromium)")
def test_the_pages_of_mlflow_show_every_run_of_a_sweep(tmp_path: Path) -> None:
    """Open the printed addresses of a real sweep on a real MLflow server in a real browser."""
    with mlflow_server(tmp_path) as server:
        (tmp_path / "six.yaml").write_text(SIX)
        done = call("six.yaml", "--tracking-uri", server.uri, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        address = dict(line.split(": ", 1) for line in map(str.strip, done.stdout.splitlines()) if "/#/" in line)
        names = sorted(f"synthetic-H{h}-λ{w}-fedavg-geographic-s0" for h in (4, 8) for w in (0.1, 1, 10))
        with Page() as page:
            page.open(address["compare"])
            assert page.wait_for(f"{DRAWN}.length")
            page.screenshot(tmp_path / "compare.png")
            # The parallel coordinates have a line for every run, through the swept settings and the accuracy.
            axes = page.evaluate(f"{DRAWN}.flatMap(plot => plot.data[0].dimensions.map(d => [d.label, d.values]))")
            values = dict(axes)
            assert values["cost.delay_weight"] == [0.1, 1, 10, 0.1, 1, 10]
            assert values["scheduling.num_scheduled"] == [4, 4, 4, 8, 8, 8]
            assert all(0 < accuracy < 1 for accuracy in values[metrics.ACCURACY])
            assert len(values[metrics.ACCURACY]) == 6
            cells = page.evaluate("[...document.querySelectorAll('td, th')].map(cell => cell.innerText)")
            assert set(names) <= set(cells)

            page.open(address["curves"])
            assert page.wait_for(f"{DRAWN}.length")
            page.screenshot(tmp_path / "curves.png")
            curves = page.evaluate(
                f"{DRAWN}.flatMap(plot => plot.data.map(line => [line.name, line.x, line.y, line.xaxis || 'x']))"
            )
            shown = {(name, tuple(y)) for name, _, y, _ in curves}
            assert sorted({name.split(" (")[0] for name, _ in shown}) == names
            # Every curve has all rounds, and all curves share one axis.
            assert {(tuple(x), axis) for _, x, _, axis in curves} == {((1, 2, 3), "x")}
            assert page.evaluate(f"{DRAWN}.map(plot => Object.keys(plot._fullLayout._plots))") == [["xy"]]
            chosen = page.evaluate("document.body.innerText")
            assert all(name in chosen for name in CURVES)
            logged = {tuple(y) for _, y in shown}
            assert len(logged) > 6  # there are curves of more than one metric, of which each has 6 runs
