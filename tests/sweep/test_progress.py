"""hflray.sweep.progress: one live display on a terminal, plain lines elsewhere, and failures only if quiet."""

from __future__ import annotations

import io
import re
import time

import pytest
from rich.console import Console

from hflray.support.terminal import output
from hflray.sweep import progress as module
from hflray.sweep.progress import SweepProgress, duration
from tests.conftest import says
from tests.hostile import NAMES
from tests.support.terminal.rendering import check_whole, render


def run(**options: object) -> str:
    console = Console(file=io.StringIO(), width=120, **{k: v for k, v in options.items() if k != "quiet"})  # type: ignore[arg-type]
    with SweepProgress(console, trials=3, quiet=bool(options.get("quiet"))) as progress:
        with progress.phase("starting Ray"):
            pass
        for key, name in (("1", "first"), ("2", "second")):
            progress.started(key, name, rounds=3)
            progress.round(key, name, 1, 3, "accuracy 10.0%")
        progress.ended("1", "first", stopped="asha after round 1")
        progress.ended("2", "second", error="it [broke]")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_shown_as_it_is(name: str) -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True)
    with SweepProgress(console, trials=1) as progress, progress.phase(name):
        progress.started("1", name, rounds=3)
        progress.round("1", name, 1, 3, name)
        console.print(progress._progress)
    output = console.file
    assert isinstance(output, io.StringIO)
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", output.getvalue())
    assert re.search(re.escape(name) + r".*1/3.*" + re.escape(name), shown)


def test_without_a_terminal_plain_lines_are_printed() -> None:
    lines = [re.sub(r"about .* left", "about T left", line) for line in run(force_terminal=False).splitlines()]
    assert lines[0] == "starting Ray …"
    assert re.fullmatch(r"starting Ray: \d+\.\d s", lines[1])
    facts = [
        ("first: started",),
        ("first: ", "1/3", "10.0%"),
        ("second: started",),
        ("second: ", "1/3", "10.0%"),
        ("first: ", "asha", "round 1"),
        ("1 of 3 done", "1 running", "about T left"),
        ("second: failed", "it [broke]"),
        ("1 of 3 done", "0 running", "1 failed", "about T left"),
    ]
    assert all(says(line, *each) for line, each in zip(lines[2:], facts, strict=True)), lines


def test_a_terminal_gets_one_live_display() -> None:
    text = run(force_terminal=True)
    assert "round 1/3" not in text
    assert "1/3" in text
    assert "it [broke]" in text
    assert "1 running" in text
    assert "1 failed" in text
    assert "left" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_name_and_no_number_of_the_live_display_is_cut(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    name = "fashion_mnist-H100-λ1-ikc-d3qn-s0-target_accuracy=0.875"
    with SweepProgress(console, trials=50) as progress:
        progress.started("1", name, rounds=150)
        progress.round("1", name, 120, 150, "accuracy 55.2%, objective 1,234.5")
        progress._progress.refresh()
        table = render(progress._progress.get_renderable(), width)
    check_whole(table, width, ["120/150", "accuracy", "55.2%", "1,234.5", "1 running", "target_accuracy=0.875"])
    assert "fashion_mnist-H100" in table


def test_a_terminal_shows_a_phase_and_its_seconds(monkeypatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with SweepProgress(console, trials=2) as progress, progress.phase("starting Ray"):
        monkeypatch.setattr(output.time, "monotonic", lambda: time.monotonic_ns() / 1e9 + 7.0)
        assert "starting Ray, 7 s" in progress._progress.tasks[0].fields["note"].__str__()


def test_quiet_shows_failures_only() -> None:
    assert run(force_terminal=False, quiet=True).splitlines() == ["second: failed: it [broke]"]


def test_the_time_left_follows_from_the_rounds_of_this_process(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress = SweepProgress(Console(file=io.StringIO(), force_terminal=False), trials=4)
    assert progress.remaining_s() is None
    progress.resumed("done before", 10)
    progress.ended("done before", "done before")
    progress.resumed("1", 4)
    progress.started("1", "1", rounds=10)
    assert progress.remaining_s() is None
    now = 120.0
    progress.round("1", "1", 5, 10, "")
    progress.started("2", "2", rounds=10)
    # A round takes 20 s. The first trial has 5 rounds left, the second 10, and one that has not started 10.
    assert progress.remaining_s() == pytest.approx(20 * 25)
    progress.ended("2", "2", stopped="asha")
    assert progress.remaining_s() == pytest.approx(20 * (5 + 20 / 3))


def test_the_time_left_depends_on_progress_and_not_on_the_number_of_reports(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    progress = SweepProgress(Console(file=io.StringIO(), force_terminal=False), trials=2)
    progress.started("1", "1", rounds=120)
    now = 130.0
    progress.round("1", "1", 20, 120, "", "second")
    assert progress.remaining_s() == pytest.approx(30 / 20 * (100 + 120))


def test_a_resumed_trial_is_announced_once() -> None:
    console = Console(file=io.StringIO(), force_terminal=False)
    with SweepProgress(console, trials=1) as progress:
        for _ in range(2):
            progress.started("1", "first", rounds=3)
    assert console.file.getvalue().count("started") == 1  # type: ignore[attr-defined]


def test_durations_have_readable_units() -> None:
    assert [duration(s) for s in (41.6, 600, 9000)] == ["42 s", "10 min", "2.5 h"]
