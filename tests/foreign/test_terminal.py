"""Texts of strangers reach a terminal as text: no control character of theirs is sent, and no markup is obeyed."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from hflray.support.checksum import SHA256, stamped
from hflray.support.terminal.app import exit_code
from hflray.support.terminal.output import new_console, show_log
from hflray.support.text import visible
from tests.conftest import cases
from tests.foreign.mutations import with_entries, with_members
from tests.foreign.samples import FOLDER, NAME
from tests.foreign.test_foreign import called

POISON = "\x1b]52;c;ZXZpbA==\x07\x9b31mEVIL\x1b[31mEVIL\u202e\u2066[red]x[/red][link=http://x]y[/link]:warning:"
OWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")  # colours and movements of Rich


class Terminal(io.StringIO):
    """An output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def poisoned(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every format, in which each text that may be one holds `POISON`."""
    root = Path(shutil.copytree(whole, tmp_path_factory.mktemp("poisoned") / "samples"))
    path, hostile = root / "exports" / f"{NAME}.zip", POISON.replace("/", "")

    def poison(files: dict[str, bytes]) -> None:
        content = json.loads(files["runs.json"])
        content |= {name: content[name] + POISON for name in ("name", "title", "description")}
        content["notes"] = [f"a{POISON}: left out: b{POISON}"]
        for run in content["runs"]:
            run["error"], run["status"] = POISON, "FAILED"
            run["environment"] = dict.fromkeys(run["environment"], POISON)
        content["runs"].append(content["runs"][0] | {"config": {POISON: POISON}})
        files |= {"runs.json": json.dumps(content).encode(), "about.txt": POISON.encode()}

    def poison_entry(entry: dict[str, Any]) -> None:
        if "start" in entry:
            entry["name"] += POISON
            entry |= {kind: dict.fromkeys(entry[kind], POISON) for kind in ("tags", "params")}
        if "end" in entry:
            entry |= {"error": POISON, "tags": {"hflray.error": POISON, "hflray.stopped": POISON}}

    with_members(path, poison)
    shutil.copy(path, path.with_name(f"a{hostile}.zip"))
    folder = root / "results" / FOLDER
    tree = json.loads((folder / "sweep.json").read_text())
    tree.pop(SHA256)
    tree["file"]["description"], tree["experiment"] = POISON, POISON
    (folder / "sweep.json").write_text(json.dumps(stamped(tree)))
    for journal in list((folder / "journal").glob("*.jsonl")):
        with_entries(journal, poison_entry)
        shutil.copy(journal, journal.with_name(f"a{hostile}.jsonl"))
    (root / f"own{hostile}.py").write_text(f"raise ValueError({POISON!r})\n")
    return root


def check(text: str, terminal: bool) -> None:
    """Check that a text sends a terminal nothing but Rich's own escapes, and a file nothing at all."""
    rest = OWN.sub("", text) if terminal else text
    assert [letter for letter in rest if letter not in "\n\r\t" and visible(letter) != letter] == []
    assert "\x1b[31mEVIL" not in text
    assert "\x1b]" not in text


@pytest.mark.parametrize(
    "terminal", [pytest.param(True, id="a terminal"), pytest.param(False, id="a file", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name, words", cases("foreign/commands"))
def test_a_command_sends_no_control_character(
    poisoned: Path, name: str, words: list[str], terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = (Terminal(), Terminal()) if terminal else (io.StringIO(), io.StringIO())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    stands_for = {"{root}": str(poisoned), "POISON": POISON, "BARE": POISON.replace("/", ""), "FOLDER": FOLDER}
    for short, whole in (stands_for | {"NAME": NAME}).items():
        words = [word.replace(short, whole) for word in words]
    code = called(*words)
    monkeypatch.undo()
    text = out.getvalue() + err.getvalue()
    assert code in (0, 1, 2)
    assert text
    check(text, terminal)
    if name in ("report an export", "report a folder"):
        assert "EVIL" in text
        assert "[red]" in text


@pytest.mark.parametrize("terminal", [True, False])
def test_log_lines_and_live_displays_send_none(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import logging

    from hflray.sweep.progress import SweepProgress

    out: Any = Terminal() if terminal else io.StringIO()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(logging.root, "handlers", [])
    console = new_console()
    show_log(console)
    with SweepProgress(console, 2) as progress:
        progress.started("a", f"a{POISON}", 3)
        progress.round("a", f"a{POISON}", 1, 3, POISON)
        logging.getLogger("hflray").warning("%s", POISON)
        progress.ended("a", f"a{POISON}", POISON)
    monkeypatch.undo()
    assert "EVIL" in out.getvalue()
    check(out.getvalue(), terminal)


def test_what_is_printed_without_rich_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.support.terminal.test_app import app

    assert exit_code(app, ["first", "--name", POISON], "program") == 0
    assert visible(POISON) in capsys.readouterr().out
    assert isinstance(sys.stdout, io.TextIOBase)  # the output is as it was
