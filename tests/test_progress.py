"""hflray.progress: plain lines where there is no terminal, one live display where there is, silence when asked."""

from __future__ import annotations

import io

from rich.console import Console

from hflray.progress import SweepProgress


def run(**options: object) -> str:
    console = Console(file=io.StringIO(), width=100, **{k: v for k, v in options.items() if k != "quiet"})  # type: ignore[arg-type]
    with SweepProgress(console, trials=2, quiet=bool(options.get("quiet"))) as progress:
        with progress.phase("starting Ray"):
            pass
        for key, name in (("1", "first"), ("2", "second")):
            progress.started(key, name, rounds=3)
            progress.round(key, name, 1, 3, "accuracy 10.0%")
        progress.ended("1", "first")
        progress.ended("2", "second", error="it [broke]")
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_plain_lines() -> None:
    assert run(force_terminal=False).splitlines() == [
        "starting Ray …",
        "first: started",
        "first: round 1/3, accuracy 10.0%",
        "second: started",
        "second: round 1/3, accuracy 10.0%",
        "first: done",
        "second: failed: it [broke]",
    ]


def test_a_terminal_gets_one_live_display() -> None:
    text = run(force_terminal=True)
    assert "round 1/3" not in text
    assert "1/3" in text
    assert "it [broke]" in text


def test_quiet_shows_failures_only() -> None:
    assert run(force_terminal=False, quiet=True).splitlines() == ["second: failed: it [broke]"]
