"""Tables of a user's own, from CSV or Parquet: columns by name, and errors that name the file, the row and the column.

A CSV file has the names of its columns in its first line. Commas, semicolons or tabs separate cells, a semicolon makes
``0,5`` a number as well, and a byte order mark and Windows line ends are accepted.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from hflray.errors import ConfigError
from hflray.support.arrays import BoolArray, FloatArray, IntArray
from hflray.support.reader import parquet_types, read_bytes, read_parquet
from hflray.support.text import one_line

SUFFIXES = (".csv", ".parquet")
DELIMITERS = (",", ";", "\t")
ALIKE = 0.75  # similarity (difflib) from which on an unknown column is taken for a misspelt one
LONGEST_CELL = 60  # characters of a cell in a message
TRUTHS = {"0": False, "1": True, "false": False, "true": True}


class Table:
    """A table that was read.

    Args:
        name: how messages call it, such as ``fleet.options.devices: devices.csv``.
        content: the bytes of the file, CSV if its name ends in ``.csv``, and Parquet else.
        is_csv: whether it is CSV.

    Raises:
        ConfigError: it is empty, is no table, or two columns have one name.

    Attributes:
        columns: the names of the columns, in order.
    """

    def __init__(self, name: str, content: bytes, is_csv: bool) -> None:
        self.name, self._is_csv = name, is_csv
        self._table: Any = self._of_csv(content) if is_csv else self._of_parquet(content)
        self.columns: list[str] = list(self._table.column_names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def error(self, row: int, column: str, reason: str) -> ConfigError:
        """Return the error of a cell; the row counts from 0."""
        return ConfigError(f"{self.name}, row {self.row(row)}, column {one_line(column)}: {reason}")

    def row(self, row: int) -> int:
        """Return the number of a row from 1; in a CSV file the names of the columns are row 1."""
        if not self._is_csv:
            return row + 1
        return self._filled_lines[row + 1] if row + 1 < len(self._filled_lines) else row + 2

    def texts(self, column: str, trim: bool = True) -> list[str]:
        """Return the texts of a column, without spaces around them; a number becomes its shortest text.

        An empty cell, and NaN, is an empty text.
        """
        import pyarrow.compute as pc

        values = self._table[column]
        if not _is_text(values):
            return ["" if value is None or value != value else str(value) for value in values.to_pylist()]  # or NaN
        values = pc.fill_null(values.cast("string"), "")
        texts: list[str] = (pc.utf8_trim_whitespace(values) if trim else values).to_pylist()
        return texts

    def indices(self, column: str, names: Sequence[str], nobody: str) -> IntArray:
        """Return the place among `names` of each text of a column.

        Raises:
            ConfigError: a text is not among them; `nobody` says it in words, such as ``no device``.
        """
        place = {name: index for index, name in enumerate(names)}
        texts = self.texts(column)
        for row, text in enumerate(texts):
            if text not in place:
                shown = one_line(text[:LONGEST_CELL])
                raise self.error(row, column, f"got '{shown}', which {nobody} is called; correct it")
        return np.array([place[text] for text in texts], dtype=np.intp)

    def members(self, column: str, member: str, names: Sequence[str] | None, count: int) -> IntArray:
        """Return the place of each text of a column among the names of so many members; None: 0, 1 and so on.

        Raises:
            ConfigError: a text names no `member`, such as ``device``.
        """
        if names is not None:
            return self.indices(column, names, f"no {member}")
        return self.indices(column, tuple(map(str, range(count))), f"no {member} of 0 to {count - 1}")

    def numbers(
        self, column: str, least: float = -np.inf, most: float = np.inf, above: float | None = None
    ) -> FloatArray:
        """Return the numbers of a column, NaN for an empty cell.

        Args:
            column: its name in the file.
            least, most: the lowest and the highest number that is accepted.
            above: accepted are numbers above this one, in place of `least`.

        Raises:
            ConfigError: a cell is no finite number, or not an accepted one.
        """
        accepted = f"above {above:g}" if above is not None else "" if np.isneginf(least) else f"at least {least:g}"
        accepted += f"{' and ' * bool(accepted)}at most {most:g}" if np.isfinite(most) else ""
        accepted = f"accepted: a number {accepted}".rstrip() + "; correct the cell"
        numbers, empty = self._parsed(column, accepted)
        bad = ~np.isfinite(numbers) | (numbers < least) | (numbers > most)
        if above is not None:
            bad |= numbers <= above
        wrong = np.flatnonzero(bad & ~empty)
        if len(wrong):
            raise self.error(int(wrong[0]), column, f"got {self._shown(column, int(wrong[0]))}; {accepted}")
        return numbers

    def filled(
        self, column: str, least: float = -np.inf, most: float = np.inf, above: float | None = None
    ) -> FloatArray:
        """Return the numbers of a column as `numbers` does. Raises ConfigError: also if a cell is empty."""
        numbers = self.numbers(column, least, most, above)
        if len(empty := np.flatnonzero(np.isnan(numbers))):
            reason = "is empty; accepted: a number; fill it, or remove the row"
            raise self.error(int(empty[0]), column, reason)
        return numbers

    def truths(self, column: str) -> BoolArray:
        """Return a column of 0 and 1, or false and true. Raises ConfigError: a cell holds something else."""
        texts = self.texts(column)
        for row, text in enumerate(texts):
            if text.lower() not in TRUTHS:
                raise self.error(row, column, f"got '{one_line(text[:LONGEST_CELL])}'; accepted: 0 or 1; correct it")
        return np.array([TRUTHS[text.lower()] for text in texts], dtype=bool)

    def _parsed(self, column: str, accepted: str) -> tuple[FloatArray, Any]:
        import pyarrow as pa
        import pyarrow.compute as pc

        values = self._table[column]
        if _is_text(values):
            texts = pc.utf8_trim_whitespace(values.cast("string"))
            texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
            if self._decimal_comma:
                texts = pc.replace_substring(texts, ",", ".")
            try:
                values = texts.cast(pa.float64())
            except pa.ArrowInvalid:
                for row, text in enumerate(texts.to_pylist()):
                    if text is not None and not _is_number(text):
                        shown = self._shown(column, row)
                        raise self.error(row, column, f"got {shown}; {accepted}") from None
                values = pa.chunked_array([[None if t is None else float(t) for t in texts.to_pylist()]], pa.float64())
        elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise ConfigError(
                f"{self.name}, column {one_line(column)}: holds {values.type}; accepted: numbers; convert the column"
            )
        empty = np.asarray(pc.is_null(values).to_numpy(zero_copy_only=False), dtype=bool)
        numbers = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return np.array(numbers, dtype=np.float64), empty

    def _shown(self, column: str, row: int) -> str:
        text = one_line(self._table[column][row].as_py())
        return f"'{text if len(text) <= LONGEST_CELL else f'{text[:LONGEST_CELL]}…'}'"

    def _of_csv(self, content: bytes) -> Any:
        import pyarrow as pa
        from pyarrow import csv as reader

        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            row = 1 + content.count(b"\n", 0, error.start)
            raise ConfigError(f"{self.name}, row {row}: a byte is no text of UTF-8; save the file as UTF-8") from error
        self._text = text
        head = self._lines[self._filled_lines[0] - 1] if self._filled_lines else ""
        if not head:
            raise ConfigError(f"{self.name}: is empty; accepted: a line with the names of columns, and a row or more")
        delimiter = max(DELIMITERS, key=head.count)
        self._decimal_comma = delimiter == ";"
        names = [cell.strip() for cell in next(csv.reader([head], delimiter=delimiter))]
        self._refuse_names(names)
        if len(self._filled_lines) < 2:
            raise ConfigError(f"{self.name}: has no row below the names of its columns; accepted: one or more")
        skip = self._filled_lines[0]
        wrong: list[Any] = []

        def refuse(row: Any) -> str:
            wrong.append(row)
            return "skip"

        table = reader.read_csv(
            pa.BufferReader(text.encode()),  # Arrow reads it in a thread, which must not call Python as it ends
            reader.ReadOptions(column_names=names, skip_rows=skip, use_threads=False),
            reader.ParseOptions(delimiter=delimiter, invalid_row_handler=refuse),
            reader.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
        if wrong:
            first = wrong[0]
            head = first.text.splitlines()[0] if first.text else ""  # an open quote joins lines
            at = next((n for n, line in enumerate(self._lines, 1) if n > skip and line == head), skip + 1)
            raise ConfigError(
                f"{self.name}, row {at}: got {first.actual_columns} cells; accepted: {first.expected_columns}, as many "
                "as names of columns; correct the row"
            )
        return table

    @cached_property
    def _lines(self) -> list[str]:
        return self._text.splitlines() if self._is_csv else []

    @cached_property
    def _filled_lines(self) -> list[int]:
        """The numbers, from 1, of the lines that are not blank; the first has the names of the columns."""
        return [number for number, line in enumerate(self._lines, 1) if line.strip()]

    _decimal_comma = False
    left_out: Mapping[str, str] = {}  # types of the columns of a Parquet file that hold neither numbers nor names

    def _of_parquet(self, content: bytes) -> Any:
        try:
            table = read_parquet(content, leave_out=True)
            self.left_out = {name: kind for name, kind in parquet_types(content) if name not in table.column_names}
        except ValueError as error:
            raise ConfigError(f"{self.name}: is no Parquet file that can be read ({error}); write it anew") from error
        self._refuse_names(list(table.column_names))
        if not table.num_rows:
            raise ConfigError(f"{self.name}: has no row; accepted: one or more")
        return table

    def _refuse_names(self, names: Sequence[str]) -> None:
        for name in names:
            if not name:
                raise ConfigError(f"{self.name}, row 1: a column has no name; accepted: a name for each; name it")
            if [column.lower() for column in names].count(name.lower()) > 1:  # upper and lower case are one
                raise ConfigError(f"{self.name}, row 1: two columns are called '{one_line(name)}'; rename one")


def _is_text(values: Any) -> bool:
    import pyarrow as pa

    kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def read_table(name: str, file: str, content: bytes) -> Table:
    """Return the table of a file's bytes.

    Args:
        name: how messages call it.
        file: the file's name, whose ending says what it is.
        content: its bytes.

    Raises:
        ConfigError: the ending is another one, or the file is no such table.
    """
    if not file.lower().endswith(SUFFIXES):
        raise ConfigError(f"{name}: accepted: a file whose name ends in {' or '.join(SUFFIXES)}; convert it")
    return Table(name, content, file.lower().endswith(".csv"))


def open_table(setting: str, path: object) -> tuple[Table, bytes]:
    """Return the table at a path, which a setting gives, and its bytes. Raises ConfigError: it cannot be read."""
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{setting}: got {path!r}; accepted: the path of a CSV or Parquet file; correct it")
    try:
        content = read_bytes(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {one_line(path)} cannot be read ({error}); give the path of a file") from error
    return read_table(f"{setting}: {one_line(path)}", path, content), content


def match(
    table: Table, names: Sequence[str], renamed: Mapping[str, str], hint: str = ""
) -> tuple[dict[str, str], list[str]]:
    """Return the known columns of a table by their known names, and the names of its other columns.

    Upper and lower case are one.

    Args:
        table: the table.
        names: the names of columns that mean something.
        renamed: names in the file by known names.
        hint: how to rename a column, which ends the message.

    Raises:
        ConfigError: a known column of a Parquet file holds neither numbers nor names, or a column that is not known
            resembles one that is, and that the table lacks.
    """
    held = {column.lower() for column in (*table.columns, *table.left_out)}
    # A renamed column may be in another file, and this one have the known name.
    called = {name: header if (header := renamed.get(name, name).lower()) in held else name.lower() for name in names}
    for column, kind in table.left_out.items():
        if column.lower() in called.values():
            raise ConfigError(
                f"{table.name}, column {one_line(column)}: holds {one_line(kind)}; accepted: numbers or names; convert "
                "the column"
            )
    by_lower = {column.lower(): column for column in table.columns}
    by_name = {name: by_lower[header] for name, header in called.items() if header in by_lower}
    unused = [column for column in table.columns if column not in by_name.values()]
    missing = [name for name in names if name not in by_name]
    for column in unused:
        if alike := difflib.get_close_matches(column.lower(), missing, n=1, cutoff=ALIKE):
            raise ConfigError(
                f"{table.name}, column {one_line(column)}: unknown; did you mean '{alike[0]}'? correct the name{hint}"
            )
    return by_name, [*unused, *table.left_out]
