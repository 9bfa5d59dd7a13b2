"""Data sets: named ones, any ``.npz`` file of images, and a user's own arrays (docs/design.md, "Data").

A data set is read from ``<root>/<name>.npz``, or else from torchvision's own layout below root, or else downloaded
through torchvision. `hflray.data.download` says where the official split of Fashion-MNIST is looked for. The root is
the argument, else ``$HFLRAY_DATA``, else ``~/.cache/hflray``. ``digits`` and ``synthetic`` need neither files nor a
network. The ranges of D_n are those of the paper's section VI (Table I).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hflray import registry, seeding
from hflray.config import WITH_A_SPLIT, Kind, Split
from hflray.data.download import FOLDERS, is_in, load_or_download, official_place, other_split, read_official, split_at
from hflray.data.download import NAME as FASHION
from hflray.data.npz import KEYS, check_arrays, read_arrays
from hflray.data.own import check_class_names, check_differ, check_own, check_owners, standardised
from hflray.data.partition import Ints
from hflray.errors import ConfigError, DataError
from hflray.support.contract import Contract, described, is_ours
from hflray.support.references import spoken
from hflray.support.text import shorten

FASHION_RANGE = (400, 700)  # also used for every data set that the paper does not use
CIFAR_RANGE = (300, 600)
QUANTILES = 10  # classes of a regression's targets, as many as Fashion-MNIST and CIFAR-10 have
UNNAMED = "own"  # the name of a data set that is given none; `load_dataset` replaces it
DIGITS_SIZE = 28  # 8×8 is below what the HFL model accepts; 28×28 is Fashion-MNIST's size


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test set. `Dataset.of` makes one of a user's own arrays.

    Attributes:
        name: name in messages and logs.
        x_train, x_test: the inputs, C-contiguous. Images are (n, channels, height, width) uint8 and are normalised
            during training. Features are (n, …) float32, standardised already. Tokens are (n, length) int32.
        y_train, y_test: the targets, (n,): int64 in 0..num_classes-1, or, for a regression, float32 in units of
            `target_std` from `target_mean`.
        num_classes: C, the number of classes or of different tokens; 1 for a regression.
        samples_range: the paper's lowest and highest D_n for this data set.
        kind: what is learned: a class, a number, or the token that follows the input.
        num_tokens: the number of different tokens in the inputs; None if the inputs are no tokens.
        groups: the group of each training sample, (n,) int64 from 0, such as its writer; None: there are none.
            Partitions deal by groups; what is learned and counted as classes stay the labels.
        owner, test_owner: who owns each training and each test sample, (n,) texts; None: nobody. The partition
            ``owners`` deals by them. The owners of test samples are kept for later use.
        class_names: what the data call the classes, C texts; None: their numbers.
        target_mean, target_std: mean and standard deviation of a regression's training targets, in their own unit.
        notes: remarks for the user.

    Examples:
        >>> import numpy as np
        >>> from hflray import Dataset
        >>> x, y = np.eye(4), [0, 1, 0, 1]
        >>> dataset = Dataset.of(x, y, x[:2], y[:2])
        >>> dataset.kind, dataset.num_classes, dataset.x_train.shape, str(dataset.x_train.dtype)
        ('classification', 2, (4, 4), 'float32')
    """

    name: str
    x_train: NDArray[Any]
    y_train: NDArray[Any]
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    num_classes: int
    samples_range: tuple[int, int] = FASHION_RANGE
    kind: Kind = "classification"
    num_tokens: int | None = None
    groups: NDArray[np.int64] | None = None
    target_mean: float = 0.0
    target_std: float = 1.0
    notes: tuple[str, ...] = ()
    owner: NDArray[np.str_] | None = None
    test_owner: NDArray[np.str_] | None = None
    class_names: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls,
        x_train: ArrayLike,
        y_train: ArrayLike,
        x_test: ArrayLike,
        y_test: ArrayLike,
        kind: Kind = "classification",
        groups: ArrayLike | None = None,
        *,
        name: str = UNNAMED,
        samples_range: tuple[int, int] = FASHION_RANGE,
        owner: ArrayLike | None = None,
        test_owner: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Self:
        """Make a data set of arrays. The type of the inputs says what they are.

        Args:
            x_train, x_test: the inputs, n rows each: uint8 images, (n, height, width) or (n, height, width, channels)
                with at most 4 channels; float features, (n, …), which are standardised by the training set's mean and
                deviation along the first axis after n; or tokens, (n, length), integers from 0 of another type than
                uint8.
            y_train, y_test: the targets, (n,): class labels from 0, each at least once in training; numbers, for a
                regression; or the token after each input, for ``next_token``.
            kind: what is learned, ``classification``, ``regression`` or ``next_token``.
            groups: the group of each training sample, (n,) integers or texts, such as its site. Partitions deal by the
                groups; without them by the targets, and by the deciles of a regression's targets. Labels stay labels:
                the classes that are counted (`hflray.scheduling.RoundContext.class_counts`) are those of `labels`.
            name: name in messages and logs.
            samples_range: the lowest and highest D_n of a device unless ``data.samples_per_device`` is set.
            owner, test_owner: who owns each training and each test sample, (n,) integers or texts, such as the name of
                its device in the fleet's table; with ``data.partition: owners`` a device holds those of one owner.
            class_names: what reports call the classes, C texts.

        Raises:
            DataError: an array is not as described above. The message is one line and names the first wrong element.
        """
        checked = check_own(x_train, y_train, x_test, y_test, kind, groups)
        if owner is None and test_owner is not None:
            raise DataError("test_owner was given without owner; accepted: both, or owner alone; give both")
        if kind == "regression":
            mean, std = float(checked["y_train"].mean()), float(checked["y_train"].std())
            checked |= {y: ((checked[y] - mean) / std).astype(np.float32) for y in ("y_train", "y_test")}
            checked |= {"target_mean": mean, "target_std": std}
        if owner is not None:
            checked["owner"] = check_owners(owner, len(checked["y_train"]), "owner")
        if test_owner is not None:
            checked["test_owner"] = check_owners(test_owner, len(checked["y_test"]), "test_owner")
        if class_names is not None:
            checked["class_names"] = check_class_names(class_names, checked["num_classes"], kind)
        return cls(name, samples_range=samples_range, kind=kind, **checked)

    def of_owners(self, owners: Sequence[str]) -> Self:
        """Return the data of these owners alone: training and test samples, with features standardised by them.

        Raises:
            DataError: none of the test samples is theirs.
        """
        assert self.owner is not None
        train = np.isin(self.owner, owners)
        test = np.ones(len(self.y_test), dtype=bool) if self.test_owner is None else np.isin(self.test_owner, owners)
        if not test.any():
            raise DataError(f"{self.name}: no test sample belongs to an owner that is left; accepted: one or more")
        if self.kind == "regression":
            check_differ(self.y_test[test], f"{self.name}: y_test of the owners that are left")
        x_train, x_test = self.x_train[train], self.x_test[test]
        if x_train.dtype == np.float32:
            x_train, x_test, _ = standardised(x_train, x_test)
        return replace(
            self, x_train=x_train, y_train=self.y_train[train], x_test=x_test, y_test=self.y_test[test],
            groups=None if self.groups is None else self.groups[train], owner=self.owner[train],
            test_owner=None if self.test_owner is None else self.test_owner[test],
        )  # fmt: skip

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.x_train.shape[1:]

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.input_shape
        return channels, height, width

    @property
    def has_images(self) -> bool:
        """Whether the inputs are images."""
        return self.x_train.dtype == np.uint8

    @cached_property
    def strata(self) -> NDArray[np.int64]:
        """What partitions and clustering take for the class of each training sample, (n,) int64 from 0, without gaps.

        It is the given group, else that of `labels`.
        """
        return self.labels if self.groups is None else self.groups

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of each training sample, (n,) int64 from 0, without gaps.

        It is the label, whatever the group is, or the decile of a regression's target. Tokens are no classes: for
        ``next_token`` it is the group, and without groups the token that follows.
        """
        if self.kind == "next_token" and self.groups is not None:
            return self.groups
        if self.kind == "regression":
            edges = np.unique(np.quantile(self.y_train, np.arange(1, QUANTILES) / QUANTILES))
            deciles = np.searchsorted(edges, self.y_train, side="right")
            return np.asarray(np.unique(deciles, return_inverse=True)[1], dtype=np.int64)
        labels: NDArray[np.int64] = self.y_train
        if self.kind == "next_token":
            labels = np.unique(labels, return_inverse=True)[1].astype(np.int64)
        return labels

    @property
    def num_strata(self) -> int:
        """The number of different `strata`."""
        return self.num_labels if self.groups is None else int(self.groups.max()) + 1

    @property
    def num_labels(self) -> int:
        """The number of different `labels`."""
        return self.num_classes if self.kind == "classification" else int(self.labels.max()) + 1

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """What is known of each training sample, (n,) each: label, target, and group and owner if there are."""
        optional = {"group": self.groups, "owner": self.owner}
        present = {name: column for name, column in optional.items() if column is not None}
        return {"label": self.labels, "target": self.y_train, **present}

    @property
    def channel_mean(self) -> NDArray[np.float32]:
        """Mean of each channel of x_train / 255, (channels,) float32; 0, (1,), if the inputs are no images."""
        return self._moments[0]

    @property
    def channel_std(self) -> NDArray[np.float32]:
        """Standard deviation of each channel of x_train / 255, (channels,) float32, at least 1/255; else 1, (1,)."""
        return self._moments[1]

    @cached_property
    def _moments(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        if not self.has_images:  # nothing is normalised during training
            return np.zeros(1, np.float32), np.ones(1, np.float32)
        # Counts of the 256 values give exact moments, and need no float copy of the images.
        counts = np.stack([np.bincount(self.x_train[:, c].ravel(), minlength=256) for c in range(self.image_shape[0])])
        share, value = counts / counts.sum(axis=1, keepdims=True), np.arange(256) / 255.0
        mean = share @ value
        std = np.sqrt((share * (value - mean[:, None]) ** 2).sum(axis=1))
        return mean.astype(np.float32), np.maximum(std, 1 / 255).astype(np.float32)


def load_dataset(
    name: str,
    root: str | Path | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    split: Split | None = "stratified",
) -> Dataset:
    """Load the data set registered as `name`, or the ``.npz`` file at the path `name`.

    Args:
        name: a built-in name such as ``digits``, a name of the entry point group ``hflray.datasets`` (a function of
            root that returns a `Dataset`), or a path ending in ``.npz``, relative to the current folder or to root,
            with the keys x_train, y_train, x_test, y_test (see `hflray.data.npz`).
        root: folder of the data sets; None: ``$HFLRAY_DATA``, else ``~/.cache/hflray``.
        seed: seed of generated data (functions with a `seed` parameter); stored data do not depend on it.
        options: further arguments of the function, which are ``data.options``.
        split: ``data.split``, of Fashion-MNIST: ``official`` or ``stratified``; None: as the file has it.

    Raises:
        ConfigError: an unknown name, or an official split of data that have none.
        DataError: the data are missing, malformed, in another split, or cannot be downloaded; the message says which
            file to put where.

    Examples:
        >>> from hflray import load_dataset
        >>> digits = load_dataset("digits")
        >>> digits.x_train.shape, digits.num_classes
        ((1438, 1, 28, 28), 10)
    """
    folder = data_root(root)
    if split == "official" and name not in WITH_A_SPLIT:
        raise ConfigError(
            f"data.split: got official with data.name = {shorten(name)}, which has one split only; accepted with it: "
            f"stratified; set it, or take {' or '.join(WITH_A_SPLIT)}"
        )
    if name.endswith(".npz"):
        if options:
            raise ConfigError(f"data.options: got {shorten(dict(options))}; accepted with an .npz: none; remove them")
        path = Path(os.path.expanduser(name))
        if not os.path.exists(path) and os.path.exists(folder / path):
            path = folder / path
        return _from_arrays(path.stem, *read_arrays(path))
    make = registry.resolve("dataset", registry.check("dataset", name, "data.name"))
    arguments: dict[str, Any] = {"seed": seed} if "seed" in inspect.signature(make).parameters else {}
    if name == FASHION:
        arguments["split"] = split
    registry.check_options("dataset", name, make, options or {}, ("root", *arguments))
    try:
        dataset = make(folder, **arguments, **(options or {}))
    except DataError as error:  # `Dataset.of` does not know the setting
        text, names_it = str(error), str(error).startswith(("data.name", "data.split"))
        raise DataError(text if names_it else f"data.name: {spoken(name)}: {text}") from error
    if not isinstance(dataset, Dataset):
        raise Contract.of("data.name", name, "a hflray.Dataset, as Dataset.of makes it").error(described(dataset))
    if not is_ours(make):
        _check_fields(name, dataset)
    return replace(dataset, name=spoken(name)) if dataset.name == UNNAMED else dataset


def _check_fields(name: str, dataset: Dataset) -> None:
    """Raise ConfigError if a data set of the user's own was not made by `Dataset.of`, and an array is not as there."""
    inputs = {"u": "uint8 images (n, channels, height, width)", "f": "float32 features (n, …)", "i": "int32 tokens"}
    kinds = f"{', '.join(inputs.values())}, and targets (n,) from 0 to {dataset.num_classes - 1}"
    contract = Contract.of("data.name", name, kinds, "make it by hflray.Dataset.of, which checks and converts arrays")
    shape = (None, *np.shape(dataset.x_train)[1:])
    for part in ("train", "test"):
        x, y = getattr(dataset, f"x_{part}"), getattr(dataset, f"y_{part}")
        where = f" for x_{part}"
        contract.array(x, shape, where=where)
        if not isinstance(x, np.ndarray) or x.dtype not in (np.uint8, np.float32, np.int32) or not len(x) or x.ndim < 2:
            raise contract.error(described(x) + where)
        where = f" for y_{part}"
        if dataset.kind == "regression":
            contract.array(y, (len(x),), where=where)
        else:
            contract.array(y, (len(x),), "i", 0, dataset.num_classes - 1, where)
        if not isinstance(y, np.ndarray) or y.dtype != (np.float32 if dataset.kind == "regression" else np.int64):
            raise contract.error(described(y) + where)
    if dataset.groups is not None:
        contract.array(dataset.groups, (len(dataset.y_train),), "i", 0, where=" for groups")


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of the data sets: `root`, else ``$HFLRAY_DATA``, else ``~/.cache/hflray``."""
    # Unlike Path's methods, those of os.path raise no error for a path that cannot exist.
    return Path(os.path.expanduser(root or os.environ.get("HFLRAY_DATA") or "~/.cache/hflray"))


def stored_at(name: str, root: Path, split: Split | None = "stratified") -> Path | None:
    """Return where a data set lies, as ``<name>.npz`` or in torchvision's layout below `root`; None if it does not.

    The official split of Fashion-MNIST has further places, see `official_place`. With the split None they come last.
    """
    if name == FASHION and split == "official":
        return official_place(root)
    places = [root / f"{name}.npz", *([root / FOLDERS[name][1]] if name in FOLDERS else [])]
    place = next((place for place in places if os.path.exists(place)), None)
    return official_place(root) if place is None and name == FASHION and split is None else place


def load_fashion_mnist(root: Path, split: Split | None = "stratified") -> Dataset:
    """Load Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of 1×28×28, ten classes.

    Args:
        root: folder of the data sets.
        split: ``official``; ``stratified``, also for other images in its files; None: whatever is stored first.

    Raises:
        DataError: it cannot be read or downloaded, or is in the other split.
    """
    place, official = stored_at(FASHION, root, split), official_place(root)
    is_official = official is not None and place in (official, official.parent)  # the latter is torchvision's folder
    if split == "official" or (split is None and is_official):
        return _from_arrays(FASHION, read_official(root), 10, FASHION_RANGE)
    if official is not None and (place is None or is_official) and split_at(official) == "official":
        raise other_split(official)
    dataset = _stored(FASHION, root, FASHION_RANGE)
    if split == "stratified" and is_in("official", {key: getattr(dataset, key) for key in KEYS}):
        raise other_split(place or root / FOLDERS[FASHION][1])
    return dataset


def load_cifar10(root: Path) -> Dataset:
    """Load CIFAR-10 (Krizhevsky 2009): 50,000 + 10,000 images of 3×32×32, ten classes."""
    return _stored("cifar10", root, CIFAR_RANGE)


def sklearn_table(name: str, **options: Any) -> NDArray[np.float64]:
    """Read a table from scikit-learn's folder of data with `numpy.loadtxt`.

    scikit-learn itself is not imported: that takes a second.
    """
    where = find_spec("sklearn")
    assert where is not None
    assert where.origin is not None
    path = Path(where.origin).parent / "datasets" / "data" / name
    return np.loadtxt(path, dtype=np.float64, **options)


def digits_table() -> NDArray[np.int64]:
    """64 pixels of 0 to 16 and the label of each image, (1797, 65), from scikit-learn's file."""
    return sklearn_table("digits.csv.gz", delimiter=",").astype(np.int64)


def split_rows(strata: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """Return which rows are test rows, (n,): one of five of each stratum, drawn by the name of the data set."""
    rng, is_test = seeding.stream(0, f"{name}-split"), np.zeros(len(strata), bool)
    order = np.argsort(strata, kind="stable")
    for members in np.split(order, np.flatnonzero(strata[order][1:] != strata[order][:-1]) + 1):
        is_test[rng.permutation(members)[: round(len(members) / 5)]] = True
    return is_test


def load_digits(root: Path | None = None) -> Dataset:
    """Load scikit-learn's handwritten digits: 1,797 images, enlarged from 8×8 to 1×28×28, ten classes.

    Each class is split four to one into training and test images. The split does not depend on the experiment's seed.
    """
    table = digits_table()
    images = _enlarge(table[:, :-1].reshape(-1, 8, 8), DIGITS_SIZE, 255, 16)
    labels = table[:, -1].copy()
    is_test = split_rows(labels, "digits")
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
        arrays, num_classes = check_arrays(load_or_download(name, root), f"data.name: {root / name}: ", 10)
    return _from_arrays(name, arrays, num_classes, samples_range)


def _from_arrays(
    name: str, arrays: dict[str, NDArray[Any]], num_classes: int, samples_range: tuple[int, int] = FASHION_RANGE
) -> Dataset:
    a = arrays
    return Dataset(name, a["x_train"], a["y_train"], a["x_test"], a["y_test"], num_classes, samples_range)


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


def validation_rows(dataset: Dataset, count: int, seed: int) -> Ints:
    """Return which training samples are the validation part, sorted; empty if `count` is 0.

    They are drawn in proportion to the labels (`Dataset.labels`), by a stream of the seed that nothing else draws from:
    in a random order of each label's n samples, sample k comes at (k + 1/2) / n, and the first `count` of all are
    taken. A smaller part of the same seed therefore lies within a larger one. One sample of each label, group and owner
    stays for training.

    Args:
        dataset: the data set.
        count: the number of samples.
        seed: the root seed.

    Raises:
        DataError: there are fewer than one for each label, or more than can leave the training set.

    Examples:
        >>> import numpy as np
        >>> from hflray import load_dataset
        >>> digits = load_dataset("digits")
        >>> np.bincount(digits.labels[validation_rows(digits, 100, seed=0)]).tolist()
        [10, 10, 10, 10, 10, 10, 10, 10, 10, 10]
    """
    if not count:
        return np.zeros(0, dtype=np.int64)
    order = seeding.stream(seed, "validation").permutation(len(dataset.y_train))
    stays = np.zeros(len(order), dtype=bool)
    for column in (dataset.labels, dataset.groups, dataset.owner):
        if column is not None:
            stays[order[np.unique(column[order], return_index=True)[1]]] = True
    candidates = order[~stays[order]]
    if not dataset.num_labels <= count <= len(candidates):
        raise DataError(
            f"data.validation: got {count:,} for {dataset.name}, whose {len(order):,} training samples have "
            f"{dataset.num_labels:,} classes; accepted: 0, or {dataset.num_labels:,} to {len(candidates):,}, because "
            "one sample of each class, group and owner is trained; correct it"
        )
    labels = dataset.labels[candidates]
    by_label = np.argsort(labels, kind="stable")  # and within a label in the random order
    sizes = np.bincount(labels)
    ranks = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    place = (ranks + 0.5) / np.repeat(sizes, sizes)
    return np.sort(candidates[by_label[np.argsort(place, kind="stable")[:count]]])
