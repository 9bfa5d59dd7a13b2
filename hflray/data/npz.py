"""Reading and checking ``.npz`` data sets; each error is one line that names the file, the array and the fix.

The keys are those of docs/design.md, "Data". The layouts are the ones usual in NumPy: images (n, height, width) or
(n, height, width, channels).
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.errors import DataError
from hflray.support.reader import check_unpacked, memory_share
from hflray.support.text import one_line

KEYS = ("x_train", "y_train", "x_test", "y_test")
MAX_CHANNELS = 4
# The errors of numpy.load and zipfile for files that are no archives, truncated, damaged, pickled, or far too large.
UNREADABLE = (
    OSError,
    ValueError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,  # a damaged archive that claims to be encrypted
    MemoryError,
)
MEMORY_SHARE = 0.5  # of this machine's memory that a data set may fill


def read_archive(path: Path) -> dict[str, NDArray[Any]]:
    """Return all arrays of an ``.npz`` file that hflray has written, after a check of every array's CRC-32.

    NumPy alone would not notice a damaged shape, because it then reads fewer bytes than the CRC covers.

    Raises:
        UNREADABLE: the file cannot be read or is damaged.
    """
    with zipfile.ZipFile(path) as packed:
        check_unpacked(packed, os.path.getsize(path), memory_share(MEMORY_SHARE))
    with np.load(path, allow_pickle=False) as archive:
        if (damaged := archive.zip.testzip()) is not None:
            raise ValueError(f"the checksum of {damaged} differs")
        return {name: archive[name] for name in archive.files}


def read_arrays(path: Path, known_classes: int | None = None) -> tuple[dict[str, NDArray[Any]], int]:
    """Read a data set's four arrays and check them.

    Args:
        path: a ``.npz`` file. Images ``x_train``, ``x_test``: (n, height, width) or (n, height, width, channels), at
            most 4 channels; integers in 0..255, or floats in [0, 1] (times 255) or in [0, 255], rounded. Labels
            ``y_train``, ``y_test``: (n,) integers in 0..C-1, each class at least once in training.
        known_classes: C if it is known beforehand; labels outside 0..C-1 are then refused.

    Returns:
        (arrays, C): images (n, channels, height, width) uint8, C-contiguous, and labels (n,) int64, by key.

    Raises:
        DataError: the file cannot be read, or an array is not as described above.
    """
    return check_arrays(_load(path), f"data.name: {path}: ", known_classes)


def read_one(path: Path, key: str) -> NDArray[Any]:
    """Read one of a data set's arrays as it is stored. Raises DataError: as `read_arrays` does."""
    return _load(path, (key,))[key]


def check_arrays(
    raw: Mapping[str, NDArray[Any]], prefix: str, known_classes: int | None = None
) -> tuple[dict[str, NDArray[Any]], int]:
    """Check and convert arrays as `read_arrays` does; each error begins with `prefix`."""
    scales = {}
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        x, y = f"x_{part}", f"y_{part}"
        arrays[x], scales[x] = check_images(raw[x], f"{prefix}{x}")
        arrays[y] = check_labels(raw[y], f"{prefix}{y}")
        if len(arrays[x]) != len(arrays[y]):
            raise DataError(
                f"{prefix}{x} holds {len(arrays[x])} images but {y} {len(arrays[y])} labels; "
                "save one label for each image"
            )
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise DataError(
            f"{prefix}x_train holds images of (channels, height, width) {arrays['x_train'].shape[1:]} but "
            f"x_test of {arrays['x_test'].shape[1:]}; save both in one shape"
        )
    if {scales["x_train"], scales["x_test"]} == {1, 255}:
        raise DataError(
            f"{prefix}x_train has floats up to {scales['x_train']} but x_test up to {scales['x_test']}; "
            "save both in [0, 1] or both in [0, 255]"
        )
    return arrays, check_classes(arrays["y_train"], arrays["y_test"], known_classes, prefix)


def _load(path: Path, keys: Sequence[str] = KEYS) -> dict[str, NDArray[Any]]:
    accepted = f"accepted: an .npz file with the keys {', '.join(KEYS)}"
    if not os.path.isfile(path):  # False also for a path that no file can have
        raise DataError(
            f"data.name: {path}: no such file; {accepted}; check the path (in a sweep file it is "
            "relative to that file), or set --data-root / $HFLRAY_DATA"
        )
    try:
        _check_memory(path)
        # Never unpickle, because a data file must not be able to run code.
        archive = np.load(path, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise DataError(f"data.name: {path}: holds a single array; {accepted}; save it with numpy.savez")
        with archive:
            missing = [key for key in keys if key not in archive.files]
            if missing:
                raise DataError(
                    f"data.name: {path}: lacks {', '.join(missing)} (it has "
                    f"{', '.join(archive.files) or 'no arrays'}); {accepted}; save it again with numpy.savez"
                )
            return {key: archive[key] for key in keys}
    except DataError:
        raise
    except Exception as error:
        # NumPy and zipfile raise errors of many types for files that are no archives, cut short, damaged or encrypted.
        reason = one_line(" ".join(str(error).split())[:200]) or type(error).__name__
        raise DataError(
            f"data.name: {path}: cannot be read as plain arrays ({reason}); {accepted}; the file may be cut short or "
            "damaged (copy it again), or hold Python objects (save numbers only)"
        ) from error


def _check_memory(path: Path) -> None:
    """Raise DataError if an archive is too large for this machine, as a small file of compressed zeros may be."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        bytes_needed = sum(entry.file_size for entry in archive.infolist())
        memory = memory_share(1.0)
        if bytes_needed <= MEMORY_SHARE * memory:  # data of few different values are packed far more than others
            check_unpacked(archive, os.path.getsize(path), memory, math.inf)
    if bytes_needed > MEMORY_SHARE * memory:
        raise DataError(
            f"data.name: {path}: its arrays need {bytes_needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory / 2**30:,.1f} GiB; accepted: at most {MEMORY_SHARE:.0%} of it; save fewer or smaller images"
        )


def conversion(array: NDArray[Any], numbers: str) -> str:
    """Return how to turn an array of another type than numbers into the `numbers` that are wanted."""
    if array.dtype.kind in "USO":
        return "number the values 0, 1, 2, …, as numpy.unique(VALUES, return_inverse=True)[1] does"
    return f"convert it, for example to {numbers}"


def check_images(array: NDArray[Any], array_name: str) -> tuple[NDArray[np.uint8], int | None]:
    """Check images, convert them to (n, c, h, w) uint8, and add the scale of floats: 1 or 255, or None for integers."""
    layouts = f"(n, height, width) or (n, height, width, channels) with at most {MAX_CHANNELS} channels"
    if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] > MAX_CHANNELS):
        hint = "move the channels last" if array.ndim == 4 and array.shape[1] <= MAX_CHANNELS else "reshape it"
        raise DataError(f"{array_name} has shape {array.shape}; accepted: {layouts}; {hint}")
    if array.size == 0:
        raise DataError(f"{array_name} is empty, shape {array.shape}; accepted: {layouts}, with at least one image")
    if array.dtype.kind not in "uif":
        raise DataError(
            f"{array_name} has type {array.dtype}; accepted: integers or floats; {conversion(array, 'float32')}"
        )
    scale = None
    if array.dtype.kind == "f":
        refuse(~np.isfinite(array), array, array_name, "finite numbers", "remove or replace it")
        scale = 1 if array.max() <= 1 else 255
    accepted = "integers in 0..255" if scale is None else "floats in [0, 1] or in [0, 255]"
    if array.dtype != np.uint8:
        refuse((array < 0) | (array > 255), array, array_name, accepted, "rescale the images")
        array = np.rint(array * (255.0 if scale == 1 else 1.0)).astype(np.uint8)
    channels_last = array[..., None] if array.ndim == 3 else array
    return np.ascontiguousarray(channels_last.transpose(0, 3, 1, 2)), scale


def check_labels(array: NDArray[Any], array_name: str) -> NDArray[np.int64]:
    """Check labels and return them as (n,) int64."""
    if array.ndim != 1 or len(array) == 0:
        raise DataError(
            f"{array_name} has shape {array.shape}; accepted: (n,), one label for each image, n above 0; reshape it"
        )
    if array.dtype.kind not in "ui":
        raise DataError(
            f"{array_name} has type {array.dtype}; accepted: integers 0..classes-1; {conversion(array, 'int64')}"
        )
    refuse(array < 0, array, array_name, "integers from 0", "labels out of range: relabel the classes 0, 1, 2, …")
    refuse(
        array >= 2**31, array, array_name, "integers below 2³¹", "labels out of range: relabel the classes 0, 1, 2, …"
    )
    labels: NDArray[np.int64] = array.astype(np.int64)
    return labels


def check_classes(y_train: NDArray[np.int64], y_test: NDArray[np.int64], known_classes: int | None, prefix: str) -> int:
    """Return the number of classes; refuse a class without training samples, which is the sign of a stray label."""
    if known_classes is not None:
        refuse(
            y_train >= known_classes,
            y_train,
            f"{prefix}y_train labels out of range: y_train",
            f"0..{known_classes - 1}",
            "relabel it",
        )
    classes = np.unique(y_train)
    gaps = np.flatnonzero(classes != np.arange(len(classes)))
    if len(gaps):
        value = classes[gaps[0]]
        index = np.flatnonzero(y_train == value)[0]
        raise DataError(
            f"{prefix}y_train labels out of range: y_train[{index}] is {value}, but class {gaps[0]} has no sample; "
            "accepted: 0..classes-1, each at least once; relabel the classes 0, 1, 2, …"
        )
    accepted = f"the training labels 0..{len(classes) - 1}"
    refuse(y_test >= len(classes), y_test, f"{prefix}y_test labels out of range: y_test", accepted, "relabel it")
    return len(classes)


def refuse(bad: NDArray[np.bool_], array: NDArray[Any], array_name: str, accepted: str, fix: str) -> None:
    """Raise a DataError that names the first element that is `bad`."""
    if bad.any():
        index = tuple(int(i) for i in np.unravel_index(bad.argmax(), bad.shape))
        raise DataError(f"{array_name}[{', '.join(map(str, index))}] is {array[index]}; accepted: {accepted}; {fix}")
