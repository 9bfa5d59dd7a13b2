"""hflray.sweep.compare: the closing table and the addresses of MLflow's comparison pages."""

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

from hflray import metrics
from hflray.command.compare import main
from hflray.support.text import one_line
from hflray.sweep import compare, load_sweep
from hflray.sweep.compare import Outcome, closing_table, comparison_lines, comparison_url, open_charts, without_effect
from hflray.sweep.results import SweepFolder
from hflray.tracking import Journal, Tracker, default_uri
from tests.conftest import small_config
from tests.hostile import BREAKING, NAMES

COLUMNS = [row.name for row in metrics.rows("training") if row.short]


def render(outcomes: list[Outcome], table: metrics.Table = "training") -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(closing_table("title", outcomes, table_of=table))
    return console.export_text()


def test_small_totals_have_enough_digits_to_differ() -> None:
    text = render([Outcome(f"s{i}", 5, {metrics.TOTAL_OBJECTIVE: 0.09 + 0.002 * i}, ended=True) for i in range(2)])
    assert [line.split()[2] for line in text.splitlines() if line.strip().startswith("s")] == ["0.090", "0.092"]


def test_trials_that_differ_in_settings_and_have_the_same_numbers_are_told() -> None:
    numbers = {"accuracy": 0.5, "total/energy_j": 3.0}
    outcomes = [Outcome(name, 5, numbers | {"wall/train_s": float(place)}) for place, name in enumerate("abcde")]
    outcomes[3].values["accuracy"] = 0.6
    outcomes[4].error = "it broke"
    values = {name: {"seed": 0, "fleet.max_cpu_ghz": place} for place, name in enumerate("abcde")}
    (line,) = without_effect(outcomes, values)
    assert line.startswith("a and 2 others differ in fleet.max_cpu_ghz and have the same numbers")
    assert without_effect(outcomes, {name: {"seed": 0} for name in "abcde"}) == []


def test_the_caption_names_labels_and_the_trials_keep_their_names() -> None:
    outcomes = [Outcome("H10-Mine-s0", 1, {metrics.ACCURACY: 0.5}, ended=True)]
    labels = {"own.py:Mine@sha256:" + "0" * 64: "Ours [bold]", "ikc": "a\x1bb"}
    console = Console(width=80, record=True, file=io.StringIO(), markup=False)
    console.print(closing_table("title", outcomes, labels=labels))
    text = console.export_text()
    assert "H10-Mine-s0" in text
    assert "Mine is Ours [bold]; ikc is a\\x1bb" in text


@pytest.mark.parametrize("name", [*NAMES, *BREAKING])
def test_a_name_is_shown_as_it_is(name: str) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(closing_table(one_line(name), [Outcome(name, 1, {metrics.ACCURACY: 0.5}, ended=True)]))
    text = console.export_text()
    assert text.count(one_line(name)) == 2  # the title and the row


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


def test_a_trial_stopped_early_is_marked_and_the_caption_explains_the_mark() -> None:
    text = render([Outcome("a", 3, {metrics.ACCURACY: 0.5}, ended=True, stopped="asha after round 3")])
    assert "3 ⊣" in text
    assert "⊣ stopped early" in text


def test_a_metric_of_the_users_own_is_the_first_column() -> None:
    text = render([Outcome("a", 1, {metrics.ACCURACY: 0.5, "macro_f1": 0.73126}, ended=True)])
    heads, row = (next(line.split() for line in text.splitlines() if word in line) for word in ("rounds", "50.0%"))
    assert heads == ["trial", "rounds", "macro_f1", "accuracy"]
    assert row == ["a", "1", "0.7313", "50.0%"]


def test_the_url_names_runs_and_experiment() -> None:
    url = comparison_url("7", ["aa", "bb"])
    page, _, query = url.partition("?")
    assert page == "http://127.0.0.1:5000/#/compare-runs"
    assert {key: json.loads(value[0]) for key, value in parse_qs(query).items()} == {
        "runs": ["aa", "bb"],
        "experiments": ["7"],
    }


def folder_of(path: Path, uri: str) -> SweepFolder:
    return SweepFolder(path / "mine-20260101-000000", load_sweep(None, ["name=mine"]), uri, "tests", True)


def test_the_charts_come_first_and_the_comparison_second(tmp_path) -> None:
    command, charts, old = comparison_lines(folder_of(tmp_path, "sqlite:///x.db"), "7", ["aa"])
    assert command == "mlflow ui --backend-store-uri sqlite:///x.db"
    page = "http://127.0.0.1:5000/#/experiments/7/runs?compareRunsMode=CHART&workflowType=machine_learning"
    filtered = "tags.%60hflray.sweep%60%20%3D%20%27mine-20260101-000000%27"
    assert charts == f"charts: {page}&searchFilter={filtered}"
    assert old == f"compare: {comparison_url('7', ['aa'])}"
    server = comparison_lines(folder_of(tmp_path, "http://there:1/"), "7", ["aa"])
    assert [line.split("#")[0] for line in server] == ["charts: http://there:1/", "compare: http://there:1/"]
    assert comparison_lines(folder_of(tmp_path, "http://there:1/"), None, []) == []


def test_the_command_prints_the_runs_that_mlflow_has(tmp_path, capsys, monkeypatch) -> None:
    uri = default_uri(tmp_path)
    folder = folder_of(tmp_path, uri)
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
    monkeypatch.setattr(compare, "open_charts", lambda folder, experiment_id, run_id: f"run {run_id}")
    assert main(["mine", "--results", str(tmp_path), "--open"]) == 2
    assert capsys.readouterr().err == f"error: --open: run {tracker.run_ids()[0]}\n"
    monkeypatch.setattr(compare, "open_charts", lambda *_: None)
    assert main(["mine", "--results", str(tmp_path), "--open"]) == 0
    capsys.readouterr()
    journal = Journal(folder.path)  # a damaged or strange run is a line, and the others are shown
    for entry in journal.entries("first"):
        journal.write("third", entry | ({"start": "x"} if "start" in entry else {}))
    assert main(["mine", "--results", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "third: its journal" in out
    assert "first" in out
    assert main(["yours", "--results", str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


class FakeServer(http.server.BaseHTTPRequestHandler):
    """A server that asks for a password, answers that it has no such run, or has the run ``aa``."""

    password = False

    def do_GET(self) -> None:
        known = self.path == "/api/2.0/mlflow/runs/get?run_id=aa"
        self.send_response(401 if self.password else 200 if known else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write no log."""


@pytest.mark.parametrize("database", [False, True])
@pytest.mark.parametrize("password", [False, True])
def test_open_shows_the_charts_if_a_server_with_the_sweep_answers(database, password, tmp_path, monkeypatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda page: not opened.append(page))
    monkeypatch.setattr(FakeServer, "password", password)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nothing listens there, and no proxy reaches this machine
    with http.server.HTTPServer(("127.0.0.1", 0), FakeServer) as server:
        base = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setattr(compare, "LOCAL", base)
        folder = folder_of(tmp_path, "sqlite:///x.db" if database else f"{base}/")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert open_charts(folder, "7", "aa") is None
        other = open_charts(folder, "7", "bb")  # a server of another database
        monkeypatch.setattr(webbrowser, "open", lambda page: False)
        assert f"found no browser; open {opened[0]} in one" == open_charts(folder, "7", "aa")
        server.shutdown()
    page = f"{base}/#/experiments/7/runs?compareRunsMode=CHART&workflowType=machine_learning"
    assert {each.partition("&searchFilter")[0] for each in opened} == {page}
    start = "start one: mlflow ui --backend-store-uri sqlite:///x.db" if database else "start it"
    reason = f"no MLflow server with this sweep answers at {base}; {start}"
    assert other == (None if password else reason)
    assert open_charts(folder, "7", "aa") == reason  # no server any more
