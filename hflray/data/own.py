"""Checks and conversion of a user's arrays for `hflray.data.Dataset.of`; each error is one line.

The inputs may be images (uint8), features (floats) or tokens (other integers). The kind says what is learned from them:
a class, a number, or the token that follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray.config import Kind
from hflray.data.npz import check_classes, check_images, check_labels, conversion, refuse
from hflray.errors import DataError, nearest
from hflray.support.text import shorten

MOST_TOKENS = 2**31  # tokens are stored as int32
LARGEST = 1e30  # of features and targets, so that their moments stay finite
LISTED = 5  # how many constant features a note lists


def check_own(
    x_train: ArrayLike,
    y_train: ArrayLike,
    x_test: ArrayLike,
    y_test: ArrayLike,
    kind: str,
    groups: ArrayLike | None,
) -> dict[str, Any]:
    """Check and convert arrays as `Dataset.of` describes.

    Returns:
        The fields of a `Dataset`, by name: its arrays, ``num_classes``, ``num_tokens``, ``groups`` and ``notes``.

    Raises:
        DataError: an array is not as described there. The message is one line and names the first wrong element.
    """
    if kind not in get_args(Kind):
        kinds = get_args(Kind)
        raise DataError(f"kind: got {shorten(kind)}{nearest(str(kind), kinds)}; accepted: {', '.join(kinds)}")
    inputs_and_targets = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}
    raw = {name: _array(value, name) for name, value in inputs_and_targets.items()}
    for part in ("train", "test"):
        x, y = raw[f"x_{part}"], raw[f"y_{part}"]
        if len(x) != len(y):
            raise DataError(f"x_{part} holds {len(x)} samples but y_{part} {len(y)}; give one target for each sample")
    members = None if groups is None else _groups(groups, len(raw["y_train"]))
    if _type_of(raw["x_train"]) != _type_of(raw["x_test"]):
        raise DataError(
            f"x_train has type {raw['x_train'].dtype} but x_test {raw['x_test'].dtype}; give both in one type"
        )
    inputs, num_tokens, notes = _inputs(raw["x_train"], raw["x_test"])
    fields: dict[str, Any] = {**inputs, "num_tokens": num_tokens, "groups": members, "notes": notes}
    if kind == "regression":
        numbers = {y: _numbers(raw[y], y) for y in ("y_train", "y_test")}
        for name, targets in numbers.items():
            check_differ(targets, name)
        return {**fields, **numbers, "num_classes": 1}
    labels = {y: check_labels(raw[y], y) for y in ("y_train", "y_test")}
    if kind == "classification":
        return {**fields, **labels, "num_classes": check_classes(labels["y_train"], labels["y_test"], None, "")}
    if num_tokens is None:
        raise DataError(
            f"x_train has type {raw['x_train'].dtype}, and kind next_token needs tokens; accepted: integers of "
            "another type than uint8; convert it, for example to int32"
        )
    num_tokens = max(num_tokens, *(int(following.max()) + 1 for following in labels.values()))
    return {**fields, **labels, "num_classes": num_tokens, "num_tokens": num_tokens}


def _type_of(inputs: NDArray[Any]) -> str:
    """Return what inputs of this type are."""
    if inputs.dtype == np.uint8:
        return "images"
    return "features" if inputs.dtype.kind == "f" else "tokens"


def _array(value: ArrayLike, name: str) -> NDArray[Any]:
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unequal lengths
        raise DataError(f"{name} is no array ({str(error).splitlines()[0]}); give rows of one length") from error
    if array.dtype.kind not in "uif":
        fix = conversion(array, "int64")
        if name.startswith("x"):  # integers stand for tokens
            fix = "convert it to float32 if it holds features (a text as columns of 0 and 1), or to uint8 if images"
        raise DataError(f"{name} has type {array.dtype}; accepted: integers or floats; {fix}")
    if array.ndim == 0 or array.size == 0:
        raise DataError(f"{name} is empty, shape {array.shape}; accepted: one row for each sample, at least one")
    if array.dtype.kind == "f":
        refuse(~np.isfinite(array), array, name, "finite numbers", "remove or replace it")
    return array


def _groups(groups: ArrayLike, samples: int) -> NDArray[np.int64]:
    column = np.asarray(groups)
    if column.shape != (samples,):
        raise DataError(
            f"groups has shape {column.shape}, but there are {samples} training samples; give one group for each"
        )
    if column.dtype.kind not in "uiUS":
        raise DataError(f"groups has type {column.dtype}; accepted: integers or texts; convert it")
    numbers: NDArray[np.int64] = np.unique(column, return_inverse=True)[1].astype(np.int64)
    return numbers


def check_owners(owners: ArrayLike, samples: int, name: str) -> NDArray[np.str_]:
    """Return the owner of each sample, (n,) texts. Raises DataError: they are not one integer or text for each."""
    column = np.asarray(owners)
    if column.dtype == object and all(isinstance(owner, str) for owner in column.ravel()):
        column = column.astype(np.str_)
    if column.shape != (samples,):
        raise DataError(f"{name} has shape {column.shape}, but there are {samples} samples; give one owner for each")
    if column.dtype.kind not in "uiU":
        raise DataError(f"{name} has type {column.dtype}; accepted: integers or texts; convert it")
    texts = column.astype(np.str_)
    if len(empty := np.flatnonzero(texts == "")):
        raise DataError(f"{name}[{empty[0]}] is an empty text; accepted: who owns the sample; fill it, or leave it out")
    return texts


def check_class_names(names: Sequence[str], classes: int, kind: str) -> tuple[str, ...]:
    """Return the names of classes. Raises DataError: they are not one for each class of a classification."""
    if kind != "classification" or len(names) != classes:
        raise DataError(
            f"class_names has {len(names)} texts, but the data, of kind {kind}, have {classes} "
            f"output{'s' * (classes != 1)}; give one for each class, or none"
        )
    return tuple(map(str, names))


def _inputs(x_train: NDArray[Any], x_test: NDArray[Any]) -> tuple[dict[str, NDArray[Any]], int | None, tuple[str, ...]]:
    """Return the inputs by name, the number of their tokens (None if they are none), and notes."""
    if x_train.shape[1:] != x_test.shape[1:]:
        raise DataError(
            f"x_train holds samples of shape {x_train.shape[1:]} but x_test of {x_test.shape[1:]}; give both one shape"
        )
    if _type_of(x_train) == "images":
        return {"x_train": check_images(x_train, "x_train")[0], "x_test": check_images(x_test, "x_test")[0]}, None, ()
    if _type_of(x_train) == "features":
        train, test, constant = standardised(x_train, x_test)
        notes = (_constant_note(constant, train.shape[1]),) if len(constant) else ()
        return {"x_train": train, "x_test": test}, None, notes
    for name, tokens in (("x_train", x_train), ("x_test", x_test)):
        if tokens.ndim != 2:
            raise DataError(
                f"{name} has type {tokens.dtype}, which stands for tokens, and shape {tokens.shape}; accepted: "
                "(n, length); reshape it, or convert features to float32 and images to uint8"
            )
        refuse(
            (tokens < 0) | (tokens >= MOST_TOKENS), tokens, name, "tokens from 0",
            "number the tokens 0, 1, 2, …, or convert features to float32",
        )  # fmt: skip
    count = max(int(x_train.max()), int(x_test.max())) + 1
    return {"x_train": x_train.astype(np.int32), "x_test": x_test.astype(np.int32)}, count, ()


def standardised(
    x_train: NDArray[Any], x_test: NDArray[Any]
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]:
    """Standardise features by the training set's mean and deviation along the first axis after the samples.

    Returns:
        The training and the test features, (n, …) float32, and the indices of the constant features, which become 0.
    """
    if x_train.ndim == 1:
        x_train, x_test = x_train[:, None], x_test[:, None]
    for name, array in (("x_train", x_train), ("x_test", x_test)):
        refuse(
            np.abs(array) > LARGEST, array, name, f"numbers from -{LARGEST:g} to {LARGEST:g}", "rescale the features"
        )
    axes = (0, *range(2, x_train.ndim))
    mean = x_train.mean(axis=axes, dtype=np.float64, keepdims=True)
    std = x_train.std(axis=axes, dtype=np.float64, keepdims=True)
    # Rounding may leave a constant feature a deviation of some ulps of its mean.
    constant = std <= 1e-12 * np.maximum(1.0, np.abs(mean))
    std[constant] = 1.0
    train, test = (
        np.ascontiguousarray(np.where(constant, 0.0, (array - mean) / std).astype(np.float32))
        for array in (x_train, x_test)
    )
    return train, test, np.flatnonzero(constant)


def _constant_note(constant: NDArray[np.intp], features: int) -> str:
    listed = ", ".join(map(str, constant[:LISTED])) + (", …" if len(constant) > LISTED else "")
    return f"{len(constant)} of {features} features are constant in the training set and are set to 0: {listed}"


def check_differ(targets: NDArray[np.float64], name: str) -> None:
    """Raise DataError if all targets of a regression are equal; R² divides by the variance of those that are tested."""
    if np.ptp(targets) == 0:
        raise DataError(f"{name} is {targets[0]:g} throughout; accepted: numbers that differ; correct it")


def _numbers(array: NDArray[Any], name: str) -> NDArray[np.float64]:
    """Return the targets of a regression, (n,) float64."""
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}; accepted: (n,), one number for each sample; reshape it")
    refuse(np.abs(array) > LARGEST, array, name, f"numbers from -{LARGEST:g} to {LARGEST:g}", "rescale the targets")
    return array.astype(np.float64)
