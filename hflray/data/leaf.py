"""Data in the JSON format of LEAF (Caldas et al. 2018): samples by user, in files of training and of test samples.

A file holds ``{"users": [name, …], "user_data": {name: {"x": [sample, …], "y": [target, …]}, …}}``, and a folder may
hold several. Samples are lists of numbers, or texts of one length that a single letter follows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import Kind
from hflray.data.datasets import Dataset
from hflray.data.own_table import split
from hflray.errors import ConfigError, DataError
from hflray.support import pinned
from hflray.support.text import one_line, shorten

OPTIONS = "data.options"
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
        unmatched: see `hflray.data.owners.OwnersPartition`, which reads it.

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
    if test is None:
        all_x, all_y, owner = numbers["train"]
        is_test = split(owner, all_y, of_kind)
        numbers = {
            "train": (all_x[~is_test], all_y[~is_test], owner[~is_test]),
            "test": (all_x[is_test], all_y[is_test], owner[is_test]),
        }
    return _dataset(numbers, of_kind, names)


def _dataset(parts: dict[str, Arrays], kind: Kind, names: tuple[str, ...] | None) -> Dataset:
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
    shapes = [np.shape(sample) if not _is_ragged(sample) else None for sample in x]
    other = next((index for index, shape in enumerate(shapes) if shape is None or shape != shapes[0]), None)
    try:
        if other is None:
            return np.array(x, dtype=np.float64).reshape(len(x), -1)
    except (ValueError, TypeError):
        other = next(index for index, sample in enumerate(x) if not _are_numbers(sample))
    raise DataError(
        f"{OPTIONS}.{option}: user {shorten(users[other or 0])}: a sample is no list of numbers as long as the first; "
        "accepted: numbers, or texts of one length; correct the file"
    )


def _is_ragged(sample: Any) -> bool:
    try:
        np.shape(sample)
    except ValueError:
        return True
    return False


def _are_numbers(sample: Any) -> bool:
    try:
        np.array(sample, dtype=np.float64)
    except (ValueError, TypeError):
        return False
    return True


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
    if kind not in (None, "classification", "regression"):
        raise ConfigError(f"{OPTIONS}.kind: got {shorten(kind)}; accepted: classification, regression; correct it")
    if y.ndim != 1 or y.dtype.kind not in "uifU":
        raise DataError(
            f"{OPTIONS}.train: targets of shape {y.shape} and type {y.dtype}; accepted: a number or a text each"
        )
    if kind is None:
        whole = y.dtype.kind in "uiU" or bool((y == np.round(y)).all())
        return "classification" if whole else "regression"
    return "regression" if kind == "regression" else "classification"


def _classes(
    parts: dict[str, Arrays],
) -> tuple[dict[str, Arrays], tuple[str, ...]]:
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
            if (
                not isinstance(text, str)
                or len(text) != length
                or not isinstance(following, str)
                or len(following) != 1
            ):
                raise DataError(
                    f"{OPTIONS}.{name}: user {shorten(user)}: got {shorten(text)} before {shorten(following)}; "
                    f"accepted: texts of {length} letters, and the letter that follows; correct the file"
                )
        tokens = np.array([[number[letter] for letter in text] for text in x], dtype=np.int32)
        arrays[name] = (tokens, np.array([number[letter] for letter in y], dtype=np.int64), np.array(users))
    if "test" not in arrays:
        x_all, y_all, owner = arrays["train"]
        test = split(owner, y_all, "next_token")
        arrays = {"train": (x_all[~test], y_all[~test], owner[~test]), "test": (x_all[test], y_all[test], owner[test])}
    return _dataset(arrays, "next_token", None)
