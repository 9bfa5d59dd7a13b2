"""What a table looks like on a terminal of some width and in a file, and whether it shows everything."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from hflray.support.terminal.output import WIDE

WIDTHS = (80, 60, WIDE)  # a terminal, a narrow one, and a file


def render(renderable: Any, width: int) -> str:
    """Return what is printed on an output of this width."""
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(renderable)
    return console.export_text()


def check_whole(text: str, width: int, texts: Iterable[str]) -> None:
    """Check that each of `texts` is in the output, that nothing was cut, and that no line is too long.

    A text may continue on the next line after a space or a sign, so blanks are not compared. The only "…" are those
    of `texts`.
    """
    texts, lines = list(texts), text.splitlines()
    assert max(map(cell_len, lines)) <= width, max(lines, key=len)
    squeezed = rest = "".join(text.split())
    for whole in ("".join(whole.split()) for whole in texts):
        assert whole in squeezed, (whole, text)
        rest = rest.replace(whole, "") if "…" in whole else rest
    assert "…" not in rest
