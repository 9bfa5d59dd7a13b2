"""A table of samples from a user's CSV or Parquet file, ``data: {name: table, options: {file: readings.csv, …}}``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import Kind
from hflray.data.datasets import Dataset, split_rows
from hflray.data.own import LARGEST
from hflray.errors import ConfigError, DataError, nearest
from hflray.support import pinned
from hflray.support.arrays import FloatArray
from hflray.support.tables import Table, read_table
from hflray.support.text import shorten

FEW = 20  # different whole numbers up to which a target of numbers is taken for classes
OPTIONS = "data.options"


def load_table(
    root: Path | None = None,
    *,
    file: str,
    target: str,
    owner: str | None = None,
    features: Sequence[str] | None = None,
    kind: str | None = None,
    unmatched: str = "error",
) -> Dataset:
    """Read a table with a row for each sample. One row in five of each owner, or of each class, is a test row.

    Args:
        root: ignored; a path is relative to the sweep file.
        file: pinned name of the CSV or Parquet file.
        target: the column that is learned: texts, or few different whole numbers, are classes, and other numbers are
            those of a regression.
        owner: the column that says who owns a row, such as the name of a device; None: nobody.
        features: the columns of numbers from which it is learned; None: all others.
        kind: ``classification`` or ``regression``; None: what the target suggests.
        unmatched: see `hflray.data.owners.OwnersPartition`, which reads it.

    Raises:
        DataError: a column is missing, a cell is empty or no number, or there are too few rows.
        ConfigError: the file is no table.
    """
    for name, value in (("file", file), ("target", target)):
        if not isinstance(value, str):
            raise ConfigError(f"{OPTIONS}.{name}: got {shorten(value)}; accepted: a text; set it")
    if owner == target:
        raise ConfigError(f"{OPTIONS}.owner: got {shorten(owner)}, which is the target too; name another column")
    place = pinned.path_of(file if pinned.is_pinned(file) else pinned.pin(file, keep=False))
    table = read_table(f"{OPTIONS}.file: {place.name}", place.name, place.read_bytes())
    for name, column in (("target", target), ("owner", owner)):
        if column is not None:
            _check(table, f"{OPTIONS}.{name}", column)
    chosen = [column for column in table.columns if column not in (target, owner)] if features is None else features
    if isinstance(chosen, str) or not chosen or not all(isinstance(column, str) for column in chosen):
        got = "no column beside target and owner" if features is None else f"got {shorten(features)}"
        raise ConfigError(f"{OPTIONS}.features: {got}; accepted: a list of columns of numbers; correct it")
    for column in chosen:
        _check(table, f"{OPTIONS}.features", column)
        if column in (target, owner):
            raise ConfigError(f"{OPTIONS}.features: got {shorten(column)}, which is target or owner too; leave it out")
    x = np.stack([_filled(table, column) for column in chosen], axis=-1)
    y, names, of_kind, note = _target(table, target, kind)
    owners = None if owner is None else np.array(_texts(table, owner, "who owns the row"), dtype=np.str_)
    test = split(owners if owners is not None else y if of_kind == "classification" else np.zeros(len(y)), y, of_kind)
    if not test.any():
        raise DataError(
            f"{table.name}: has {len(y)} rows, of which none is left for tests; accepted: 3 rows or more an owner"
        )
    dataset = Dataset.of(
        x[~test], y[~test], x[test], y[test], of_kind,
        name=place.stem,
        owner=None if owners is None else owners[~test],
        test_owner=None if owners is None else owners[test],
        class_names=names,
    )  # fmt: skip
    return dataset if note is None else replace(dataset, notes=(*dataset.notes, note))


def split(strata: NDArray[Any], y: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    """Return which rows are test rows, (n,): those of `split_rows`, but none that trains a class alone."""
    test = split_rows(strata, "table")
    return test & np.isin(y, y[~test]) if kind == "classification" else test


def _check(table: Table, setting: str, column: str) -> None:
    if column not in table.columns:
        hint = nearest(column, table.columns)
        raise ConfigError(
            f"{setting}: got {shorten(column)}, which {table.name.partition(': ')[2]} has not{hint}; there: "
            f"{', '.join(table.columns[:12])}{', …' * (len(table.columns) > 12)}; correct it"
        )


def _filled(table: Table, column: str) -> FloatArray:
    try:
        numbers = table.numbers(column, -LARGEST, LARGEST)
    except ConfigError as error:
        raise DataError(f"{error}, name the column in {OPTIONS}.owner, or list others in {OPTIONS}.features") from error
    if len(missing := np.flatnonzero(np.isnan(numbers))):
        raise DataError(
            str(table.error(int(missing[0]), column, "is empty; accepted: a number; fill it, or leave the row out"))
        )
    return numbers


def _texts(table: Table, column: str, meaning: str) -> list[str]:
    """Return the texts of a column, none of which is empty; `meaning` says in words what they are."""
    texts = table.texts(column)
    if "" in texts:
        reason = f"is empty; accepted: {meaning}; fill it, or leave the row out"
        raise DataError(str(table.error(texts.index(""), column, reason)))
    return texts


def _target(
    table: Table, column: str, kind: str | None
) -> tuple[NDArray[Any], tuple[str, ...] | None, Kind, str | None]:
    """Return the targets, (n,), the names of classes, the kind of data, and a note if the kind was guessed."""
    if kind not in (None, "classification", "regression"):
        raise ConfigError(f"{OPTIONS}.kind: got {shorten(kind)}; accepted: classification, regression; correct it")
    texts = _texts(table, column, "what is learned")
    note = None
    if kind is None:
        try:
            numbers = table.numbers(column)
        except ConfigError:
            kind = "classification"
        else:
            different = np.unique(numbers)
            few = len(different) <= FEW and bool((different == np.round(different)).all())
            kind = "classification" if few else "regression"
            note = f"{column} is learned as a {kind}; {OPTIONS}.kind says otherwise"
    if kind == "regression":
        return _filled(table, column), None, "regression", note
    different_texts = sorted(set(texts), key=_by_number)
    if len(different_texts) == 1:
        raise DataError(
            f"{table.name}, column {column}: is {shorten(texts[0])} in all rows; accepted: two classes or more"
        )
    place = {text: number for number, text in enumerate(different_texts)}
    return np.array([place[text] for text in texts], dtype=np.int64), tuple(different_texts), "classification", note


def _by_number(text: str) -> tuple[float, str]:
    try:
        return float(text), text
    except ValueError:
        return np.inf, text
