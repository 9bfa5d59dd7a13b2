"""``hflray check``: every part in a file is tried, and a line for each says what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hflray import registry
from hflray.command.check import TRIED, app
from hflray.support.terminal.app import exit_code
from tests.blocks import blocks
from tests.conftest import own_module, says

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "parts.md"
WRONG = own_module("wrong_parts")


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    """Return a function that checks a file of this text, and returns the exit code, the lines and the errors."""

    def run(text: str, *words: str) -> tuple[int, list[str], str]:
        (tmp_path / "own.py").write_text(text)
        code = exit_code(app, [str(tmp_path / "own.py"), *words], "hflray check")
        captured = capsys.readouterr()
        return code, captured.out.splitlines(), captured.err

    return run


def test_every_kind_says_what_is_tried() -> None:
    assert set(TRIED) == set(registry.GROUPS)


def test_the_parts_of_the_page_are_all_right(check) -> None:
    (own,) = [block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.comment == "<!-- own.py -->"]
    code, lines, err = check(own)
    assert (code, err) == (0, "")
    assert all(line.endswith(": ok") for line in lines)
    assert {line.split()[0] for line in lines} == set(registry.GROUPS)
    (shown,) = [block.text for block in blocks(PAGE.read_text(encoding="utf-8")) if block.comment == "<!-- prints -->"]
    assert set(shown.splitlines()[1:]) - {"…"} <= set(lines)


def test_each_wrong_part_is_one_line(check) -> None:
    code, lines, err = check(WRONG.replace("LAST", "-1"))
    assert (code, err, len(lines)) == (2, "", 7)
    of = {line.split()[1]: line for line in lines}
    assert says(of["InDecibels"], "fading", "world.fading.name: own.py:InDecibels returned -", "not in dB", "factor")
    assert says(of["Broken"], "sink", "tracking.sinks: own.py:Broken fails (own.py:", "AttributeError", "correct it")
    assert says(of["Decaying"], "scheduler", "option 'decay' is missing")
    assert says(of["quality"], "target.metric: own.py:quality", "; or training.loss: own.py:quality")
    for name in ("some_helper", "Block", "Callback"):
        assert says(of[name], "- ", "not tried")


def test_an_option_that_a_part_needs_is_given_by_set(check) -> None:
    _, lines, _ = check(WRONG.replace("LAST", "None"), "--set", "scheduling.options.decay=1")
    of = {line.split()[1]: line for line in lines}
    assert of["Decaying"].endswith(": ok")
    assert "InDecibels returned -" in of["InDecibels"]
    assert says(of["Broken"], "tracking.sinks: own.py:Broken returned None; accepted: the number of the last round")
    _, lines, _ = check(WRONG, "--set", "scheduling.options.decay=0")
    assert any("own.py:Decaying returned a device twice" in line for line in lines)


@pytest.mark.parametrize(
    "text, said",
    [
        ("x = 1", "holds no part"), ("def f(:", "own.py:1: SyntaxError"), ("import nothing_at_all", "own.py:1: "),
        ("class Some:\n    pass", "holds no part"), ("def some_helper(a, b):\n    pass", "holds no part"),
    ],
)  # fmt: skip
def test_a_file_without_parts_is_one_line(check, text: str, said: str) -> None:
    code, lines, err = check(text)
    assert (code, lines) == (2, [])
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize("name", ["own.yaml", "none.py", "folder"])
def test_another_file_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({}))
    assert exit_code(app, [str(tmp_path / name)], "hflray check") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_part_that_needs_columns_is_tried_with_them(check) -> None:
    body = "return link.latency_s + bits / link.rate_bps(), link.upload_w"
    needs = "    shared = False\n    needs = (('mbps',), ('upload_w',), ('latency_s',))\n"
    text = f"from hflray import Access\nclass Own(Access):\n{needs}    def upload(self, share, link, bits): {body}\n"
    assert check(text)[1][0].endswith(": ok")


def test_a_tracker_that_is_away_is_not_wrong(check) -> None:
    away = WRONG.replace("LAST", "-1").replace("rounds.nothing", "raise ConnectionError('no server')")
    assert any("sink" in line and line.endswith(": ok") for line in check(away)[1])
