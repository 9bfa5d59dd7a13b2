"""The official Fashion-MNIST: where its files are looked for, and which split a file has.

The same 70,000 images (Xiao et al. 2017) exist in two splits: the official one of the files that their authors publish,
and one of 6,000 + 1,000 images a class in another order, in which all runs of hflray before December 2026 were made
(``data.split: stratified``). A file of either may be called ``fashion_mnist.npz``. What split a file has is therefore
not taken from its name, but from SHA-256 digests of its arrays, which are compared with those of the official files.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import Split
from hflray.data.download import load_or_download
from hflray.data.npz import check_arrays, read_arrays, read_one
from hflray.errors import DataError
from hflray.support.text import one_line

NAME = "fashion_mnist"
OFFICIAL_FILE = "fashion_mnist_official.npz"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of Debian's package dataset-fashion-mnist
TORCHVISION = Path("FashionMNIST") / "raw"  # below the folder of data sets
IDX = {
    "x_train": "train-images-idx3-ubyte", "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte", "y_test": "t10k-labels-idx1-ubyte",
}  # fmt: skip
# SHA-256 of the arrays as bytes of uint8, images row by row. They are those of the files in Debian's package.
DIGESTS: dict[Split, dict[str, str]] = {
    "official": {
        "x_train": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "y_train": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "x_test": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "y_test": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    },
    "stratified": {
        "x_train": "87e46eb124a5eb25e28ccd69c9dba0639018f8bbae2e700a53289a8cce9cf697",
        "y_train": "2f246655e2ee2cf0d3d383c114cf0ba98be03fc5d69bfecb3435dc9516e6c9d9",
        "x_test": "90de09f272cf6c2878b1c1b88acc82a2b9ad4a8dfacb9f754e4623200c115bb4",
        "y_test": "0b93cc9a05687c58258333550ce7c0370ec87ffe450914e1f8df069e5a5b5cc1",
    },
}
SIZES = (60_000, 10_000)  # images for training and for the test
MOST_BYTES = 100_000_000  # of a file when it is unpacked; the largest, of the training images, has 47 MB
HOW = (
    f"install Debian's package dataset-fashion-mnist, or put {OFFICIAL_FILE} (x_train y_train x_test y_test) or "
    f"torchvision's folder {TORCHVISION} into the folder of data sets"
)
Arrays = Mapping[str, NDArray[Any]]


def is_in(split: Split, arrays: Arrays) -> bool:
    """Return whether a data set's four arrays are Fashion-MNIST in this split, as `DIGESTS` knows it."""
    if (len(arrays["y_train"]), len(arrays["y_test"])) != SIZES:
        return False
    return all(_digest(arrays[key]) == DIGESTS[split][key] for key in sorted(IDX, reverse=True))  # the labels first


def split_of(arrays: Arrays) -> Split | None:
    """Return the split that a data set's four arrays are in; None: neither, or they are other images."""
    return next((split for split in DIGESTS if is_in(split, arrays)), None)


def _digest(array: NDArray[Any]) -> str:
    """Return the SHA-256 of pixels or labels from 0 to 255, of any integer type."""
    return hashlib.sha256(np.ascontiguousarray(array, dtype=np.uint8).data).hexdigest()


def split_at(path: Path) -> Split | None:
    """Return the split of the file or folder of `path` by the labels of its test set, without its images.

    None: neither of the two splits, or it cannot be read.
    """
    try:
        labels = read_one(path, "y_test") if path.is_file() else _read_idx(path, "y_test")
    except DataError:
        return None
    if labels.dtype.kind not in "ui":
        return None
    return next((split for split, digests in DIGESTS.items() if _digest(labels) == digests["y_test"]), None)


def stored_splits(root: Path) -> dict[Path, Split | None]:
    """Return where Fashion-MNIST lies for the folder of data sets `root`, each with its split as `split_at` says it."""
    files = [path for path in (root / f"{NAME}.npz", root / OFFICIAL_FILE) if os.path.exists(path)]
    folders = [folder for folder in (root / TORCHVISION, DEBIAN) if _has_idx(folder)]
    return {place: split_at(place) for place in (*files, *folders)}


def official_place(root: Path) -> Path | None:
    """Return the file or folder that ``split: official`` reads, with the folder of data sets `root`; None: nothing.

    In this order, that is `OFFICIAL_FILE`, ``fashion_mnist.npz`` if it has this split, torchvision's folder, and the
    files of Debian's package.
    """
    if os.path.exists(root / OFFICIAL_FILE):  # unlike Path.exists, it raises no error for a path that cannot exist
        return root / OFFICIAL_FILE
    plain = root / f"{NAME}.npz"
    if os.path.exists(plain) and split_at(plain) == "official":
        return plain
    return next((folder for folder in (root / TORCHVISION, DEBIAN) if _has_idx(folder)), None)


def read_official(root: Path) -> dict[str, NDArray[Any]]:
    """Read Fashion-MNIST in its official split, and check that it is; it is downloaded if it is nowhere.

    Returns:
        The arrays by key, as `hflray.data.npz.read_arrays` returns them.

    Raises:
        DataError: the files are not those of the official split, cannot be read, or are nowhere and cannot be
            downloaded.
    """
    place = official_place(root)
    if place is None:
        arrays, place = _downloaded(root), root / TORCHVISION.parent
    elif place.is_file():
        arrays, _ = read_arrays(place, 10)
    else:
        raw = {key: _read_idx(place, key) for key in IDX}
        arrays, _ = check_arrays(raw, f"data.name: {place}: ", 10)
    if not is_in("official", arrays):
        differs = next(key for key in IDX if _digest(arrays[key]) != DIGESTS["official"][key])
        raise DataError(
            f"data.split: got official, but {place} is not the official Fashion-MNIST ({differs} has another SHA-256"
            f"{', as in the stratified split' if split_of(arrays) == 'stratified' else ''}); accepted: files that are; "
            f"remove it, and {HOW}"
        )
    return arrays


def other_split(place: Path) -> DataError:
    """Return the error of files in the official split where ``split: stratified`` is asked for."""
    return DataError(
        f"data.split: got stratified, but {place} has the official split of Fashion-MNIST; accepted for it: official; "
        f"set data.split: official, or put {NAME}.npz in the stratified split in its place"
    )


def _downloaded(root: Path) -> dict[str, NDArray[Any]]:
    try:
        return check_arrays(load_or_download(NAME, root), f"data.name: {root / NAME}: ", 10)[0]
    except DataError as error:
        plain = root / f"{NAME}.npz"
        other = f" ({plain} has another split)" if os.path.exists(plain) else ""
        reason = one_line(" ".join(str(error.__cause__ or error).split()))[:120]
        raise DataError(
            f"data.split: got official, but no official Fashion-MNIST is in {root}{other}, and it cannot be downloaded "
            f"({reason}); accepted: files with its SHA-256; {HOW}"
        ) from error


def _idx_file(folder: Path, key: str) -> Path | None:
    """Return the file of an array in torchvision's or Debian's folder, packed or not; None: it is not there."""
    files = (folder / f"{IDX[key]}{ending}" for ending in ("", ".gz"))
    return next((file for file in files if os.path.isfile(file)), None)


def _has_idx(folder: Path) -> bool:
    return all(_idx_file(folder, key) is not None for key in IDX)


def _read_idx(folder: Path, key: str) -> NDArray[np.uint8]:
    """Read an array of unsigned bytes in the format of MNIST's files: a head of big-endian integers, then the bytes.

    Raises:
        DataError: the file is not there, cannot be read, or has another format.
    """
    path = _idx_file(folder, key)
    if path is None:
        raise DataError(f"data.name: {folder}: lacks {IDX[key]}; accepted: the four files of Fashion-MNIST; {HOW}")
    dimensions = 3 if key.startswith("x") else 1
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            packed = file.read(MOST_BYTES + 1)
        head, size = np.frombuffer(packed, ">u4", 1 + dimensions), 4 + 4 * dimensions
        shape = tuple(int(number) for number in head[1:])
        if head[0] != 0x800 + dimensions or len(packed) != size + int(np.prod(shape, dtype=object)):
            raise ValueError("its head does not fit its size")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(
            f"data.name: {path}: cannot be read ({one_line(str(error))}); accepted: the file as its authors publish "
            "it; get it again"
        ) from error
    return np.frombuffer(packed, np.uint8, offset=size).reshape(shape)
