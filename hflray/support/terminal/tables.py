"""Tables that lose nothing on a narrow terminal, and that are as wide as they need in a log file.

A table is laid out when it is printed. If it is wider than the output, these means are tried one after the other: one
space between columns instead of three, headings on several lines, each row's name on a line of its own, and at last
several tables below each other, which repeat the names. Columns therefore stand in the order of their importance. A
text that is still too long continues on the next line, after a space or a sign such as ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

MARGIN = 1  # spaces before every line
INDENT = 2  # further spaces before a row whose name stands on a line of its own
WIDE_GAP, GAP = 3, 1  # spaces between columns
LONG_NAME = 16  # a longer name may stand on a line of its own
_PIECES = re.compile(r"[^\s\-/,;]*[\s\-/,;]+|[^\s\-/,;]+")


def fold(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` characters, after a space or a sign; only longer words are cut."""
    lines, line = [], ""
    for piece in _PIECES.findall(text) if cell_len(text) > width else [text]:
        if line and cell_len(line + piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = ""
        line += piece
        if cell_len(line.rstrip()) > width:
            *cut, line = chop_cells(line, width)
            lines += cut
    return [*lines, line.rstrip()]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        heading: its heading; a heading of several words may take several lines.
        cells: its texts, one for each row.
        right: whether the texts are aligned to the right.
    """

    heading: str
    cells: list[str]
    right: bool = True

    @property
    def narrowest(self) -> int:
        """The width with a heading of one word a line."""
        return max(map(cell_len, ["", *self.heading.split(), *self.cells]))

    @property
    def widest(self) -> int:
        """The width with a heading of one line."""
        return max(cell_len(self.heading), self.narrowest)

    def put(self, text: str, width: int) -> str:
        """Return a line of a cell, aligned in `width`."""
        spaces = " " * (width - cell_len(text))
        return spaces + text if self.right else text + spaces


@dataclass
class Table:
    """A table to print with Rich.

    Attributes:
        title: the line above it; empty: none.
        headings: the headings; the first column has the rows' names.
        rows: for each row, a text for each heading.
        left: the number of columns, from the first, that are aligned to the left; the others are aligned to the right.
        caption: the line below it; empty: none.
        bold: the numbers of the rows in bold.
    """

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    left: int = 1
    caption: str = ""
    bold: set[int] = field(default_factory=set)

    def add_row(self, *cells: str, bold: bool = False) -> None:
        """Add a row."""
        if bold:
            self.bold.add(len(self.rows))
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _text(self.title, "table.title", options.max_width)
        columns = [
            Column(heading, [row[number] for row in self.rows], number >= self.left)
            for number, heading in enumerate(self.headings)
        ]
        for part in _parts(columns, options.max_width - MARGIN):
            yield Text("")
            for line, number in part.lines():
                style = "bold" if number is None or number in self.bold else ""
                yield Text(" " * MARGIN + line, style=style, no_wrap=True, overflow="ignore")
        yield Text("")
        yield from _text(self.caption, "table.caption", options.max_width)


def _text(text: str, style: str, width: int) -> Iterator[Text]:
    for line in fold(text, width) if text else ():
        yield Text(line, style=style, no_wrap=True, overflow="ignore")


@dataclass
class _Part:
    """Columns beside each other.

    Attributes:
        columns: the columns.
        widths: their widths.
        gap: the number of spaces between them.
        above: the column of names, if they stand on lines of their own; else None.
        width: the width of the output.
    """

    columns: Sequence[Column]
    widths: list[int]
    gap: int
    above: Column | None
    width: int

    def lines(self) -> Iterator[tuple[str, int | None]]:
        """Yield each line with the number of its row, which is None for the headings and the rule below them."""
        indent = " " * INDENT if self.above else ""
        if self.above and self.above.heading:
            yield self.above.heading, None
        headings = [_words(column.heading, width) for column, width in zip(self.columns, self.widths, strict=True)]
        height = max(map(len, headings))
        for line in self._beside([[""] * (height - len(heading)) + heading for heading in headings]):
            yield indent + line, None
        lengths = [len(indent) + sum(self.widths) + self.gap * (len(self.widths) - 1)]
        if self.above:
            lengths += [cell_len(line) for name in self.above.cells for line in fold(name, self.width)]
        yield "─" * max(lengths), None
        for number in range(len(self.columns[0].cells)):
            if self.above:
                for line in fold(self.above.cells[number], self.width):
                    yield line, number
            cells = [fold(column.cells[number], width) for column, width in zip(self.columns, self.widths, strict=True)]
            for line in self._beside(cells):
                yield indent + line, number

    def _beside(self, cells: list[list[str]]) -> Iterator[str]:
        for number in range(max(map(len, cells))):
            texts = [
                column.put(lines[number] if number < len(lines) else "", width)
                for column, lines, width in zip(self.columns, cells, self.widths, strict=True)
            ]
            yield (" " * self.gap).join(texts).rstrip()


def _words(heading: str, width: int) -> list[str]:
    """Break a heading into lines at its spaces, and words that are longer than `width` as `fold` does."""
    lines = [""]
    for word in heading.split():
        if lines[-1] and cell_len(f"{lines[-1]} {word}") > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return [part for line in lines for part in fold(line, width)]


def _fitted(columns: Sequence[Column], width: int, above: Column | None = None) -> _Part | None:
    """Return the columns beside each other in `width` characters, or None if they do not fit."""
    room = width - (INDENT if above else 0)
    for gap in (WIDE_GAP, GAP):
        spaces = gap * (len(columns) - 1)
        if sum(column.widest for column in columns) + spaces <= room:
            return _Part(columns, [column.widest for column in columns], gap, above, width)
    widths = [column.narrowest for column in columns]
    spare = room - sum(widths) - spaces
    if spare < 0:
        return None
    for number, column in enumerate(columns):
        if column.widest - widths[number] <= spare:
            spare -= column.widest - widths[number]
            widths[number] = column.widest
    return _Part(columns, widths, GAP, above, width)


def _parts(columns: Sequence[Column], width: int) -> list[_Part]:
    """Lay the columns out in one part or in several parts below each other."""
    whole = _fitted(columns, width)
    if whole is not None or len(columns) == 1:
        return [whole or _squeezed(columns, width)]
    names, *values = columns
    long = names.narrowest > LONG_NAME
    if long and (whole := _fitted(values, width, names)) is not None:
        return [whole]
    above = names if long or names.narrowest + GAP + max(column.narrowest for column in values) > width else None
    beside = [] if above else [names]
    parts: list[_Part] = []
    chosen: list[Column] = []
    for column in values:
        if chosen and _fitted([*beside, *chosen, column], width, above) is None:
            parts.append(_squeezed([*beside, *chosen], width, above))
            chosen = []
        chosen.append(column)
    return [*parts, _squeezed([*beside, *chosen], width, above)]


def _squeezed(columns: Sequence[Column], width: int, above: Column | None = None) -> _Part:
    """Return the columns beside each other; if they do not fit, the last one gets the remaining width."""
    fitted = _fitted(columns, width, above)
    if fitted is not None:
        return fitted
    room = width - (INDENT if above else 0)
    widths = [column.narrowest for column in columns]
    widths[-1] = max(1, room - sum(widths[:-1]) - GAP * (len(widths) - 1))
    return _Part(columns, widths, GAP, above, width)
