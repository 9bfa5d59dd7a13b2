"""hflray.support.terminal.app: a mistake is one line on stderr and exit code 2, whatever the command is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import pytest
import typer

from hflray.errors import ConfigError
from hflray.support import references
from hflray.support.terminal.app import HELP, PLAIN, exit_code, group, single, spoken
from tests.conftest import cases, refusals, says

app = group()


@app.callback()
def overview() -> None:
    """Say what these commands are for."""


@app.command("first", context_settings=HELP)
def first(count: Annotated[int, typer.Option(min=1, help="How many.")] = 1, name: str = "") -> None:
    """Do the first thing, which has a summary that is so long that it takes more than one line of the help.

    More about it.
    """
    print(f"{count} {name}".strip())
    if name == "bad":
        raise ConfigError("name: got 'bad'; accepted: good\nsecond: mistake")
    if name == "full":
        raise OSError(28, "No space left on device", "/full/disk")
    if name == "three":
        raise typer.Exit(3)
    if name == "ask":
        raise typer.Abort


@app.command("second")
def second(path: Path) -> None:
    """Do the second thing."""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = exit_code(app, words, "program")
    out, err = capsys.readouterr()
    return code, out, err


def test_a_command_that_ends_well_has_code_0(capsys) -> None:
    assert run(capsys, "first", "--count", "2") == (0, "2\n", "")


@pytest.mark.parametrize("words, line", refusals("support/usage"))
def test_wrong_usage_is_one_line_and_code_2(capsys, words, line: str) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith(line)


@pytest.mark.parametrize(
    ("name", "code", "facts"),
    [
        ("bad", 2, ("error: name: got 'bad'; accepted: good\n", "error: second: mistake\n")),  # a line for each
        ("full", 1, ("error: /full/disk: cannot be written (No space left on device", "program first --name full")),
        ("three", 3, ()), ("ask", 1, ()),
    ],
)  # fmt: skip
def test_an_error_has_its_exit_code_and_its_lines(capsys, name: str, code: int, facts: tuple[str, ...]) -> None:
    ended, _, err = run(capsys, "first", "--name", name)
    assert ended == code
    assert says(err, *facts)


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("first", "--help"), ("first", "-h")], ids=" ".join)
def test_help_is_whole_at_any_width(capsys, monkeypatch, words) -> None:
    monkeypatch.setenv("COLUMNS", "52")
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert "so long that it takes more than one line of the help." in " ".join(out.split())
    assert "…" not in out
    assert "..." not in out.replace("[ARGS]...", "")


def test_a_group_without_a_command_prints_its_help(capsys) -> None:
    code, _, err = run(capsys)
    assert code == 2
    assert "Do the second thing." in err


def test_a_single_command_has_no_name_of_its_own(capsys) -> None:
    alone = single()
    alone.command(context_settings=HELP)(first)
    assert exit_code(alone, ["--count", "3"], "program") == 0
    assert capsys.readouterr().out == "3\n"


@pytest.mark.parametrize("program, words", cases("support/hints"))
def test_a_hint_calls_a_command_as_the_user_does(monkeypatch, program: str, words: str) -> None:
    monkeypatch.setattr(sys, "argv", [program])
    assert spoken("tune", "hflray.tune") == words


def test_an_error_in_a_users_file_is_the_line_of_that_file(capsys, tmp_path, monkeypatch) -> None:
    (tmp_path / "mine.py").write_text("def broken():\n    return {}['a']\n")
    monkeypatch.chdir(tmp_path)
    command = single()

    @command.command()
    def call(name: str) -> None:
        references.load(name)() if ":" in name else {}[name]

    assert exit_code(command, ["mine.py:broken"], "program") == 2
    assert capsys.readouterr().err == "error: mine.py:2: KeyError: 'a'; correct the file\n"
    with pytest.raises(KeyError):  # an error of hflray's own keeps its traceback
        exit_code(command, ["ours"], "program")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252", "utf-8"])
def test_an_output_takes_every_character_whatever_its_encoding(encoding: str) -> None:
    """A mark has one character of ASCII in its place, and any other character its number."""
    marks = "".join(map(chr, PLAIN))
    lines = [f"{marks}│", "é 字 \udcff", "plain"]  # and the byte FF of a file's name
    code = f"""
import sys, typer
from hflray.support.terminal.app import exit_code, single
app = single()
@app.command()
def say():
    for line in {lines!r}:
        print(line)
        print(line, file=sys.stderr)
raise SystemExit(exit_code(app, [], 'say'))
"""
    env = os.environ | {"PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr
    printed = done.stdout.decode(encoding).splitlines()
    assert printed[2] == "plain"
    assert printed[1].endswith("\\udcff")
    shown = [mark if mark.encode(encoding, "ignore") else chr(plain) for mark, plain in
             ((chr(mark), plain) for mark, plain in PLAIN.items())]  # fmt: skip
    assert printed[0].startswith("".join(shown))
