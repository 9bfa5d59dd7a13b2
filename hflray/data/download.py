"""Fashion-MNIST and CIFAR-10: torchvision's folder layout, its downloads, a repair of its import, and official splits.

The same 70,000 images of Fashion-MNIST (Xiao et al. 2017) exist in two splits: the official one of the files that their
authors publish, and one of 6,000 + 1,000 images a class in another order, in which all runs of hflray before December
2026 were made (``data.split: stratified``). A file of either may be called ``fashion_mnist.npz``. What split a file has
is therefore not taken from its name, but from SHA-256 digests of its arrays, which are compared with those of the
official files.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib
import importlib.util
import io
import os
import socket
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray.config import Split
from hflray.data.npz import check_arrays, read_arrays, read_one
from hflray.errors import DataError
from hflray.support.text import one_line

TIMEOUT_S = 10.0  # for each connection and read, so that users without a network soon get an error
FOLDERS = {"fashion_mnist": ("FashionMNIST", "FashionMNIST"), "cifar10": ("CIFAR10", "cifar-10-batches-py")}
_libraries: list[Any] = []  # references, because a torch Library withdraws its operators when it is collected


def import_torchvision() -> Any:
    """Import torchvision, even beside a torch build that cannot load torchvision's compiled operators.

    PyPI's torchvision wheel is compiled for CUDA, and its extension library does not load beside a CPU-only torch. The
    operators ``nms`` and ``qnms`` then do not exist. ``import torchvision`` registers meta kernels for them, and so
    fails with "operator torchvision::nms does not exist". Declaring their schemas is enough, because
    `torchvision.datasets` and `torchvision.transforms.v2` call neither of them (docs/design.md, "Data").
    """
    import torch

    torch_library: Any = torch.library  # untyped in torch
    spec = importlib.util.find_spec("torchvision")
    if spec is not None and spec.submodule_search_locations and not _libraries:
        libraries = Path(spec.submodule_search_locations[0]).glob("_C*.so")
        if not any(_loads(library) for library in libraries) and not hasattr(torch.ops.torchvision, "nms"):
            library = torch_library.Library("torchvision", "DEF")
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _libraries.append(library)
    return importlib.import_module("torchvision")


def _loads(library: Path) -> bool:
    import torch

    ops: Any = torch.ops
    try:
        ops.load_library(str(library))
    except OSError:
        return False
    return True


def load_or_download(name: str, root: Path) -> dict[str, NDArray[Any]]:
    """Load a data set from torchvision's layout below `root`, and download it first if the folder is missing.

    Returns:
        x_train, y_train, x_test, y_test as torchvision stores them: images (n, h, w) or (n, h, w, c) uint8.

    Raises:
        DataError: the folder exists but is unreadable, or the download failed; a failed download leaves no files.
    """
    folder = root / FOLDERS[name][1]
    if not os.path.exists(folder):  # unlike Path.exists, it raises no error for a path that cannot exist
        _download(name, root, folder)
    try:
        return _arrays(name, root, download=False)
    except Exception as error:  # torchvision's parsers raise many types
        raise DataError(
            f"data.name: {name}: torchvision cannot read {folder} ({_one_line(error)}); delete that folder, or put "
            f"{_npz_hint(name, root)}"
        ) from error


def _download(name: str, root: Path, folder: Path) -> None:
    created = [path for path in (root, *root.parents) if not os.path.exists(path)]  # innermost first
    try:
        root.mkdir(parents=True, exist_ok=True)
        # The scratch folder is beside the destination, so that the move is one rename and never leaves a part.
        with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}-") as scratch:
            with _timeout(TIMEOUT_S), contextlib.redirect_stdout(io.StringIO()):
                _arrays(name, Path(scratch), download=True)
            with contextlib.suppress(FileExistsError):  # another process was faster, and its copy is as good
                os.rename(Path(scratch) / folder.name, folder)
    except Exception as error:  # URLError, OSError, RuntimeError (checksums), and any error of the parsers
        for path in created:
            with contextlib.suppress(OSError):  # another process has put files in it
                path.rmdir()
        raise DataError(
            f"data.name: {name} is neither {root / name}.npz nor in {folder}, and cannot be downloaded "
            f"({_one_line(error)}); put {_npz_hint(name, root)}"
        ) from error


def _arrays(name: str, root: Path, download: bool) -> dict[str, NDArray[Any]]:
    import_torchvision()
    make = getattr(importlib.import_module("torchvision.datasets"), FOLDERS[name][0])
    arrays = {}
    for part in ("train", "test"):
        stored = make(str(root), train=part == "train", download=download)
        arrays[f"x_{part}"], arrays[f"y_{part}"] = np.asarray(stored.data), np.asarray(stored.targets)
    return arrays


@contextlib.contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    # torchvision's urlopen takes no timeout, and would hang for minutes on a network that drops packets.
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _npz_hint(name: str, root: Path) -> str:
    return f"{name}.npz with x_train y_train x_test y_test in {root}, or set --data-root / $HFLRAY_DATA to its folder"


def _one_line(error: Exception) -> str:
    text = one_line(" ".join(str(error).split())) or type(error).__name__
    return text if len(text) < 200 else text[:200] + "…"


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
