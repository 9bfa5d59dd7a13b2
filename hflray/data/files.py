"""Samples from a user's own files: a table (CSV or Parquet), or LEAF's JSON.

* ``data: {name: table, options: {file: readings.csv, …}}`` has a row for each sample.
* ``data: {name: leaf, options: {train: …}}`` is the format of LEAF (Caldas et al. 2018): samples by user, in files of
  training and of test samples. A file holds ``{"users": [name, …], "user_data": {name: {"x": [sample, …], "y": [target,
  …]}, …}}``, and a folder may hold several. Samples are lists of numbers, or texts of one length that a single letter
  follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
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
from hflray.support.text import one_line, shorten

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
        unmatched: see `hflray.data.partition.OwnersPartition`, which reads it.

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
    if features is None and table.left_out:
        name, of_type = next(iter(table.left_out.items()))
        raise ConfigError(
            f"{OPTIONS}.features: got null, and column {shorten(name)} holds {of_type}; accepted: numbers; convert it, "
            "or list the others"
        )
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
        return table.filled(column, -LARGEST, LARGEST)
    except ConfigError as error:
        raise DataError(f"{error}, name the column in {OPTIONS}.owner, or list others in {OPTIONS}.features") from error


def _check_kind(kind: str | None) -> None:
    if kind not in (None, "classification", "regression"):
        raise ConfigError(f"{OPTIONS}.kind: got {shorten(kind)}; accepted: classification, regression; correct it")


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
    _check_kind(kind)
    texts = _texts(table, column, "what is learned")
    note, numbers = None, None
    with suppress(ConfigError):
        numbers = table.numbers(column)
    if kind is None and numbers is not None:
        different = np.unique(numbers)
        few = len(different) <= FEW and bool((different == np.round(different)).all())
        kind = "classification" if few else "regression"
        note = f"{column} is learned as a {kind}; {OPTIONS}.kind says otherwise"
    if kind == "regression":
        return _filled(table, column), None, "regression", note
    if numbers is not None:  # 1 and 1.0 are one class
        spelt: dict[float, str] = {}
        texts = [spelt.setdefault(number, text) if abs(number) < 2**53 else text
                 for number, text in zip(numbers.tolist(), texts, strict=True)]  # fmt: skip
    different_texts = sorted(set(texts), key=_by_number)
    if len(different_texts) == 1:
        raise DataError(
            f"{table.name}, column {column}: is {shorten(texts[0])} in all rows; accepted: two classes or more"
        )
    place = {text: number for number, text in enumerate(different_texts)}
    return np.array([place[text] for text in texts], dtype=np.int64), tuple(different_texts), "classification", note


def _by_number(text: str) -> tuple[float, str]:
    try:
        number = float(text)
    except ValueError:
        return np.inf, text
    return (number if np.isfinite(number) else np.inf), text


Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
Samples = tuple[list[Any], list[Any], list[str]]  # x, y, and the user of each


def load_leaf(
    root: Path | None = None,
    *,
    train: str,
    test: str | None = None,
    shape: Sequence[int] | None = None,
    kind: str | None = None,
    unmatched: str = "error",
) -> Dataset:
    """Read LEAF's files.

    Args:
        root: ignored; a path is relative to the sweep file.
        train, test: pinned names of a file, or of a folder of files. Without `test`, one sample in five of each user is
            a test sample.
        shape: (height, width) or (height, width, channels) of images whose pixels, from 0 to 1, are the numbers of a
            sample, such as [28, 28] of FEMNIST; None: the numbers are features.
        kind: ``classification`` or ``regression`` of numbers; None: whole numbers are classes.
        unmatched: see `hflray.data.partition.OwnersPartition`, which reads it.

    Raises:
        DataError: a file is not of this form; the message names the file and the user.
        ConfigError: an option is wrong.
    """
    parts = {"train": _read("train", train)} | ({} if test is None else {"test": _read("test", test)})
    if any(isinstance(sample, str) for sample in parts["train"][0]):
        return _of_text(parts)
    numbers: dict[str, Arrays] = {}
    for name, (x, y, users) in parts.items():
        rows = _numbers(name, x, users)
        numbers[name] = rows if shape is None else _images(rows, shape), np.asarray(y), np.array(users)
    of_kind = _kind(numbers["train"][1], kind)
    names = None
    if of_kind == "classification":
        numbers, names = _classes(numbers)
    return _dataset(numbers, of_kind, names)


def _dataset(parts: dict[str, Arrays], kind: Kind, names: tuple[str, ...] | None) -> Dataset:
    """Return the data set of training and test samples; without test samples, one in five of each user is one."""
    x, y, owner = parts["train"]
    if "test" not in parts:
        chosen = split(owner, y, kind)
        parts = {
            "train": (x[~chosen], y[~chosen], owner[~chosen]),
            "test": (x[chosen], y[chosen], owner[chosen]),
        }
    (x, y, owner), (x_test, y_test, test_owner) = parts["train"], parts["test"]
    return Dataset.of(x, y, x_test, y_test, kind, name="leaf", owner=owner, test_owner=test_owner, class_names=names)


def _read(option: str, name: str) -> Samples:
    path = pinned.path_of(name if pinned.is_pinned(name) else pinned.pin(name, keep=False))
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{OPTIONS}.{option}: {path.name} has no .json file; give LEAF's folder of them")
    x: list[Any] = []
    y: list[Any] = []
    users: list[str] = []
    for file in files:
        where = f"{OPTIONS}.{option}: {file.name}"
        try:
            tree = json.loads(file.read_text(encoding="utf-8"))
            data = tree["user_data"]
            listed = [str(user) for user in tree.get("users", data)]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
            raise DataError(
                f"{where}: is not LEAF's JSON ({one_line(str(error))[:80]}); give a file with user_data"
            ) from error
        for user in listed:
            try:
                own_x, own_y = data[user]["x"], data[user]["y"]
                equal = len(own_x) == len(own_y)
            except (KeyError, TypeError) as error:
                raise DataError(
                    f"{where}: user {shorten(user)}: has no x and y of samples; correct the file"
                ) from error
            if not equal:
                raise DataError(f"{where}: user {shorten(user)}: {len(own_x)} x but {len(own_y)} y; give one for each")
            x += own_x
            y += own_y
            users += [user] * len(own_y)
    if not y:
        raise DataError(f"{OPTIONS}.{option}: {path.name} has no sample; give a file with some")
    return x, y, users


def _numbers(option: str, x: list[Any], users: list[str]) -> NDArray[np.float64]:
    rows: list[NDArray[np.float64]] = []
    for sample, user in zip(x, users, strict=True):
        try:
            rows.append(np.array(sample, dtype=np.float64))
            equal = rows[-1].shape == rows[0].shape
        except (ValueError, TypeError):
            equal = False
        if not equal:
            raise DataError(
                f"{OPTIONS}.{option}: user {shorten(user)}: a sample is no list of numbers as long as the first; "
                "accepted: numbers, or texts of one length; correct the file"
            )
    return np.stack(rows).reshape(len(x), -1)


def _images(x: NDArray[np.float64], shape: Sequence[int]) -> NDArray[np.uint8]:
    sides = list(shape) if isinstance(shape, list | tuple) else []
    if (
        len(sides) not in (2, 3)
        or not all(isinstance(side, int) and side > 0 for side in sides)
        or np.prod(sides) != x.shape[1]
    ):
        raise ConfigError(
            f"{OPTIONS}.shape: got {shorten(shape)} for samples of {x.shape[1]} numbers; accepted: their sides"
        )
    if x.min() < 0 or x.max() > 1:
        raise DataError(f"{OPTIONS}.shape: pixels lie from {x.min():g} to {x.max():g}; accepted: 0 to 1; rescale them")
    return np.rint(255 * x).astype(np.uint8).reshape(len(x), *sides)


def _kind(y: NDArray[Any], kind: str | None) -> Kind:
    _check_kind(kind)
    if y.ndim != 1 or y.dtype.kind not in "uifU":
        raise DataError(
            f"{OPTIONS}.train: targets of shape {y.shape} and type {y.dtype}; accepted: a number or a text each"
        )
    if kind is None:
        kind = "classification" if y.dtype.kind in "uiU" or bool((y == np.round(y)).all()) else "regression"
    return "regression" if kind == "regression" else "classification"


def _classes(parts: dict[str, Arrays]) -> tuple[dict[str, Arrays], tuple[str, ...]]:
    """Number the classes of the training samples from 0; test samples of other classes are left out."""
    classes = np.unique(parts["train"][1])
    numbered = {}
    for name, (x, y, owner) in parts.items():
        present = np.isin(y, classes)
        numbered[name] = (x[present], np.searchsorted(classes, y[present]).astype(np.int64), owner[present])
    if "test" in numbered and not len(numbered["test"][1]):
        raise DataError(f"{OPTIONS}.test: no sample is of a class that is trained; give other files")
    return numbered, tuple(map(str, classes))


def _of_text(parts: dict[str, Samples]) -> Dataset:
    """Return texts as tokens, one for each letter of the training samples, and the letter that follows."""
    letters = sorted({letter for x, y, _ in parts.values() for text in (*x, *y) for letter in str(text)})
    number = {letter: index for index, letter in enumerate(letters)}
    arrays = {}
    for name, (x, y, users) in parts.items():
        length = len(str(x[0]))
        for text, following, user in zip(x, y, users, strict=True):
            if not (isinstance(text, str) and isinstance(following, str)) or (len(text), len(following)) != (length, 1):
                raise DataError(
                    f"{OPTIONS}.{name}: user {shorten(user)}: got {shorten(text)} before {shorten(following)}; "
                    f"accepted: texts of {length} letters, and the letter that follows; correct the file"
                )
        tokens = np.array([[number[letter] for letter in text] for text in x], dtype=np.int32)
        arrays[name] = (tokens, np.array([number[letter] for letter in y], dtype=np.int64), np.array(users))
    return _dataset(arrays, "next_token", None)
