"""hflray.support.terminal.output: a file has no width, and a wait is told when it begins and when it ends."""

from __future__ import annotations

import io
import logging
import re

import pytest
from rich.console import Console

from hflray.support.terminal import output
from hflray.support.terminal.output import WIDE, Waiting, new_console, say, show_log, timed, waiting


def console_of(terminal: bool) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, force_terminal=terminal, width=60), file


def test_a_file_has_no_width_unless_columns_names_one(monkeypatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    console = new_console()
    assert console.width == WIDE
    monkeypatch.setenv("COLUMNS", "72")
    assert new_console().width == 72


def test_a_file_has_a_line_when_a_wait_begins_and_one_with_its_seconds() -> None:
    console, file = console_of(False)
    with waiting(console, "starting [Ray]"):
        assert file.getvalue() == "starting [Ray] …\n"
        say(console, "a note")
    assert re.fullmatch(r"starting \[Ray\] …\na note\nstarting \[Ray\]: \d+\.\d s\n", file.getvalue())


def test_a_wait_that_fails_ends_its_line() -> None:
    console, file = console_of(False)
    with pytest.raises(ValueError, match="broken"), waiting(console, "measuring"):
        raise ValueError("broken")
    assert file.getvalue().endswith(" s\n")


def test_a_quiet_wait_prints_nothing() -> None:
    console, file = console_of(False)
    with waiting(console, "measuring", quiet=True):
        pass
    assert file.getvalue() == ""


def test_a_terminal_shows_a_status_line_with_the_seconds_so_far(monkeypatch) -> None:
    now = 100.0
    monkeypatch.setattr(output.time, "monotonic", lambda: now)
    label = Waiting("starting Ray")
    assert (str(label), f"{label}") == ("starting Ray", "starting Ray")
    now = 104.4
    assert (str(label), f"{label}") == ("starting Ray, 4 s", "starting Ray, 4 s")
    console, file = console_of(True)
    with waiting(console, "starting Ray"):
        pass
    assert "starting Ray" in file.getvalue()
    assert "…" not in file.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_log_lines_are_whole_and_stand_on_lines_of_their_own(monkeypatch, terminal: bool) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    console, file = console_of(terminal)
    show_log(console)
    text = "a message of a library " * 4
    with timed(console, "measuring"):
        logging.getLogger("hflray.test").warning(text)
    lines = file.getvalue().splitlines()
    assert text.strip() in " ".join(" ".join(re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).split()).split())
    if not terminal:
        assert lines[1] == f"WARNING: {text}".rstrip() or lines[1].rstrip() == f"WARNING: {text}".rstrip()
