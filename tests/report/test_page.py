"""hflray.report.page: the page opens in a browser without a server and without an error, and shows the runs."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from hflray import metrics
from hflray.report import page
from hflray.report.exports import read_exhibit
from hflray.report.runs import Run, Sweep
from tests.browser import CHROMIUM, Page
from tests.hostile import IMAGE, NAMES, SCRIPT
from tests.report import fabricated

HOOK = """window.errors = [];
addEventListener('error', (e) => window.errors.push(e.message));
addEventListener('unhandledrejection', (e) => window.errors.push(String(e.reason)));
for (const kind of ['error', 'warn']) console[kind] = (...words) => window.errors.push(words.join(' '));"""


def data_of(text: str) -> dict:
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)[1])


def test_the_page_holds_every_round_and_loads_nothing_from_a_server(sweep, records) -> None:
    text, missing = page.render(sweep)
    assert missing == []
    assert not re.search(r'<(script|link|img)[^>]+(src|href)="http', text)
    data = data_of(text)
    assert [run["label"] for run in data["runs"]] == ["IKC, seed 0", "FedAvg, seed 0"]
    for run in data["runs"]:
        for shown, record in zip(run["rounds"], records[run["name"]], strict=True):
            assert shown["device"] == record.devices.tolist()
            assert shown["edge"] == record.assignment.tolist()
            assert shown["T"] == pytest.approx(record.cost.delay_s)
            assert shown["mhz"] == pytest.approx(record.allocation.bandwidth_hz / 1e6, rel=1e-3)
    assert len(data["charts"]) == 4 + 4 + 1


def test_an_assignment_study_shows_gap_and_objective_by_median_mean_p95_and_worst() -> None:
    read = read_exhibit(Path(__file__).parents[1] / "data" / "results" / "fig6_assignment")
    text, _ = page.render(read)
    heads = [html.unescape(head) for head in re.findall(r"<th>(.*?)</th>", text)]
    for heading in ("gap to bound, %: median", "objective above HFEL-300's, %: median"):
        position = heads.index(heading)
        assert heads[position : position + 4] == [heading, "mean", "p95", "worst"]
    assert "means over the deployments" in text


def test_the_page_lists_what_is_missing_and_shows_the_rest(sweep) -> None:
    run = sweep.runs[0]
    bare = Run(replace(run.history, tables=replace(run.history.tables, devices=None)), run.config)
    odd = Sweep("odd", "odd </script><b>", "experiment", "", [bare], ["half: not finished"])
    text, missing = page.render(odd)
    assert [line.partition(":")[0] for line in missing] == ["half", run.name]
    assert "What is missing (2)" in text
    assert "odd &lt;/script&gt;" in text
    data = data_of(text)
    assert data["runs"] == []
    assert len(data["charts"]) == 9


def test_a_new_row_of_metrics_gets_its_column_bars_and_curve(monkeypatch) -> None:
    row = metrics.Metric("round/heat", "Heat of a round", "J", "round", shown="kJ", scale=0.001, format="{:.2f}",
                         heading="heat", bar=9, curve=True)  # fmt: skip
    monkeypatch.setitem(metrics.METRICS, row.name, row)
    runs = [fabricated.run({row.name: [1000.0, 2000.0 + 1000 * seed]}, f"seed={seed}") for seed in (0, 1)]
    text, _ = page.render(fabricated.sweep("mine", runs))
    assert re.findall(r"<th>(.*?)</th>", text)[-1] == "heat, kJ"
    assert re.findall(r"<td>(.*?)</td>", text)[-1] == "2.50 ± 0.71"
    curve, bar = data_of(text)["charts"]
    assert (
        curve["layout"]["yaxis"]["title"]["text"] == bar["layout"]["xaxis"]["title"]["text"] == "Heat of a round (kJ)"
    )
    assert curve["data"][1]["y"] == [1.0, 2.5]
    assert bar["data"][0]["x"] == [2.5]


EVIL = SCRIPT


def named_badly(sweep: Sweep) -> Sweep:
    """Return the sweep with a script as its name, its description, its part and the name of its first run."""
    first, *others = sweep.runs
    runs = [Run(replace(first.history, name=EVIL), first.config), *others]
    return Sweep(EVIL, EVIL, "experiment", EVIL, runs, [f"{EVIL}: not finished"], {EVIL: EVIL})


def test_a_name_that_is_a_script_is_escaped(sweep) -> None:
    claims = pd.DataFrame([{EVIL: EVIL}])
    text, _ = page.render(named_badly(sweep), claims)
    assert EVIL not in text
    assert text.count(html.escape(EVIL)) == 8  # title, heading, description, part (2), note, claim (2)
    assert EVIL in [run["name"] for run in data_of(text)["runs"]]
    plain, _ = page.render(sweep)
    assert text.count("<script") == plain.count("<script")


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_name_that_is_a_script_is_not_executed(sweep, tmp_path) -> None:
    path, _ = page.write(named_badly(sweep), tmp_path)
    with Page(1400, 1000) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK + "window.alert = () => { alerted = true; };")
        browser.open(path.as_uri())
        assert browser.wait_for("document.body && document.body.dataset.ready === 'yes'")
        assert browser.evaluate("document.querySelector('h1').textContent") == EVIL
        assert browser.evaluate("typeof alerted") == "undefined"
        assert browser.evaluate("window.errors") == []


def with_data_called(names: Sequence[str]) -> Sweep:
    """Return a sweep with two runs on each data set, which the charts label."""
    curve = {metrics.ACCURACY: [0.1, 0.5], metrics.TOTAL_DELAY_S: [1.0, 2.0], metrics.TOTAL_ENERGY_J: [1.0, 2.0]}
    runs = []
    for name in names:
        data = "data.name='" + name.replace("'", "''") + ".npz'"
        runs += [fabricated.run(curve, data, f"scheduling.name={scheduler}") for scheduler in ("ikc", "vkc")]
    return fabricated.sweep("mine", runs)


def texts(value: object) -> Iterator[str]:
    """Yield every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts(part)


def test_the_charts_hold_escaped_names() -> None:
    text, _ = page.render(with_data_called(NAMES))
    drawn = list(texts([chart["data"] for chart in data_of(text)["charts"]]))
    for name in NAMES:
        assert any(html.unescape(shown).startswith(f"{name}.npz") for shown in drawn), name
    assert [shown for shown in drawn if re.search(r"<(?!extra|/extra|br)", shown)] == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_browser_shows_the_names_in_charts_as_they_are(tmp_path) -> None:
    names = (SCRIPT, IMAGE, "<b>x</b>", "&lt;i&gt;", 'a"b', "it's", "$x$", "[bold]x[/]")
    path, _ = page.write(with_data_called(names), tmp_path)
    with Page(1400, 1000) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK + "window.alert = () => { alerted = true; };")
        browser.open(path.as_uri())
        assert browser.wait_for("document.body && document.body.dataset.ready === 'yes'")
        legend = browser.evaluate("[...document.querySelectorAll('.legendtext')].map(text => text.textContent)")
        assert {f"{name}.npz, IKC" for name in names} <= set(legend)
        ticks = browser.evaluate("[...document.querySelectorAll('.ytick text')].map(text => text.textContent)")
        assert {f"{name}.npz, IKC" for name in names} <= {tick.replace("IKC, ", "") for tick in ticks} | set(ticks)
        assert browser.evaluate("typeof alerted") == "undefined"
        assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_browser_draws_the_charts_and_follows_the_controls(sweep, tmp_path) -> None:
    path, _ = page.write(sweep, tmp_path)
    with Page(1400, 1000) as browser:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        browser.open(path.as_uri())
        assert browser.wait_for("document.body && document.body.dataset.ready === 'yes'")
        assert browser.evaluate("document.querySelectorAll('.chart .main-svg').length") >= 2 * (9 + 3)
        assert browser.evaluate("document.getElementById('number').textContent") == "1 of 2"
        before = browser.evaluate("document.getElementById('devices').innerText")
        assert "nearest" in before
        browser.evaluate("const s = document.getElementById('round'); s.value = 1; s.dispatchEvent(new Event('input'))")
        assert browser.evaluate("document.getElementById('number').textContent") == "2 of 2"
        assert browser.evaluate("document.getElementById('devices').innerText") != before
        browser.evaluate("const c = document.getElementById('run'); c.value = 1; c.dispatchEvent(new Event('change'))")
        assert "Scheduled by FedAvg" in browser.evaluate("document.getElementById('why').textContent")
        browser.screenshot(tmp_path / "page.png")
        assert browser.evaluate("window.errors") == []
        assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert (tmp_path / "page.png").stat().st_size > 20_000
