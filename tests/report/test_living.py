"""The page of a living run: a real experiment with everything on, its journal, its page, and what Chromium draws."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hflray import metrics
from hflray.experiment.record import RoundRecord
from hflray.report import page
from hflray.report.detail import Replay, RoundDetail
from hflray.report.runs import SweepRecord
from tests.browser import CHROMIUM, Page
from tests.report.kept import swept
from tests.report.test_page import HOOK, OUTSIDE, enter

ROUNDS = 6
EVERYTHING = (
    f"max_rounds={ROUNDS}", "fleet.num_devices=20", "scheduling.num_scheduled=10", "scheduling.name=fedavg",
    "allocation.method=equal", "assignment.name=best_gain", "world.wait_s=1", "clock.edge.deadline=1.1",
    "world.availability={name: markov, options: {mean_on_s: 6, mean_off_s: 3}}", "world.compute_jitter.sigma=0.5",
    "world.fading={name: rayleigh, coherence_s: 0.1}", "world.dropout.rate_per_s=0.04",
    "world.edge_failure={mtbf_s: 20, mttr_s: 5}",
    "world.battery={capacity_j: [0.1, 1.5], initial: 0.5, reserve_j: 0.1, harvest_w: 0.01, idle_w: 0.001}",
    "world.mobility={name: gauss_markov, options: {speed_m_per_s: 20}, slot_s: 0.1}",
)  # fmt: skip
SIGNS = {"left": "x", "ran out of charge": "diamond-open", "lost its edge": "square-open", "came": "circle-open"}


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> tuple[SweepRecord, list[RoundRecord]]:
    """Return a sweep of one run, read from its journal, and the records of its rounds."""
    sweep, records = swept(tmp_path_factory.mktemp("living"), *EVERYTHING)
    (rounds,) = records.values()
    return sweep, rounds


@pytest.fixture(scope="module")
def details(living: tuple[SweepRecord, list[RoundRecord]]) -> list[RoundDetail]:
    """Return the rounds as the report recomputes them."""
    replay = Replay(living[0].runs[0])
    return [replay.round(number) for number in range(1, ROUNDS + 1)]


@pytest.fixture(scope="module")
def address(living: tuple[SweepRecord, list[RoundRecord]], tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of the page."""
    path, missing = page.write(living[0], tmp_path_factory.mktemp("page"))
    assert missing == []
    return path.as_uri()


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Page]:
    """Yield a browser that shows the page."""
    with Page(1400, 1000) as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=HOOK)
        opened.resize(1400)
        opened.open(address)
        assert opened.wait_for("document.body && document.body.dataset.ready === 'yes'")
        yield opened
        assert opened.evaluate("window.errors") == []


needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="there is no Chromium here")


def of_chart(browser: Page, name: str, what: str) -> Any:
    """Return an expression's value; in it, `c` is the element of a chart."""
    return browser.evaluate(f"(c => {what})(document.getElementById('{name}'))")


def places(browser: Page) -> dict[int, tuple[float, float]]:
    """Return where the map shows each device."""
    points = of_chart(
        browser, "map", "c.data.flatMap(t => (t.text || []).map((text, i) => [text, t.x[i], t.y[i], t.marker]))"
    )
    return {int(text.split()[1].split("<")[0]): (x, y) for text, x, y, _ in points if text.startswith("device ")}


def rounds_in(browser: Page) -> Iterator[int]:
    """Move the slider from round to round."""
    for number in range(1, ROUNDS + 1):
        enter(browser, "round", str(number - 1))
        assert browser.evaluate("document.getElementById('number').textContent") == f"{number} of {ROUNDS}"
        yield number


def test_the_run_has_every_fate(details: list[RoundDetail]) -> None:
    """Otherwise the tests below would test little."""
    fates = [fate for detail in details for fate in detail.devices["fate"]]
    assert {name for name in SIGNS for fate in fates if fate.startswith(name)} == set(SIGNS)
    assert "" in fates


@needs_chromium
def test_the_slider_moves_the_devices(browser: Page, details: list[RoundDetail]) -> None:
    seen = []
    for number in rounds_in(browser):
        position_m = details[number - 1].outlook.fleet.position_m
        shown = places(browser)
        assert sorted(shown) == list(range(20))
        assert np.array([shown[n] for n in range(20)]) == pytest.approx(position_m, rel=1e-3)
        seen.append(tuple(shown[n] for n in range(20)))
    assert len(set(seen)) == ROUNDS


@needs_chromium
def test_the_map_tells_each_devices_charge_and_who_was_away(browser: Page, details: list[RoundDetail]) -> None:
    for number in rounds_in(browser):
        outlook = details[number - 1].outlook
        texts = of_chart(browser, "map", "c.data.flatMap(t => t.text || [])")
        for device, charge_j in enumerate(outlook.battery_j):
            (text,) = [text for text in texts if text.startswith(f"device {device}<br>")]
            told = float(text.partition("<br>charge ")[2].partition(" J")[0])
            assert told == pytest.approx(charge_j, rel=6e-3)
            assert text.endswith("<br>away") == (not outlook.answers[device])
            assert text.endswith("<br>low on charge") == (outlook.answers[device] and not outlook.available[device])


@needs_chromium
def test_the_gantt_chart_is_the_timeline_with_everybodys_fate(browser: Page, details: list[RoundDetail]) -> None:
    signs = set()
    for number in rounds_in(browser):
        detail = details[number - 1]
        happens = detail.timeline
        table = detail.devices
        names = of_chart(browser, "gantt", "c.layout.yaxis.ticktext")
        assert sorted(int(name.split()[-1]) for name in names if name.split()[-1].isdigit()) == table["device"].tolist()
        row_of = {int(name.split()[-1]): row for row, name in enumerate(names) if name.split()[-1].isdigit()}

        # The bars of computing and sending add up to the busy time of each device, kept and lost apart.
        bars = of_chart(browser, "gantt", "c.data.filter(t => t.type === 'bar').map(t => [t.name, t.y, t.x, t.base])")
        assert [name for name, *_ in bars] == [
            "computing", "sending", "computing, did not count", "sending, did not count",
        ]  # fmt: skip
        busy_s = {True: np.zeros(len(names)), False: np.zeros(len(names))}
        for name, rows, seconds, _ in bars:
            np.add.at(busy_s[not name.endswith("not count")], np.array(rows, dtype=int), seconds)
        spans_s = np.nan_to_num(happens.end_s - happens.start_s)
        for position, device in enumerate(table["device"]):
            for counts in (True, False):
                expected_s = spans_s[happens.participates[:, position] == counts, position].sum()
                assert busy_s[counts][row_of[device]] == pytest.approx(expected_s, abs=2e-3)

        # A sign stands where a device that did not count has ended, and its text says why.
        (marks,) = of_chart(browser, "gantt", "c.data.filter(t => t.type === 'scatter').map(t => [t.y, t.x, t.text])")
        symbols = of_chart(browser, "gantt", "c.data[4].marker.symbol")
        lost = table[table["fate"] != ""]
        assert {(row_of[device], fate) for device, fate in zip(lost["device"], lost["fate"], strict=True)} == {
            (row, text) for row, _, text in zip(*marks, strict=True)
        }
        for text, symbol in zip(marks[2], symbols, strict=True):
            (name,) = [name for name in SIGNS if text.startswith(name)]
            assert symbol == SIGNS[name]
            signs.add(name)

        # Those who could not be scheduled are named in rows of their own.
        notes = dict(zip(names[len(table) :], of_chart(browser, "gantt", NOTES), strict=True))
        outlook = detail.outlook
        gone = {"away": ~outlook.answers, "low on charge": outlook.answers & ~outlook.available}
        assert notes == {
            reason: f"{who.sum()}: {', '.join(map(str, np.flatnonzero(who)))}"
            for reason, who in gone.items()
            if who.any()
        }
    assert signs == set(SIGNS)


NOTES = "c.layout.annotations.map(note => note.text).filter(text => /^[0-9]+: /.test(text))"


@needs_chromium
def test_the_bands_have_a_point_for_each_round(
    browser: Page, living: tuple[SweepRecord, list[RoundRecord]], details: list[RoundDetail]
) -> None:
    values = [record.metrics() for record in living[1]]

    def column(name: str) -> Any:
        return pytest.approx([value[name] for value in values], rel=1e-4)

    enter(browser, "round", "2")
    band, median, least = of_chart(browser, "charge", "c.data.map(t => [t.name, t.x, t.y])")
    steps = list(range(1, ROUNDS + 1))
    assert band[1] == steps + steps[::-1]
    assert band[2][:ROUNDS] == column(metrics.CHARGE_LOW_J)
    assert band[2][: ROUNDS - 1 : -1] == column(metrics.CHARGE_HIGH_J)
    assert median == ["median", steps, column(metrics.CHARGE_MEDIAN_J)]
    assert least == ["least", steps, column(metrics.CHARGE_LEAST_J)]
    assert of_chart(browser, "charge", "c.layout.shapes.map(s => [s.x0, s.y0])") == [[3, 0], [0, 0.1]]  # the reserve

    counts = dict(of_chart(browser, "absent", "c.data.map(t => [t.name, t.y])"))
    assert counts["away"] == [int((~detail.outlook.answers).sum()) for detail in details]
    assert counts["vanished"] == [int(d.timeline.vanished.sum()) for d in details if d.deviates]
    assert counts["low on charge"] == column(metrics.ROUND_LOW_BATTERY)
    wasted, discarded = of_chart(browser, "lost", "c.data.map(t => t.y)")
    assert wasted == column(metrics.ROUND_WASTED_J)
    assert [share / 100 for share in discarded] == column(metrics.ROUND_DISCARDED)


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_living_page_fits_every_window(scheme: str, browser: Page, address: str) -> None:
    browser.prefer(scheme)
    for width in (1400, 1000, 400):
        browser.resize(width)
        browser.open(address)
        assert browser.wait_for("document.body && document.body.dataset.ready === 'yes'")
        for _ in rounds_in(browser):
            assert browser.evaluate("(d => d.scrollWidth <= d.clientWidth)(document.documentElement)")
            assert browser.evaluate(OUTSIDE) == 0
        # No chart lies under what follows it.
        overlapping = """[...document.querySelectorAll('#explorer .chart')].filter(c => {
          const drawn = c.querySelector('.main-svg');
          if (!drawn) return c.offsetParent !== null;  // a chart that is not drawn must be hidden
          return drawn.getBoundingClientRect().bottom > c.getBoundingClientRect().bottom + 1;
        }).map(c => c.id)"""
        assert browser.evaluate(overlapping) == []
        assert browser.evaluate("window.errors") == []


def test_a_still_run_has_none_of_it(sweep: SweepRecord, tmp_path: Path) -> None:
    from tests.report.test_page import data_of

    text, _ = page.render(sweep)
    for run in data_of(text)["runs"]:
        assert run["over"] is None
        assert not {"end", "charge", "fate"} & set(run["rounds"][0])
