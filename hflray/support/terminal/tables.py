"""The one kind of table: of texts, for a terminal or a log file, a page, Markdown and LaTeX.

On a terminal a table is laid out when it is printed, and loses nothing where it is narrow; in a log file it is as wide
as it needs. If it is wider than the output, these means are tried one after the other: one space between columns
instead of three, headings on several lines, each row's name on a line of its own, and at last several tables below each
other, which repeat the names. Columns therefore stand in the order of their importance. A text that is still too long
continues on the next line, after a space or a sign such as ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions
from rich.text import Text

from hflray.support.text import as_markdown_cell

MARGIN = 1  # spaces before every line
INDENT = 2  # further spaces before a row whose name stands on a line of its own
WIDE_GAP, GAP = 3, 1  # spaces between columns
LONG_NAME = 16  # a longer name may stand on a line of its own
MISSING = "–"
_PIECES = re.compile(r"[^\s\-/,;]*[\s\-/,;]+|[^\s\-/,;]+")
# The characters that LaTeX reads as commands, and those of our labels that pdfLaTeX cannot typeset.
_LATEX = str.maketrans({
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash ", "~": r"\textasciitilde ",
    "^": r"\textasciicircum ", "±": r"$\pm$", "λ": r"$\lambda$", "α": r"$\alpha$", "ε": r"$\varepsilon$", "–": "--",
    "…": r"\dots{}", "⊣": r"$\dashv$", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "<": "$<$", ">": "$>$",
    "[": "{[}", "*": "{*}",  # after the end of a row they would be its options
})  # fmt: skip


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


@dataclass
class TextTable:
    """A table of texts. Rich prints it, and ``page.html`` of a report shows it by its headings and rows.

    Attributes:
        title: the line above it; empty: none.
        headings: the headings; the first column has the rows' names.
        rows: for each row, a text for each heading.
        align: ``l`` or ``r`` for each of the first columns; the others are aligned to the right.
        caption: the line below it; empty: none.
        bold: the numbers of the rows in bold.
    """

    title: str
    headings: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    align: str = "l"
    caption: str = ""
    bold: set[int] = field(default_factory=set)

    @classmethod
    def of(
        cls, records: Sequence[Mapping[str, str]], title: str = "", align: str = "l", caption: str = ""
    ) -> TextTable:
        """Return the table of records, whose keys are the headings; a dash stands where a record lacks a key."""
        headings = list(dict.fromkeys(heading for record in records for heading in record))
        rows: list[Sequence[str]] = [[record.get(heading, MISSING) for heading in headings] for record in records]
        return cls(title, headings, rows, align, caption)

    @property
    def records(self) -> list[dict[str, str]]:
        """The rows by their headings."""
        return [dict(zip(self.headings, row, strict=True)) for row in self.rows]

    def __getitem__(self, heading: str) -> list[str]:
        """Return the cells below a heading."""
        return [row[list(self.headings).index(heading)] for row in self.rows]

    def __contains__(self, heading: str) -> bool:
        return heading in self.headings

    def without(self, headings: Sequence[str]) -> TextTable:
        """Return the table without some of its columns."""
        numbers = [number for number, heading in enumerate(self.headings) if heading not in headings]
        rows: list[Sequence[str]] = [[row[number] for number in numbers] for row in self.rows]
        headings, align = [self.headings[number] for number in numbers], "".join(self._letters[n] for n in numbers)
        return replace(self, headings=headings, rows=rows, align=align)

    @property
    def _letters(self) -> str:
        return self.align.ljust(len(self.headings), "r")

    def add_row(self, *cells: str, bold: bool = False) -> None:
        """Add a row."""
        if bold:
            self.bold.add(len(self.rows))
        self.rows.append(cells)

    def markdown(self) -> str:
        """Return the table as Markdown without title and caption; what cells hold of Markdown and HTML is escaped."""
        head, *rows = (f"| {' | '.join(map(as_markdown_cell, cells))} |" for cells in (self.headings, *self.rows))
        rule = "".join("|---" if letter == "l" else "|--:" for letter in self._letters) + "|"
        return "\n".join([head, rule, *rows]) + "\n"

    def latex(self) -> str:
        """Return the table as LaTeX for the package booktabs, with its caption; special characters are escaped."""
        head, *rows = (rf"{' & '.join(map(_latex, cells))} \\" for cells in (self.headings, *self.rows))
        begin = [r"\begin{table}", r"\centering", rf"\caption{{{_latex(self.caption)}}}"]
        body = [rf"\begin{{tabular}}{{{self._letters}}}", r"\toprule", head, r"\midrule", *rows, r"\bottomrule"]
        return "\n".join([*begin, *body, r"\end{tabular}", r"\end{table}", ""])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from _text(self.title, "table.title", options.max_width)
        columns = [
            _Column(heading, [row[number] for row in self.rows], letter == "r")
            for number, (heading, letter) in enumerate(zip(self.headings, self._letters, strict=True))
        ]
        for part, names in _parts(columns, options.max_width - MARGIN):
            yield Text("")
            for line, number in _lines(part, names, options.max_width - MARGIN):
                style = "bold" if number is None or number in self.bold else ""
                yield Text(" " * MARGIN + line, style=style, no_wrap=True, overflow="ignore")
        yield Text("")
        yield from _text(self.caption, "table.caption", options.max_width)


def _latex(text: str) -> str:
    """Return a text as LaTeX on one line, because a caption and a cell cannot hold an empty one."""
    return " ".join(text.split()).translate(_LATEX)


def _text(text: str, style: str, width: int) -> Iterator[Text]:
    for line in fold(text, width) if text else ():
        yield Text(line, style=style, no_wrap=True, overflow="ignore")


class _Column(NamedTuple):
    """A heading, a text for each row, and whether the texts are aligned to the right."""

    heading: str
    cells: list[str]
    right: bool = True

    @property
    def narrowest(self) -> int:
        """The width with a heading of one word a line."""
        return max(map(cell_len, ["", *self.heading.split(), *self.cells]))

    def aligned(self, lines: Sequence[str], number: int, width: int) -> str:
        """Return a line of a cell, aligned in `width`; it is empty where the cell has fewer lines."""
        text = lines[number] if number < len(lines) else ""
        spaces = " " * (width - cell_len(text))
        return spaces + text if self.right else text + spaces


def _parts(columns: Sequence[_Column], width: int) -> list[tuple[list[_Column], _Column | None]]:
    """Return the columns of each part, and the column of names if they stand on lines of their own."""

    def fit(part: Sequence[_Column], room: int) -> bool:
        return sum(column.narrowest for column in part) + GAP * (len(part) - 1) <= room

    names, *values = columns
    if not values or fit(columns, width):
        return [(list(columns), None)]
    widest = max(column.narrowest for column in values)
    above = names if names.narrowest > LONG_NAME or names.narrowest + GAP + widest > width else None
    beside, room = ([], width - INDENT) if above else ([names], width)
    parts: list[list[_Column]] = [[]]
    for column in values:
        if parts[-1] and not fit([*beside, *parts[-1], column], room):
            parts.append([])
        parts[-1].append(column)
    return [([*beside, *part], above) for part in parts]


def _by_words(heading: str, width: int) -> list[str]:
    """Return the lines of a heading, which breaks between words and at no sign, such as the hyphen of ``HFEL-300``."""
    lines = [""]
    for word in heading.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and cell_len(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return [part for line in lines for part in fold(line, width)]


def _lines(columns: Sequence[_Column], names: _Column | None, width: int) -> Iterator[tuple[str, int | None]]:
    """Yield each line of a part with the number of its row, which is None for the headings and the rule below them."""
    indent, gaps = " " * INDENT if names else "", len(columns) - 1
    room = width - len(indent)
    widths = [max(cell_len(column.heading), column.narrowest) for column in columns]
    gap = WIDE_GAP if sum(widths) + WIDE_GAP * gaps <= room else GAP
    if sum(widths) + gap * gaps > room:
        widths = [column.narrowest for column in columns]
        widths[-1] = max(1, min(widths[-1], room - sum(widths[:-1]) - gap * gaps))

    def row(cells: list[list[str]]) -> Iterator[str]:
        for number in range(max(map(len, cells))):
            laid_out = zip(columns, cells, widths, strict=True)
            line = (" " * gap).join(column.aligned(lines, number, wide) for column, lines, wide in laid_out)
            yield (indent + line).rstrip()

    headings = [_by_words(column.heading, wide) for column, wide in zip(columns, widths, strict=True)]
    height = max(map(len, headings))
    if names and names.heading:
        yield names.heading, None
    for line in row([[""] * (height - len(heading)) + heading for heading in headings]):
        yield line, None
    above = [fold(name, width) for name in names.cells] if names else [[] for _ in columns[0].cells]
    lengths = [len(indent) + sum(widths) + gap * gaps, *(cell_len(line) for name in above for line in name)]
    yield "─" * max(lengths), None
    for number, name in enumerate(above):
        for line in [
            *name,
            *row([fold(column.cells[number], wide) for column, wide in zip(columns, widths, strict=True)]),
        ]:
            yield line, number
