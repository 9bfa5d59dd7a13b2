"""hflray.support.terminal.tables: nothing is cut at any width, and the layout is the widest that fits."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from hflray.support.terminal.output import WIDE
from hflray.support.terminal.tables import TextTable, fold
from tests.support.terminal.rendering import WIDTHS, check_whole, render

HEADINGS = ["trial", "rounds", "accuracy", "to target", "objective", "delay s", "energy J", "MB"]
ROW = ["91.2%", "12", "12,345.6", "1,321.9", "4,321.0", "64"]
SHORT = TextTable("closing", HEADINGS, [["first", "5", *ROW], ["second", "12", *ROW]])
LONG_NAMES = [f"fashion_mnist-H{h}-λ1-ikc-d3qn-s0-target_accuracy=0.875" for h in (10, 100)]
LONG = TextTable("closing", HEADINGS, [[name, "5", *ROW] for name in LONG_NAMES], caption="a caption")


def lines_of(table: TextTable, width: int) -> list[str]:
    return [line for line in render(table, width).splitlines() if line.strip()]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("table", [SHORT, LONG])
def test_nothing_is_cut(table, width) -> None:
    cells = [cell for row in table.rows for cell in row]
    words = [word for heading in HEADINGS for word in heading.split()]
    check_whole(render(table, width), width, [table.title, table.caption, *words, *cells])


def test_a_wide_output_has_one_line_for_each_row_and_three_spaces_between_columns() -> None:
    assert lines_of(SHORT, WIDE) == [
        "closing",
        " trial    rounds   accuracy   to target   objective   delay s   energy J   MB",
        " " + "─" * 76,
        " first         5      91.2%          12    12,345.6   1,321.9    4,321.0   64",
        " second       12      91.2%          12    12,345.6   1,321.9    4,321.0   64",
    ]


def test_a_narrower_output_has_one_space_between_columns() -> None:
    title, heads, _, first, second = lines_of(SHORT, 70)
    assert (title, heads.split()) == ("closing", " ".join(HEADINGS).split())
    assert first.split() == ["first", "5", *ROW]
    assert len(first) == len(second) == 63


def test_headings_of_several_words_take_several_lines_before_columns_are_stacked() -> None:
    title, upper, lower, _, first, _ = lines_of(SHORT, 60)
    assert title == "closing"
    assert "to" in upper.split()
    assert "target" in lower.split()
    assert first.split() == ["first", "5", *ROW]


def test_a_long_name_stands_on_a_line_of_its_own() -> None:
    title, name_heading, heads, rule, first, numbers, *_ = lines_of(LONG, 80)
    assert (title, name_heading) == ("closing", " trial")
    assert heads.split() == " ".join(HEADINGS[1:]).split()
    assert set(rule.strip()) == {"─"}
    assert first == f" {LONG_NAMES[0]}"
    assert numbers.split() == ["5", *ROW]


def test_columns_that_do_not_fit_stand_below_with_the_names_again() -> None:
    text = render(SHORT, 40)
    assert text.count("first") == text.count("second") > 1
    assert text.index("accuracy") < text.index("energy")  # in the order of their importance
    check_whole(text, 40, ROW)


def test_a_row_may_be_bold_and_columns_aligned_to_the_left() -> None:
    table = TextTable("", ["a", "b", "c"], align="ll")
    table.add_row("1", "x", "3", bold=True)
    table.add_row("10", "yy", "30")
    assert lines_of(table, 40)[-2:] == [" 1    x     3", " 10   yy   30"]
    assert table.bold == {0}


@given(text=st.from_regex(re.compile(r"[a-zé1-9λ,=\- ]{0,60}", re.ASCII), fullmatch=True), width=st.integers(1, 30))
def test_folding_loses_only_blanks(text: str, width: int) -> None:
    lines = fold(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_folding_breaks_after_signs_and_cuts_only_longer_words() -> None:
    assert fold("fashion_mnist-H10-target", 14) == ["fashion_mnist-", "H10-target"]
    assert fold("two words", 5) == ["two", "words"]
    assert fold("abcdefgh", 5) == ["abcde", "fgh"]
    assert fold("", 5) == [""]


names = st.text("abc-_19", min_size=1, max_size=70)


@given(
    rows=st.lists(st.tuples(names, st.text("0123456789,.", max_size=12), st.text("0123", max_size=9)), max_size=3),
    width=st.integers(24, 120),
)
def test_every_table_fits_and_shows_every_cell(rows, width: int) -> None:
    table = TextTable("", ["trial", "round/objective", "delay s"], [list(row) for row in rows])
    text = render(table, width)
    assert max((cell_len(line) for line in text.splitlines()), default=0) <= width
    for row in rows:
        for cell in row[1:]:
            assert cell in text
