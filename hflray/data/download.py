"""Fashion-MNIST and CIFAR-10 through torchvision: its folder layout, its downloads, and a repair of its import."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
