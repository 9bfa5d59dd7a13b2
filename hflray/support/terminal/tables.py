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
    "…": r"\dots{}", "×": r"$\times$", "≥": r"$\geq$", "≤": r"$\leq$", "<": "$<$", ">": "$>$",
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
        return replace(self, headings=[self.headings[number] for number in numbers], rows=rows)

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
        for part in _parts(columns, options.max_width - MARGIN):
            yield Text("")
            for line, number in part.lines():
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


@dataclass(frozen=True)
class _Column:
    """A heading, a text for each row, and whether the texts are aligned to the right."""

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
class _Beside:
    """Columns beside each other.

    Attributes:
        columns: the columns.
        widths: their widths.
        gap: the number of spaces between them.
        above: the column of names, if they stand on lines of their own; else None.
        width: the width of the output.
    """

    columns: Sequence[_Column]
    widths: list[int]
    gap: int
    above: _Column | None
    width: int

    def lines(self) -> Iterator[tuple[str, int | None]]:
        """Yield each line with the number of its row, which is None for the headings and the rule below them."""
        indent = " " * INDENT if self.above else ""
        if self.above and self.above.heading:
            yield self.above.heading, None
        headings = [_words(column.heading, width) for column, width in zip(self.columns, self.widths, strict=True)]
        height = max(map(len, headings))
        for line in self._lines([[""] * (height - len(heading)) + heading for heading in headings]):
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
            for line in self._lines(cells):
                yield indent + line, number

    def _lines(self, cells: list[list[str]]) -> Iterator[str]:
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


def _fitted(columns: Sequence[_Column], width: int, above: _Column | None = None) -> tuple[_Beside, bool]:
    """Return the columns beside each other in `width` characters, and whether they fit; if not, the last is cut."""
    room = width - (INDENT if above else 0)
    for gap in (WIDE_GAP, GAP):
        widths = [column.widest for column in columns]
        if sum(widths) + gap * (len(columns) - 1) <= room:
            return _Beside(columns, widths, gap, above, width), True
    widths = [column.narrowest for column in columns]
    spare = missing = room - sum(widths) - GAP * (len(columns) - 1)
    for number, column in enumerate(columns):
        if column.widest - widths[number] <= spare:
            spare -= column.widest - widths[number]
            widths[number] = column.widest
    widths[-1] = max(1, widths[-1] + min(0, missing))
    return _Beside(columns, widths, GAP, above, width), missing >= 0


def _parts(columns: Sequence[_Column], width: int) -> list[_Beside]:
    """Lay the columns out in one part or in several parts below each other."""
    whole, fits = _fitted(columns, width)
    if fits or len(columns) == 1:
        return [whole]
    names, *values = columns
    long = names.narrowest > LONG_NAME
    whole, fits = _fitted(values, width, names)
    if long and fits:
        return [whole]
    above = names if long or names.narrowest + GAP + max(column.narrowest for column in values) > width else None
    beside = [] if above else [names]
    parts: list[_Beside] = []
    chosen: list[_Column] = []
    for column in values:
        if chosen and not _fitted([*beside, *chosen, column], width, above)[1]:
            parts.append(_fitted([*beside, *chosen], width, above)[0])
            chosen = []
        chosen.append(column)
    return [*parts, _fitted([*beside, *chosen], width, above)[0]]
