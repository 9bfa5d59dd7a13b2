"""hflray.report.page: the page opens in a browser without a server and without an error, and shows the runs."""

from __future__ import annotations

import html
import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hflray import metrics
from hflray.report import page
from hflray.report.labels import BLUE, ORANGE, VERMILION
from hflray.report.runs import RunRecord, SweepRecord
from hflray.support.terminal.tables import TextTable
from tests.browser import CHROMIUM, Page
from tests.conftest import says
from tests.hostile import IMAGE, SCRIPT
from tests.report import fabricated
from tests.report.kept import swept

HOOK = """window.errors = [];
addEventListener('error', (e) => window.errors.push(e.message));
addEventListener('unhandledrejection', (e) => window.errors.push(String(e.reason)));
for (const kind of ['error', 'warn']) console[kind] = (...words) => window.errors.push(words.join(' '));
window.alert = () => { alerted = true; };"""


DRAWN = "[...document.querySelectorAll('.chart')].filter(chart => chart.data && chart.data.length)"


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
    assert [len(data["curves"]["charts"]), len(data["bars"]), len(data["front"]["lines"])] == [4, 4, 2]
    assert len(text) < 1_500_000


def test_the_page_lists_what_is_missing_and_shows_the_rest(sweep) -> None:
    run = sweep.runs[0]
    bare = RunRecord(replace(run.history, tables=replace(run.history.tables, devices=None)), run.config)
    odd = SweepRecord("odd", "odd </script><b>", "experiment", "", [bare], ["half: not finished"])
    text, missing = page.render(odd)
    assert [line.partition(":")[0] for line in missing] == ["half", run.name]
    assert "What is missing (2)" in text
    assert "odd &lt;/script&gt;" in text
    data = data_of(text)
    assert data["runs"] == []
    assert [len(data["curves"]["charts"]), len(data["bars"]), len(data["front"]["lines"])] == [4, 4, 1]


def test_a_new_row_of_metrics_gets_its_column_bars_and_curve(monkeypatch) -> None:
    row = metrics.Metric("round/heat", "Heat of a round", "J", "round", shown="kJ", scale=0.001, format="{:.2f}",
                         heading="heat", bar=9, curve=True)  # fmt: skip
    monkeypatch.setitem(metrics.METRICS, row.name, row)
    runs = [fabricated.run({row.name: [1000.0, 2000.0 + 1000 * seed]}, f"seed={seed}") for seed in (0, 1)]
    text, _ = page.render(fabricated.sweep("mine", runs))
    assert re.findall(r"<th>(.*?)</th>", text)[-1] == "heat, kJ"
    assert re.findall(r"<td>(.*?)</td>", text)[-1] == "2.50 ± 0.71"
    data = data_of(text)
    (curve,), (bar,) = data["curves"]["charts"], data["bars"]
    assert curve["title"] == bar["title"] == "Heat of a round (kJ)"
    assert curve["lines"][0]["mean"] == [1.0, 2.5]
    assert bar["mean"] == [2.5]


def test_a_metric_of_the_users_own_is_the_main_one_with_its_column_and_curve(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def macro_f1(outputs, targets): ...\n")
    target = "target={metric: 'own.py:macro_f1', value: 0.5}"
    curves = {metrics.ACCURACY: [0.4, 0.6], "macro_f1": [0.3, 0.55]}
    runs = [fabricated.run(curves, target, f"seed={seed}") for seed in (0, 1)]
    drawn = fabricated.sweep("mine", runs)
    assert (drawn.main_metric, runs[0].target) == ("macro_f1", 0.5)
    text, _ = page.render(drawn)
    assert re.findall(r"<th>(.*?)</th>", text)[3:5] == ["macro_f1", "accuracy, %"]
    assert re.findall(r"<td>(.*?)</td>", text)[3] == "0.5500 ± 0.0000"
    charts = {chart["title"]: chart["lines"][0]["mean"] for chart in data_of(text)["curves"]["charts"]}
    assert charts == {"macro_f1": [0.3, 0.55], "Test accuracy (%)": [40.0, 60.0]}


def test_a_sweep_of_sixty_groups_stays_small_and_says_what_it_leaves_out(monkeypatch) -> None:
    many = fabricated.explorable_sweep(60, 6)
    text, missing = page.render(many)
    assert missing == []
    data = data_of(text)
    assert len(data["groups"]) == len(data["runs"]) == 60
    assert len(text) < 4_000_000
    monkeypatch.setattr(page, "MAX_ROWS", 60 * 20)
    (note,) = page.render(many)[1]
    assert note.startswith("this page has the details of at most 5 rounds of a run")
    monkeypatch.setattr(page, "MAX_CHARACTERS", 200_000)
    text, missing = page.render(many)
    left = len(data_of(text)["runs"])
    assert 0 < left < 60
    assert missing[0].startswith(f"this page has the rounds of {left} of 60 groups")


EVIL = SCRIPT


def named_badly(sweep: SweepRecord) -> SweepRecord:
    """Return the sweep with a script as its name, its description, its part and the name of its first run."""
    first, *others = sweep.runs
    runs = [RunRecord(replace(first.history, name=EVIL), first.config), *others]
    return SweepRecord(EVIL, EVIL, "experiment", EVIL, runs, [f"{EVIL}: not finished"], {EVIL: EVIL})


def test_a_name_that_is_a_script_is_escaped(sweep) -> None:
    claims = TextTable.of([{EVIL: EVIL}])
    text, _ = page.render(named_badly(sweep), claims)
    assert EVIL not in text
    assert text.count(html.escape(EVIL)) == 8  # title, heading, description, part (2), note, claim (2)
    assert EVIL in [run["name"] for run in data_of(text)["runs"]]
    plain, _ = page.render(sweep)
    assert text.count("<script") == plain.count("<script")


def with_data_called(names: Sequence[str]) -> SweepRecord:
    """Return a sweep with two runs on each data set, which the charts label."""
    curve = {metrics.ACCURACY: [0.1, 0.5], metrics.TOTAL_DELAY_S: [1.0, 2.0], metrics.TOTAL_ENERGY_J: [1.0, 2.0]}
    runs = []
    for name in names:
        data = "data.name='" + name.replace("'", "''") + ".npz'"
        runs += [fabricated.run(curve, data, f"scheduling.name={scheduler}") for scheduler in ("ikc", "vkc")]
    return fabricated.sweep("mine", runs)


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_browser_shows_the_names_in_charts_as_they_are(browser, tmp_path) -> None:
    names = (SCRIPT, IMAGE, "<b>x</b>", "&lt;i&gt;", 'a"b', "it's", "$x$", "[bold]x[/]")
    show(browser, with_data_called(names), tmp_path)
    shown = {f"{name}.npz, IKC" for name in names}
    legend = browser.evaluate("[...document.getElementById('legend').children].map(entry => entry.textContent)")
    assert all(any(entry.endswith(label) for entry in legend) for label in shown)  # a mark stands before each
    ticks = browser.evaluate("[...document.querySelectorAll('.ytick text')].map(text => text.textContent)")
    assert {label.replace(" ", "") for label in shown} <= {tick.replace(" ", "") for tick in ticks}
    assert browser.evaluate("typeof alerted") == "undefined"
    assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_the_table_of_devices_is_whole_at_1300_pixels_and_numbers_stand_behind_whiskers(browser, tmp_path) -> None:
    runs = [fabricated.explorable(2, "scheduling.num_scheduled=10", f"seed={seed}") for seed in (0, 1)]
    show(browser, fabricated.sweep("mine", runs), tmp_path, 1300)
    for name in ("devices", "edges", "summary"):
        assert browser.evaluate(f"(e => e.scrollWidth <= e.clientWidth)(document.getElementById('{name}'))"), name
    bar, text = browser.evaluate("document.getElementById('bar-0').data.map(trace => trace.x[0])")
    whisker = browser.evaluate("document.getElementById('bar-0').data[0].error_x.array[0]")
    assert text == pytest.approx(bar + whisker)


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_browser_draws_the_charts_and_follows_the_controls(browser, sweep, tmp_path) -> None:
    show(browser, sweep, tmp_path)
    assert browser.evaluate(f"{DRAWN}.length") == 9 + 3
    assert browser.evaluate("document.getElementById('number').textContent") == "1 of 2"
    before = browser.evaluate("document.getElementById('devices').innerText")
    assert "nearest" in before
    enter(browser, "round", "1")
    assert browser.evaluate("document.getElementById('number').textContent") == "2 of 2"
    assert browser.evaluate("document.getElementById('devices').innerText") != before
    enter(browser, "run", "1")
    why = browser.evaluate("document.getElementById('why').textContent")
    assert says(why, "Scheduled by FedAvg", "minimise E + λT at each edge")
    assert "finish together" in browser.evaluate("document.getElementById('gantt-hint').textContent")
    assert browser.evaluate("window.errors") == []
    assert browser.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


# The entries of the legend that a reader cannot see or click, because they leave the window or lie under something.
UNREACHABLE = """[...document.querySelectorAll('#legend button')].filter(entry => {
  entry.scrollIntoView({block: 'center'});
  const box = entry.getBoundingClientRect(), x = box.x + box.width / 2, y = box.y + box.height / 2;
  return box.left < 0 || box.right > innerWidth || !entry.contains(document.elementFromPoint(x, y));
}).length"""
CURVE = "document.getElementById('curve-0')"
OUTSIDE = "[...document.querySelectorAll('.chart')].filter(c => c.getBoundingClientRect().right > innerWidth).length"


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with Page(1400, 1000) as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        yield opened


def enter(browser: Page, name: str, value: str) -> None:
    """Give a control of the page a value, as a reader does."""
    kind = "input" if name in ("search", "round") else "change"
    change = f"e.value = '{value}'; e.dispatchEvent(new Event('{kind}'));"
    browser.evaluate(f"(e => {{ {change} }})(document.getElementById('{name}'))")


def show(browser: Page, sweep: SweepRecord, folder: Path, width: int = 1400) -> None:
    path = folder / "index.html"
    if not path.exists():
        page.write(sweep, folder)
    browser.resize(width)
    browser.open(path.as_uri())
    assert browser.wait_for("document.body && document.body.dataset.ready === 'yes'")


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
@pytest.mark.parametrize("runs", [4, 60])
def test_at_any_width_the_legend_is_whole_and_nothing_leaves_the_window(runs, browser, tmp_path) -> None:
    for width in (1400, 1000, 400):
        show(browser, fabricated.explorable_sweep(runs, 3), tmp_path, width)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        assert browser.evaluate("document.querySelectorAll('#legend button').length") == runs
        assert browser.evaluate(UNREACHABLE) == 0
        assert browser.evaluate(OUTSIDE) == 0
        assert browser.evaluate(f"{CURVE}.data.length") == runs
        assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_words_and_settings_choose_the_groups_of_all_charts(browser, tmp_path) -> None:
    show(browser, fabricated.explorable_sweep(60, 3), tmp_path)
    enter(browser, "search", "ikc h = 30")
    assert browser.evaluate("document.getElementById('count').textContent") == "10 of 60 shown"
    assert browser.evaluate(f"{CURVE}.data.length") == 10
    assert browser.evaluate("document.getElementById('bar-0').data[0].x.length") == 10
    assert browser.evaluate("document.getElementById('run').options.length") == 10
    rows = "[...document.querySelectorAll('#summary tbody tr')].filter(row => !row.hidden)"
    assert browser.evaluate(f"{rows}.length") == 10
    browser.evaluate("[...document.querySelectorAll('.choice')].find(b => b.textContent === 'λ = 10').click()")
    assert browser.evaluate(f"{CURVE}.data.map(line => line.name)") == ["λ = 10, IKC, H = 30"]
    assert browser.evaluate("document.getElementById('front').data.flatMap(line => line.x).length") == 1
    enter(browser, "search", "nothing like this")
    assert browser.evaluate(f"{CURVE}.data.length") == 0
    enter(browser, "search", "")
    browser.evaluate("document.getElementById('none').click()")
    assert browser.evaluate(f"{CURVE}.data.length") == 0
    browser.evaluate("document.querySelector('#legend button').click()")
    assert browser.evaluate(f"{CURVE}.data.length") == 1
    enter(browser, "axis", "1")
    assert browser.evaluate(f"{CURVE}.layout.xaxis.title.text") == "Simulated time (s)"
    assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_many_groups_are_coloured_by_a_setting_and_few_by_group(browser, tmp_path) -> None:
    colours = f"[...new Set({CURVE}.data.map(line => line.line.color))]"
    show(browser, fabricated.explorable_sweep(60, 3), tmp_path)
    assert browser.evaluate("document.getElementById('colour').selectedOptions[0].textContent") == "scheduling.name"
    assert set(browser.evaluate(colours)) == {BLUE, VERMILION, ORANGE}
    enter(browser, "colour", "")
    assert len(browser.evaluate(colours)) == 8
    show(browser, fabricated.explorable_sweep(4, 3), tmp_path / "few")
    assert browser.evaluate("document.getElementById('colour').value") == ""
    assert set(browser.evaluate(colours)) == {BLUE, VERMILION}


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_a_click_on_a_heading_sorts_the_summary(browser, tmp_path) -> None:
    show(browser, fabricated.explorable_sweep(60, 3), tmp_path)
    heads = browser.evaluate("[...document.querySelectorAll('#summary th')].map(head => head.textContent)")
    column = heads.index("delay T, s")
    cells = f"[...document.querySelectorAll('#summary tbody tr')].map(r => r.cells[{column}].textContent)"
    for way in (1, -1):
        browser.evaluate(f"document.querySelectorAll('#summary th')[{column}].click()")
        values = [float(text.replace(",", "")) for text in browser.evaluate(cells)]
        assert values == sorted(values)[::way]


def readings() -> SweepRecord:
    """Return a sweep of Algorithm 5: a ceiling, and a learner with two seeds."""
    returns = [1.0, 2.0]
    names = (metrics.ASSIGNER_RETURN, metrics.ASSIGNER_GREEDY_RETURN, metrics.ASSIGNER_AGREEMENT)
    rounds = dict.fromkeys((*names, metrics.assigner_ratio("hfel-300")), returns)
    runs = [fabricated.run(rounds, "learning.features=paper_db", f"seed={seed}", settings={"learning.td": td})
            for td, seed in ((0.0, 0), (1.0, 0), (1.0, 1))]  # fmt: skip
    return fabricated.sweep("readings", runs, "train_assigner")


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_words_hide_no_row_of_a_summary_that_has_a_row_for_each_run(browser, tmp_path) -> None:
    show(browser, readings(), tmp_path)
    enter(browser, "search", "td = 0")
    assert browser.evaluate("document.getElementById('count').textContent") != "2 of 2 shown"
    rows = "[...document.querySelectorAll('#summary tbody tr')].map(row => row.hidden)"
    assert browser.evaluate(rows) == [False, False]
    assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_numbers_have_significant_digits_however_small_they_are(browser, tmp_path) -> None:
    show(browser, fabricated.explorable_sweep(4, 3), tmp_path)
    values = {"0.00012345": "0.000123", "4e-7": "0.0000004", "1234.5": "1,230", "0": "0", "null": "–"}
    assert [browser.evaluate(f"number({value})") for value in values] == list(values.values())


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_with_regions_no_device_computes_while_its_edge_waits(browser, tmp_path) -> None:
    region = "tree={region: {count: 2, iterations: 2, bandwidth_mhz: 0.05}}"
    living, records = swept(tmp_path, "scheduling.name=fedavg", region, "world.compute_jitter.sigma=0.5")
    show(browser, living, tmp_path / "page")
    happens = next(iter(records.values()))[0].timeline
    bars = "document.getElementById('gantt').data.filter(t => t.name === 'computing')[0].x.reduce((a, b) => a + b, 0)"
    assert browser.evaluate(bars) == pytest.approx((happens.computed_s - happens.start_s).sum(), rel=1e-2)


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_the_page_says_who_ended_a_round_and_why_nobody_took_part(browser, tmp_path) -> None:
    for name, setting, ended, marked, notes in (
        ("drop", "allocation.limits={device_delay_s: 0.0001, drop: true}", "nobody", 0, ["nobody was left"]),
        ("late", "clock.cloud=asynchronous", "the update of edge ", 0, []),
        ("all", "max_rounds=2", "edge ", 1, []),
    ):
        show(browser, swept(tmp_path / name, "scheduling.name=fedavg", setting)[0], tmp_path / name / "page")
        assert browser.evaluate("document.querySelectorAll('#cards b')[4].textContent").startswith(ended)
        assert browser.evaluate("document.querySelectorAll('#edges .late').length") == marked
        texts = browser.evaluate("document.getElementById('gantt').layout.annotations.map(note => note.text)")
        assert [text for text in texts if text.startswith("nobody")] == notes


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_the_theme_is_the_systems_or_the_readers_and_paper_is_light(browser, tmp_path) -> None:
    brightness = "getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).slice(0, 3).map(Number)"
    ink = f"{CURVE}._fullLayout.font.color"
    browser.prefer("dark")
    show(browser, fabricated.explorable_sweep(4, 3), tmp_path)
    assert max(browser.evaluate(brightness)) < 50
    assert browser.evaluate(ink) == "#e3e7ed"
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert min(browser.evaluate(brightness)) == 255
    assert browser.evaluate(f"[{ink}, {CURVE}._fullLayout.width]") == ["#1c2330", 335]
    assert browser.evaluate("document.getElementById('front')._fullLayout.width") == 690
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(ink) == "#e3e7ed"
    enter(browser, "theme", "light")
    assert min(browser.evaluate(brightness)) == 255
    assert browser.evaluate(ink) == "#1c2330"
    enter(browser, "theme", "auto")
    browser.prefer("light")
    assert browser.wait_for(f"{ink} === '#1c2330'")
    browser.pdf(tmp_path / "page.pdf")
    printed = (tmp_path / "page.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type ?/Page[^s]", printed)) <= 12
    assert browser.evaluate("window.errors") == []


@pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")
def test_the_gantt_and_the_map_zoom_and_the_map_has_a_scale(browser, tmp_path) -> None:
    show(browser, fabricated.explorable_sweep(4, 3), tmp_path)
    span = "(r => Math.abs(r[1] - r[0]))(document.getElementById('{}')._fullLayout.{}.range)"
    click = "document.querySelector('#{} .modebar-btn[data-attr=zoom][data-val={}]').click()"
    whole = browser.evaluate(span.format("gantt", "xaxis"))
    browser.evaluate(click.format("gantt", "in"))
    assert browser.wait_for(f"{span.format('gantt', 'xaxis')} < {0.6 * whole}")
    enter(browser, "round", "1")
    assert browser.evaluate(span.format("gantt", "xaxis")) < 0.6 * whole  # another round keeps the zoom
    browser.evaluate(click.format("gantt", "reset"))
    assert browser.wait_for(f"{span.format('gantt', 'xaxis')} > {0.6 * whole}")
    rows = browser.evaluate(span.format("gantt", "yaxis"))
    browser.evaluate("document.getElementById('gantt').scrollIntoView({block: 'center'})")
    left, top, width, height = browser.evaluate(
        "(b => [b.x, b.y, b.width, b.height])(document.querySelector('#gantt .nsewdrag').getBoundingClientRect())"
    )
    browser.drag((left + 0.2 * width, top + 0.2 * height), (left + 0.6 * width, top + 0.5 * height))
    assert browser.wait_for(f"{span.format('gantt', 'yaxis')} < {0.5 * rows}")

    scale = """(layout => [layout.annotations[0].text, layout.shapes[0].x1 - layout.shapes[0].x0])(
      document.getElementById('map')._fullLayout)"""
    text, length = browser.evaluate(scale)
    side = fabricated.explorable_sweep(4, 3).runs[0].config.fleet.area_km * 1e3
    assert 0.1 * side < length < 0.3 * side
    assert text == (f"{length / 1e3:g} km" if length >= 1e3 else f"{length:g} m")
    for _ in range(2):
        browser.evaluate(click.format("map", "in"))
    assert browser.wait_for(f"({scale})[1] < {0.6 * length}")
    text, shorter = browser.evaluate(scale)
    assert text == f"{shorter:g} m"
    assert browser.evaluate("window.errors") == []


def test_the_library_in_the_page_has_its_licence_and_is_the_version_that_the_readme_names() -> None:
    vendor = Path(page.__file__).parent / "vendor"
    head = (vendor / "plotly-basic.min.js").read_text(encoding="utf-8")[:300]
    version = re.search(r"plotly\.js \(basic - minified\) v([\d.]+)", head)
    assert version is not None
    assert f"Plotly.js {version[1]}," in (vendor / "README.md").read_text(encoding="utf-8")
    assert "MIT License" in (vendor / "LICENSE").read_text(encoding="utf-8")
    patterns = tomllib.loads((vendor.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    assert "vendor/*" in patterns["package-data"]["hflray.report"]
