"""Named data sets, and any ``.npz`` file, as uint8 arrays (docs/design.md, "Data").

A data set is read from ``<root>/<name>.npz``, or else from torchvision's own layout below root, or else downloaded
through torchvision. The root is the argument, else ``$HFLRAY_DATA``, else ``~/.cache/hflray``. ``digits`` and
``synthetic`` need neither files nor a network. The ranges of D_n are those of the paper's section VI (Table I).
"""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hflray import registry, seeding
from hflray.data.download import FOLDERS, load_or_download
from hflray.data.npz import check_arrays, read_arrays
from hflray.errors import ConfigError

FASHION_RANGE = (400, 700)  # also used for every data set that the paper does not use
CIFAR_RANGE = (300, 600)
DIGITS_SIZE = 28  # 8×8 is below what the HFL model accepts; 28×28 is Fashion-MNIST's size


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set of images.

    Attributes:
        name: name in messages and logs.
        x_train, x_test: (n, channels, height, width) uint8, C-contiguous.
        y_train, y_test: (n,) int64 in 0..num_classes-1.
        num_classes: C.
        samples_range: the paper's lowest and highest D_n for this data set.
    """

    name: str
    x_train: NDArray[np.uint8]
    y_train: NDArray[np.int64]
    x_test: NDArray[np.uint8]
    y_test: NDArray[np.int64]
    num_classes: int
    samples_range: tuple[int, int] = FASHION_RANGE

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        _, channels, height, width = self.x_train.shape
        return channels, height, width

    @property
    def channel_mean(self) -> NDArray[np.float32]:
        """Mean of each channel of x_train / 255, (channels,) float32."""
        return self._moments[0]

    @property
    def channel_std(self) -> NDArray[np.float32]:
        """Standard deviation of each channel of x_train / 255, (channels,) float32, at least 1/255."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        # Counts of the 256 values give exact moments, and need no float copy of the images.
        counts = np.stack([np.bincount(self.x_train[:, c].ravel(), minlength=256) for c in range(self.image_shape[0])])
        share, value = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255.0
        mean = share @ value
        std = np.sqrt((share * (value - mean[:, None]) ** 2).sum(axis=1))
        return mean.astype(np.float32), np.maximum(std, 1 / 255).astype(np.float32)


def load_dataset(name: str, root: str | Path | None = None, seed: int = 0) -> Dataset:
    """Load the data set registered as `name`, or the ``.npz`` file at the path `name`.

    Args:
        name: ``digits``, ``fashion_mnist``, ``cifar10``, ``synthetic``, a name of the entry point group
            ``hflray.datasets`` (a function of root that returns a `Dataset`), or a path ending in ``.npz``, relative
            to the current folder or to root, with the keys x_train, y_train, x_test, y_test (see `hflray.data.npz`).
        root: folder of the data sets; None: ``$HFLRAY_DATA``, else ``~/.cache/hflray``.
        seed: seed of generated data (functions with a `seed` parameter); stored data do not depend on it.

    Raises:
        ConfigError: an unknown name.
        DataError: the data are missing, malformed, or cannot be downloaded; the message says which file to put where.
    """
    folder = data_root(root)
    if name.endswith(".npz"):
        path = Path(os.path.expanduser(name))
        if not os.path.exists(path) and os.path.exists(folder / path):
            path = folder / path
        return _from_arrays(path.stem, *read_arrays(path))
    make = registry.resolve("dataset", registry.check("dataset", name, "data.name"))
    seeded = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
    dataset = make(folder, **seeded)
    if not isinstance(dataset, Dataset):
        raise ConfigError(
            f"data.name: '{name}' returned a {type(dataset).__name__}; it must return a hflray.data.Dataset"
        )
    return dataset


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: `root`, else ``$HFLRAY_DATA``, else ``~/.cache/hflray``."""
    # Unlike Path's methods, those of os.path raise no error for a path that cannot exist.
    return Path(os.path.expanduser(root or os.environ.get("HFLRAY_DATA") or "~/.cache/hflray"))


def stored_at(name: str, root: Path) -> Path | None:
    """Return where a data set lies below `root`, as ``<name>.npz`` or in torchvision's layout; None if it does not."""
    places = [root / f"{name}.npz", *([root / FOLDERS[name][1]] if name in FOLDERS else [])]
    return next((place for place in places if place.exists()), None)


def load_fashion_mnist(root: Path) -> Dataset:
    """Load Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of 1×28×28, ten classes."""
    return _stored("fashion_mnist", root, FASHION_RANGE)


def load_cifar10(root: Path) -> Dataset:
    """Load CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 3×32×32, ten classes."""
    return _stored("cifar10", root, CIFAR_RANGE)


def digits_table() -> NDArray[np.int64]:
    """64 pixels of 0 to 16 and the label of each image, (1797, 65), from scikit-learn's file.

    scikit-learn itself is not imported: that takes a second.
    """
    where = find_spec("sklearn")
    assert where is not None
    assert where.origin is not None
    path = Path(where.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(path, delimiter=",", dtype=np.float64).astype(np.int64)


def load_digits(root: Path | None = None) -> Dataset:
    """Load scikit-learn's handwritten digits: 1,797 images, enlarged from 8×8 to 1×28×28, ten classes.

    Each class is split four to one into training and test images. The split does not depend on the experiment's seed.
    """
    table = digits_table()
    images = _enlarge(table[:, :-1].reshape(-1, 8, 8), DIGITS_SIZE, 255, 16)
    labels = table[:, -1].copy()
    rng = seeding.stream(0, "digits-split")
    is_test = np.zeros(len(labels), bool)
    for value in range(10):
        members = rng.permutation(np.flatnonzero(labels == value))
        is_test[members[: round(len(members) / 5)]] = True
    return Dataset("digits", images[~is_test], labels[~is_test], images[is_test], labels[is_test], 10)


def make_synthetic(
    root: Path | None = None,
    num_classes: int = 10,
    train: int = 6000,
    test: int = 1000,
    channels: int = 1,
    size: int = 28,
    seed: int = 0,
) -> Dataset:
    """Make a learnable data set, in which each class is a smooth random picture and each image adds noise to it.

    Args:
        root: ignored, because no file is read.
        num_classes: C; the classes have equal sizes to within one image.
        train, test: numbers of images.
        channels, size: shape (channels, size, size) of an image.
        seed: equal seeds give equal images.
    """
    rng = seeding.stream(seed, "synthetic")
    coarse = rng.integers(0, 256, (num_classes * channels, 7, 7))
    pictures = _enlarge(coarse, size, 1, 1).reshape(num_classes, channels, size, size).astype(np.float32)

    def draw(n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        labels = rng.permutation(np.arange(n) % num_classes)
        images = np.empty((n, channels, size, size), np.uint8)
        for start in range(0, n, 4096):  # in pieces, so that the float noise needs little memory
            block = pictures[labels[start : start + 4096]]
            noise = rng.standard_normal(block.shape, dtype=np.float32)
            # Half the contrast, and noise of a quarter of the range: one image per class is too few to learn from.
            images[start : start + 4096] = np.clip(64 + 0.5 * block + 64 * noise, 0, 255)
        return images, labels

    x_train, y_train = draw(train)
    x_test, y_test = draw(test)
    return Dataset("synthetic", x_train, y_train, x_test, y_test, num_classes)


def _stored(name: str, root: Path, samples_range: tuple[int, int]) -> Dataset:
    """Load `name` from its .npz below `root`, else from torchvision's layout, else from the network."""
    path = root / f"{name}.npz"
    if os.path.exists(path):
        arrays, num_classes = read_arrays(path, 10)
    else:
        arrays, num_classes = check_arrays(load_or_download(name, root), root / name, 10)
    return _from_arrays(name, arrays, num_classes, samples_range)


def _from_arrays(
    name: str, arrays: dict[str, NDArray[Any]], num_classes: int, samples_range: tuple[int, int] = FASHION_RANGE
) -> Dataset:
    return Dataset(name, **arrays, num_classes=num_classes, samples_range=samples_range)


def _enlarge(images: NDArray[np.int64], size: int, numerator: int, denominator: int) -> NDArray[np.uint8]:
    """Enlarge integer images (n, s, s) bilinearly to (n, 1, size, size), times numerator / denominator, rounded.

    The interpolation weights are multiples of 1 / (2·size), so integers give the same result on every machine.
    """
    old = images.shape[1]
    # The centre of the new pixel i lies at ((2i + 1)·old − size) / (2·size) on the old grid, clamped to the grid.
    position = np.clip((2 * np.arange(size) + 1) * old - size, 0, 2 * size * (old - 1))
    cell = np.minimum(position // (2 * size), max(old - 2, 0))
    weight = position - 2 * size * cell
    rows = np.zeros((size, old), np.int64)
    rows[np.arange(size), cell] += 2 * size - weight
    rows[np.arange(size), np.minimum(cell + 1, old - 1)] += weight
    total = rows @ images @ rows.T * numerator
    unit = 4 * size * size * denominator
    return ((2 * total + unit) // (2 * unit)).astype(np.uint8)[:, None]
