"""The validation part of a training set (``data.validation``), which stops and chooses and which no device gets."""

from __future__ import annotations

import numpy as np

from hflray import seeding
from hflray.data.datasets import Dataset
from hflray.data.partition import Ints
from hflray.errors import DataError


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
