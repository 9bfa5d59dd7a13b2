"""hflray.support.text: names are shown as they are and interpreted nowhere."""

from __future__ import annotations

import html
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.cbook import is_math_text

from hflray.support.text import (
    as_chart_text,
    as_file_stem,
    as_html,
    as_markdown_cell,
    breaks_lines,
    holds_secret,
    one_line,
    shorten,
    shown_address,
)
from tests.conftest import cases
from tests.hostile import BREAKING, NAMES

anything = st.text(st.characters(categories=None)) | st.sampled_from([*NAMES, *BREAKING])


@pytest.mark.parametrize("name", BREAKING)
def test_a_breaking_name_is_reported_and_becomes_one_line(name: str) -> None:
    assert breaks_lines(name)
    shown = one_line(name)
    assert not breaks_lines(shown)
    assert shown == f"a{name[1:-1].encode('unicode_escape').decode()}b"


@pytest.mark.parametrize("name", NAMES)
def test_a_name_of_one_line_stays(name: str) -> None:
    assert not breaks_lines(name)
    assert one_line(name) == name
    assert html.unescape(as_html(name)) == name


@given(anything)
def test_one_line_is_one_printable_line(text: str) -> None:
    assert len(one_line(text).splitlines()) <= 1
    one_line(text).encode()  # without lone surrogates


@given(anything)
def test_markup_has_no_tag_and_a_cell_no_separator(text: str) -> None:
    assert not {"<", ">"} & set(as_html(text))
    cell = as_markdown_cell(text)
    assert "\n" not in cell
    assert "|" not in cell.replace("\\|", "")
    assert not is_math_text(as_chart_text(text))


@given(anything)
def test_a_stem_stays_in_its_folder(text: str) -> None:
    stem = as_file_stem(text)
    path = Path("/folder") / f"{stem}.parquet"
    assert path.parent == Path("/folder")
    assert not stem.startswith(".")
    assert len(path.name.encode()) < 255
    assert as_file_stem(stem) == stem


def test_names_of_runs_keep_their_stems() -> None:
    for name in ("fashion-H10-l1-ikc-d3qn-s0", "H50-l1-d3qn_5_ms-s0-deployment_seed_0", "p.1"):
        assert as_file_stem(name) == name
    assert as_file_stem("seed=1") == "seed_1"


@pytest.mark.parametrize("address, shown, secret", cases("support/addresses"))
def test_an_address_is_shown_without_its_secrets(address: str, shown: str, secret: bool) -> None:
    assert shown_address(address) == shown
    assert holds_secret(address) == secret
    assert one_line(f"{address} is away") == f"{shown} is away"
    assert shorten([address]) == f"['{shown}']"
